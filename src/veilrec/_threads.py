"""How many threads a run may use, and work that is spread over them; the numbers never depend on how many."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from veilrec._arrays import Offsets


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
