"""One process on a folder: a lock that goes with whoever holds it, however that one ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from veilrec.errors import BadInput

FILE = "lock"
_LOOK_SECONDS = 0.05


@contextmanager
def alone_in(folder: Path, refusal: str, *, patience: float = 0.0) -> Iterator[None]:
    """Hold a folder; whoever finds it held waits so many seconds, and is then refused with these words."""
    handle = os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= until:
                    raise BadInput(refusal) from None
                time.sleep(_LOOK_SECONDS)
        yield
    finally:
        os.close(handle)
