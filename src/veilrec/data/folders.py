"""Folders that are either whole or not there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from veilrec.errors import BadInput


def refuse_existing(target: Path) -> None:
    """Raise unless the path is free: nothing there, or an empty folder."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise BadInput(f"{target} exists already: give another folder, or remove it first")


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target`; on success it becomes `target`, synced, else it vanishes.

    A target that holds something already is refused, so that nothing is ever overwritten or mixed.
    """
    refuse_existing(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part"))
    try:
        yield part
        _sync(part)
        part.chmod(0o755)
        part.rename(target)
        _sync_entry(target.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _sync(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            _sync_entry(Path(parent) / name)
        _sync_entry(Path(parent))


def _sync_entry(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
