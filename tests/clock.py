"""A clock that really jumps, for processes that are started with it: a shim of the C library's clock, from a file.

OpenSSL asks the C library for the time when it checks a certificate, so that a patched `time.time` would not reach it.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t offset(void) {
    char text[32] = {0};
    int file = open(getenv("CLOCK_OFFSET"), O_RDONLY);
    if (file < 0) return 0;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    return size > 0 ? (time_t)atoll(text) : 0;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(which, now);
    if (!failed && which == CLOCK_REALTIME) now->tv_sec += offset();
    return failed;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
"""


class Clock:
    """Set the clock of processes that are started with `environment`, also while they run."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None or os.uname().sysname != "Linux":
            pytest.skip("a clock that jumps needs a C compiler, on Linux")
        folder.mkdir(exist_ok=True)
        (folder / "clock.c").write_text(_SHIM)
        shim, self._offset = folder / "clock.so", folder / "offset"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", shim, folder / "clock.c", "-ldl"]
        subprocess.run(command, check=True)
        self.turn(0)
        self.environment = {**os.environ, "LD_PRELOAD": str(shim), "CLOCK_OFFSET": str(self._offset)}

    def turn(self, seconds: int) -> None:
        """Move the clock to so many seconds from the true time."""
        part = self._offset.with_suffix(".part")
        part.write_text(f"{seconds}\n")
        part.replace(self._offset)
