"""Items that were added to a release or taken out of it, on disk.

SQLite in WAL mode with `synchronous=FULL`: a commit returns when its bytes are synced. An append log with checksums of
our own would be as safe and a little faster, but needs compaction, its own recovery and its own tests; SQLite brings
them, and a newsroom adds a handful of items a second where some 200 would be possible. What was acknowledged is there
after a crash; of what was not, the one change that was under way may be there or not, whole in either case.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from math import inf
from pathlib import Path

import numpy as np

from veilrec._arrays import Floats
from veilrec.errors import BadInput, VeilrecError

_APPLICATION, _SCHEMA = 0x7665696D, 1
_SETTINGS = ("PRAGMA locking_mode=EXCLUSIVE", "PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL")
_TABLES = (
    "CREATE TABLE items (id TEXT PRIMARY KEY, title TEXT NOT NULL, abstract TEXT NOT NULL, category TEXT NOT NULL,"
    " subcategory TEXT NOT NULL, region TEXT NOT NULL, prior REAL NOT NULL, expires REAL, model TEXT NOT NULL,"
    " vector BLOB NOT NULL)",
    "CREATE TABLE gone (id TEXT PRIMARY KEY)",
    "CREATE INDEX by_expiry ON items (expires) WHERE expires IS NOT NULL",
    f"PRAGMA application_id={_APPLICATION}",
    f"PRAGMA user_version={_SCHEMA}",
)
_NO_SPACE = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC", "SQLITE_IOERR_TRUNCATE")


class StoreFull(VeilrecError):
    """There is no room for the change; nothing of it was kept, and everything else goes on."""


class StoreGone(VeilrecError):
    """The file cannot be relied on any more: nothing is acknowledged."""


@dataclass(frozen=True)
class Item:
    """An item that was added, and its vector by the model of one release."""

    id: str
    title: str
    abstract: str
    category: str
    subcategory: str
    region: str
    prior: float
    expires: float  # seconds since 1970, or infinity
    model: str  # digest of the manifest whose encoder made the vector
    vector: Floats


class ItemStore:
    """One open file of items; one server at a time, one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
            self._open()
        except OSError as error:
            raise BadInput(f"{path} cannot be used ({error.strerror}): give a file that can be written") from None
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise BadInput(f"{path} is in use by another server: stop it, or give another --items file") from None
            raise BadInput(f"{path} cannot be used ({error}): give a file that can be written") from None
        except sqlite3.DatabaseError:
            raise BadInput(f"{path} is no file of items, or is damaged: give another --items file") from None
        self._identity = self._files()

    def _open(self) -> None:
        for setting in _SETTINGS:
            self._database.execute(setting)
        self._database.execute("BEGIN IMMEDIATE")  # takes the lock, and keeps it
        (application,) = self._database.execute("PRAGMA application_id").fetchone()
        (schema,) = self._database.execute("PRAGMA user_version").fetchone()
        (tables,) = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables:
            for statement in _TABLES:
                self._database.execute(statement)
        elif (application, schema) != (_APPLICATION, _SCHEMA):
            raise sqlite3.DatabaseError
        self._database.execute("COMMIT")

    def close(self) -> None:
        """Close the file; what was acknowledged is in it already."""
        self._database.close()

    def items(self) -> Iterator[Item]:
        """What was added and is still there, in the order in which it came."""
        for row in self._database.execute("SELECT * FROM items ORDER BY rowid"):
            expires = inf if row[7] is None else row[7]
            yield Item(*(*row[:7], expires, row[8], np.frombuffer(row[9], "<f4")))

    def gone(self) -> set[str]:
        """What was taken out, of the release or of what was added."""
        return {name for (name,) in self._database.execute("SELECT id FROM gone")}

    def put(self, item: Item) -> None:
        """Add an item or put it in the place of its namesake; on disk when this returns."""
        *fields, expires, model, vector = astuple(item)
        row = (*fields, None if expires == inf else expires, model, np.asarray(vector, "<f4").tobytes())
        with self._change() as database:
            database.execute("INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            database.execute("DELETE FROM gone WHERE id = ?", (item.id,))

    def remove(self, name: str) -> None:
        """Take an item out for good; on disk when this returns."""
        with self._change() as database:
            database.execute("DELETE FROM items WHERE id = ?", (name,))
            database.execute("INSERT OR IGNORE INTO gone VALUES (?)", (name,))

    def expired(self, now: float) -> list[str]:
        """Items whose time has come."""
        return [name for (name,) in self._database.execute("SELECT id FROM items WHERE expires <= ?", (now,))]

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is synced to the file which others will open, or an error and nothing changed."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield self._database
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            if error.sqlite_errorname in _NO_SPACE:
                raise StoreFull("the disk of the items is full: make room and try again; nothing was changed") from None
            raise StoreGone(
                f"the file of items cannot be written ({error.sqlite_errorname}): look at the disk, then start the"
                " server again; nothing was acknowledged"
            ) from None
        if self._files() != self._identity:
            raise StoreGone(
                "the file of items was removed or replaced while the server runs: put it back and start the server"
                " again; nothing was acknowledged"
            )

    def _roll_back(self) -> None:
        if self._database.in_transaction:
            try:
                self._database.execute("ROLLBACK")
            except sqlite3.Error:
                return

    def _files(self) -> list[tuple[int, int] | None]:
        """Which files lie under our names: SQLite goes on writing to one that was removed."""
        found: list[tuple[int, int] | None] = []
        for name in (self.path, Path(f"{self.path}-wal")):
            try:
                about = name.stat()
                found.append((about.st_dev, about.st_ino))
            except OSError:
                found.append(None)
        return found
