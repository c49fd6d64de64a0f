"""How many threads a run may use, and work that is spread over them; the numbers never depend on how many.

Memory: what this process has held, and what cannot fit is refused before an operating system kills the run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np

from veilrec.core.arrays import Offsets
from veilrec.core.errors import BadInput, counted


def available() -> int:
    """OMP_NUM_THREADS where it is a number from 1 up, else the cores that this process may run on."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def even_parts(work: Offsets, count: int) -> list[tuple[int, int]]:
    """At most `count` ranges of neighbours, none of them empty, with about the same sum of work each."""
    middles = np.cumsum(work) - work / 2
    goals = work.sum() * np.arange(1, count) / count
    return list(pairwise(np.unique([0, *np.searchsorted(middles, goals), len(work)]).tolist()))


def run_all(tasks: Sequence[Callable[[], None]]) -> None:
    """Do all tasks, each in a thread of its own if there are several; they have to release the interpreter lock."""
    if len(tasks) == 1:
        tasks[0]()
        return
    with ThreadPoolExecutor(max(len(tasks), 1)) as pool:
        for done in [pool.submit(task) for task in tasks]:
            done.result()


_SHARE = 0.5  # of the memory, for one table: whoever learns keeps another of its size beside it
_GIGABYTE = 1e9


def machine_memory() -> int:
    """Bytes of memory that this machine has; 0 where it does not tell."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0


def peak_rss_mb() -> float:
    """The most memory that this process has held."""
    status = Path("/proc/self/status")
    if status.exists():  # `ru_maxrss` of Linux outlives exec: a process would report the peak of whoever started it
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / (1 << 10)
    import resource  # there is none on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def require_room(rows: int, width: int, *, entry_bytes: int = 4) -> None:
    """Refuse a table that takes more than half of the memory."""
    needed, memory = rows * width * entry_bytes, machine_memory()
    if memory and needed > _SHARE * memory:
        raise BadInput(
            f"a table of {counted(rows, 'row')} of {counted(width, 'number')} takes {needed / _GIGABYTE:,.1f} GB, and"
            f" this machine has {memory / _GIGABYTE:,.1f} GB of memory: choose shorter vectors, or less data"
        )
