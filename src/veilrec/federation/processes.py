"""Processes on one machine: one at a time on a folder, which ones a federation has started, and how they are ended."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from veilrec.core.errors import BadInput
from veilrec.core.files import write_json

LOCK = "lock"
_RETRY_SECONDS = 0.05


@contextmanager
def alone_in(folder: Path, refusal: str, *, patience: float = 0.0) -> Iterator[None]:
    """Take an exclusive lock on a folder; wait `patience` seconds, then raise BadInput."""
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= until:
                    raise BadInput(refusal) from None
                time.sleep(_RETRY_SECONDS)
        yield
    finally:
        os.close(handle)


FILE = "processes.json"
_PATIENCE_SECONDS = 20.0


@dataclass(frozen=True)
class Process:
    """One process, known by its number and by when it started: a number alone may be another's by now."""

    name: str
    pid: int
    started: int  # in ticks of the machine since it was booted

    @property
    def is_alive(self) -> bool:
        """Whether it is there, and is the one that was meant."""
        return started_at(self.pid) == self.started


def of(name: str, pid: int) -> Process:
    """A process that runs now."""
    return Process(name, pid, started_at(pid) or 0)


def started_at(pid: int) -> int | None:
    """When a process started; None if there is none, or it is dead and not buried."""
    try:
        content = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = content.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        with suppress(OSError):
            found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def note(folder: Path, processes: list[Process]) -> None:
    """Remember what was started."""
    write_json(folder / FILE, {"processes": [asdict(process) for process in processes]})


def noted(folder: Path) -> list[Process]:
    """Read the processes that were noted."""
    try:
        return [Process(**entry) for entry in json.loads((folder / FILE).read_text())["processes"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def running(folder: Path) -> list[Process]:
    """List the noted processes that are alive."""
    return [process for process in noted(folder) if process.is_alive]


def end(folder: Path) -> list[Process]:
    """End exactly what was started here: asked first, and killed if it does not listen; what was ended."""
    found = running(folder)
    grown = [of(f"{parent.name} child", pid) for parent in found for pid in children(parent.pid)]
    every = list({process.pid: process for process in (*grown, *found)}.values())
    for number, patience in ((signal.SIGTERM, _PATIENCE_SECONDS), (signal.SIGKILL, 5.0)):
        for process in every:
            if process.is_alive:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)
        until = time.monotonic() + patience
        while any(process.is_alive for process in every) and time.monotonic() < until:
            time.sleep(0.05)
    (folder / FILE).unlink(missing_ok=True)
    return found
