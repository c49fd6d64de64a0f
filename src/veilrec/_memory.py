"""Memory: what this process has held, and what cannot fit is refused before an operating system kills the run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from veilrec._words import counted
from veilrec.errors import BadInput

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
