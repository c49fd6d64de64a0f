"""Files and folders that are either whole or not there, and where veilrec keeps its own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from veilrec.errors import BadInput


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`: synced and put in its place on success, gone after an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    part = Path(name)
    try:
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.chmod(0o644)
        part.replace(path)
        sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


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
        for inner, _, names in os.walk(part):
            for name in names:
                sync(Path(inner) / name)
            sync(Path(inner))
        part.chmod(0o755)
        part.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def sync(path: Path) -> None:
    """Make sure that a file or the names in a folder are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with replacing(path) as part:
        part.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """Write a text file atomically, as UTF-8."""
    write_bytes(path, content.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, readable by people."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sha256(paths: Iterable[Path]) -> str:
    """One digest over the contents of several files, in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as source:
            inner = hashlib.file_digest(source, "sha256")
        digest.update(inner.digest())
    return digest.hexdigest()


def cache_folder() -> Path:
    """`$VEILREC_CACHE`, or `~/.cache/veilrec`."""
    chosen = os.environ.get("VEILREC_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "veilrec"
