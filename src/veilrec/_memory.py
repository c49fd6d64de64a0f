"""What cannot fit into this machine is refused before it is asked for: an operating system would kill the run."""

from __future__ import annotations

import os

from veilrec._words import counted
from veilrec.errors import BadInput

_SHARE = 0.5  # of the memory, for one table: whoever learns keeps another of its size beside it
_GIGABYTE = 1e9


def machine_memory() -> int:
    """Bytes of memory that this machine has; 0 where it does not tell."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0


def require_room(rows: int, width: int, *, entry_bytes: int = 4) -> None:
    """Refuse a table that takes more than half of the memory."""
    needed, memory = rows * width * entry_bytes, machine_memory()
    if memory and needed > _SHARE * memory:
        raise BadInput(
            f"a table of {counted(rows, 'row')} of {counted(width, 'number')} takes {needed / _GIGABYTE:,.1f} GB, and"
            f" this machine has {memory / _GIGABYTE:,.1f} GB of memory: choose shorter vectors, or less data"
        )
