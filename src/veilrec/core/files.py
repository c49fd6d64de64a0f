"""Files and folders that are written whole or not at all, transactions of SQLite, and the cache folder."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from veilrec.core.errors import BadInput, VeilrecError

OWNER_ONLY = 0o600  # of files that hold anything personal or secret; a folder of such files has 0o700
_LONGEST_NAME = 100  # characters of a name that a temporary one repeats


@contextmanager
def replacing(path: Path, *, mode: int = 0o644) -> Iterator[Path]:
    """Give a temporary path beside `path`: synced and put in its place on success, gone after an error.

    A folder that is made for a file that only its owner can read has the same readers.
    """
    with _named(path), _parent_of(path, 0o755 if mode & 0o077 else 0o700):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path), suffix=".part")
        os.close(handle)
        part = Path(name)
        try:
            yield part
            with part.open("rb") as written:
                os.fsync(written.fileno())
            part.chmod(mode)
            part.replace(path)
            sync(path.parent)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What a disk refuses is an OSError with the path that was asked for, whatever wrote to its temporary name."""
    try:
        yield
    except Exception as error:
        code, where = _code_of(error), getattr(error, "filename", None)
        if code is None or (where is not None and not str(where).startswith(str(path.parent / _prefix(path)))):
            raise
        raise OSError(code, os.strerror(code), str(path)) from error


def _code_of(error: Exception) -> int | None:
    """What the system said; libraries that write by themselves tell it in words alone."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if isinstance(error, OSError) and re.search(r"requested and \d+ written", str(error)):  # numpy
        return errno.ENOSPC
    told = re.search(r"\(os error (\d+)\)", str(error))  # safetensors, polars
    return None if told is None else int(told[1])


@contextmanager
def _parent_of(path: Path, mode: int = 0o755) -> Iterator[None]:
    """The folder of a path, made if it is not there, and then gone after an error unless something else is in it."""
    missing = [folder for folder in path.absolute().parents if not folder.exists()]
    try:
        path.parent.mkdir(mode, parents=True, exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):
            for folder in missing:
                folder.rmdir()
        raise


def _prefix(path: Path) -> str:
    return f".{path.name[:_LONGEST_NAME]}."


def refuse_existing(target: Path, instead: str = "remove it first") -> None:
    """Raise unless the path is free, nothing there or an empty folder, and can be written."""
    check_place(target)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise BadInput(f"{target} exists already: give another name, or {instead}")


def check_place(target: Path) -> None:
    """Refuse a file or folder that cannot be written, before any work; nothing is made."""
    try:
        there = next(place for place in (target, *target.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=there if there != target or target.is_dir() else target.absolute().parent):
            pass
    except OSError as error:
        raise BadInput(
            f"{target} cannot be used ({error.strerror}): give a place that can be written, in a folder of your own"
        ) from None


@contextmanager
def new_folder(target: Path, *, replace: bool = False, private: bool = False) -> Iterator[Path]:
    """A temporary folder beside `target`; on success it becomes `target`, synced, else it vanishes.

    A target that holds something already is refused, so that nothing is ever overwritten or mixed; with `replace` it
    is given up when the new one is whole. A `private` one, its files included, only its owner can read.
    """
    if not replace:
        refuse_existing(target)
    with _named(target), _parent_of(target):
        part = Path(tempfile.mkdtemp(dir=target.parent, prefix=_prefix(target), suffix=".part"))
        try:
            yield part
            for inner, folders, names in os.walk(part):
                for name in names:
                    if private:
                        (Path(inner) / name).chmod(OWNER_ONLY)
                    sync(Path(inner) / name)
                for name in folders if private else ():
                    (Path(inner) / name).chmod(0o700)
                sync(Path(inner))
            part.chmod(0o700 if private else 0o755)
            if replace:
                _give_up(target)
            part.rename(target)
            sync(target.parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _give_up(target: Path) -> None:
    """Remove what is there, a folder out of sight at once."""
    if target.is_symlink() or target.is_file():
        target.unlink()
    elif target.exists():
        old = Path(tempfile.mkdtemp(dir=target.parent, prefix=_prefix(target), suffix=".old"))
        target.rename(old)
        shutil.rmtree(old, ignore_errors=True)


def sync(path: Path) -> None:
    """Make sure that a file or the names in a folder are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file atomically."""
    with replacing(path, mode=mode) as part:
        part.write_bytes(content)


def write_text(path: Path, content: str, *, mode: int = 0o644) -> None:
    """Write a text file atomically, as UTF-8."""
    write_bytes(path, content.encode(), mode=mode)


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


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """What is changed in here is on disk together, or not at all: also where the disk refuses the end of it."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


class Closing:
    """Base of what is closed at the end of a `with` block, whatever happened in it."""

    def close(self) -> None:
        """Let go of files and connections."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


KEY_BYTES = 32
_NONCE_BYTES = 12


class WrongSeal(VeilrecError):
    """Something kept does not open: another key, other content, or the content of another place."""


class Seal:
    """AES-256-GCM with a new random nonce for everything; nobody without the key can read or change it unnoticed."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        self._cipher = AESGCM(key)

    def close(self, content: bytes, what: str) -> bytes:
        """Encrypt; `what` it is goes into the seal, so that it cannot be passed off as something else."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, content, what.encode())

    def open(self, sealed: bytes, what: str) -> bytes:
        """What was sealed as this, unchanged."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], what.encode())
        except (InvalidTag, ValueError):
            raise WrongSeal(f"{what} does not open with this key: it was changed, or belongs to another key") from None


def key_in(path: Path) -> bytes:
    """The key of a file that only its owner can read; made at random where there is none yet."""
    if not path.exists():
        _write_new(path, os.urandom(KEY_BYTES))
    if path.stat().st_mode & 0o077 and os.name == "posix":
        raise VeilrecError(f"{path}: others can read this key: nothing is done with it; chmod 600 it, if nobody has")
    key = path.read_bytes()
    check_key(path, key)
    return key


def check_key(path: Path, key: bytes) -> None:
    """Refuse what is no key: one of another length, or zeros alone, which is what a disk may leave of a file."""
    if len(key) != KEY_BYTES:
        raise BadInput(f"{path}: this is not a key: it has {len(key)} bytes, a key has {KEY_BYTES}; bring it back")
    if not any(key):
        raise BadInput(f"{path}: this key was lost: the file holds nothing but zeros; bring it back")


def _write_new(path: Path, content: bytes) -> None:
    """Whole or not there; if somebody else was faster, theirs stays."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")  # mode 0600
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(part, path)
        sync(path.parent)
    finally:
        part.unlink(missing_ok=True)
