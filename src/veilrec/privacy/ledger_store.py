"""Where a ledger lives: an SQLite file, a mirror beside it, and the rule by which both change.

With a seal, everything in them but numbers of periods and names is encrypted.

Every change happens under SQLite's write lock, in this order: the new record, and all that is kept with it, is
committed to the database and synced; then the record goes to the mirror and is synced; only then may anything leave. So
in every honest history the mirror is as new as the database, or older by the one change after which a crash, or a disk
that refused, came in between. Nothing of that change had left, and all of it is on disk: it is made good by whoever has
the lock next, and never charged twice.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, TypeAdapter
from pydantic.dataclasses import dataclass

from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.files import OWNER_ONLY, Seal, WrongSeal, transaction, write_bytes
from veilrec.privacy.budget import Budget, Cost

_SCHEMA = 1
_APPLICATION = 0x7665696C  # "veil"
_SLOT = 8192  # bytes of the mirror per record: a digest, the record, spaces
_DIGEST = 32
_SETTINGS = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "PRAGMA fullfsync=ON", "PRAGMA secure_delete=ON")
_TABLES = (
    "CREATE TABLE ledger (only INTEGER PRIMARY KEY CHECK (only = 1), record TEXT NOT NULL)",
    "CREATE TABLE memo (period INTEGER, key TEXT, message BLOB NOT NULL, PRIMARY KEY (period, key))",
    "CREATE TABLE kept (name TEXT PRIMARY KEY, content BLOB NOT NULL)",
    f"PRAGMA application_id={_APPLICATION}",
    f"PRAGMA user_version={_SCHEMA}",
)
_RECORD = ConfigDict(extra="forbid", ser_json_inf_nan="constants")


class LedgerError(VeilrecError):
    """The ledger cannot be trusted or written; nothing was released."""


@dataclass(frozen=True, config=_RECORD)
class BudgetAccount:
    """A budget and what was spent of it."""

    budget: Budget
    in_period: Cost
    in_lifetime: Cost
    messages: NonNegativeInt  # messages charged to this account, ever
    not_covered: NonNegativeInt  # messages that left and whose statement says nothing about this account's unit, ever


@dataclass(frozen=True, config=_RECORD)
class Record:
    """Everything a ledger knows but the memoised messages."""

    sequence: NonNegativeInt  # the number of changes so far
    period: Annotated[int, Field(ge=0, lt=2**63)]
    run_seconds: NonNegativeFloat  # time known to have passed since the last refill
    uptime: NonNegativeFloat  # the client's uptime at the last change
    minimum_period_seconds: NonNegativeFloat
    simulation: bool
    accounts: tuple[BudgetAccount, ...]


_RECORDS = TypeAdapter(Record)


class _Plain:
    """No seal: as it is."""

    def close(self, content: bytes, what: str) -> bytes:
        return content

    def open(self, sealed: bytes, what: str) -> bytes:
        return sealed


class Change:
    """The record under the write lock, the memo, and what is kept beside them; set `record` to change it."""

    def __init__(self, database: sqlite3.Connection, record: Record, seal: Seal | _Plain) -> None:
        self._database = database
        self._seal = seal
        self.record = record

    def message(self, key: str) -> bytes | None:
        """The message memoised in this period."""
        query = "SELECT message FROM memo WHERE period = ? AND key = ?"
        row = self._database.execute(query, (self.record.period, key)).fetchone()
        return None if row is None else self._seal.open(bytes(row[0]), self._memo(key))

    def memoise(self, key: str, message: bytes) -> None:
        """Keep a message for the rest of this period, and forget those of earlier ones."""
        self._database.execute("DELETE FROM memo WHERE period < ?", (self.record.period,))
        sealed = self._seal.close(message, self._memo(key))
        self._database.execute("INSERT INTO memo VALUES (?, ?, ?)", (self.record.period, key, sealed))

    def _memo(self, key: str) -> str:
        return f"memo {self.record.period} {key}"

    def kept(self, name: str) -> bytes | None:
        """What is kept under a name."""
        row = self._database.execute("SELECT content FROM kept WHERE name = ?", (name,)).fetchone()
        return None if row is None else self._seal.open(bytes(row[0]), f"kept {name}")

    def keep(self, name: str, content: bytes) -> None:
        """Keep something under a name, in the place of what was there."""
        sealed = self._seal.close(content, f"kept {name}")
        self._database.execute("INSERT OR REPLACE INTO kept VALUES (?, ?)", (name, sealed))


class LedgerStore:
    """One open ledger file; safe for threads and processes, but not to be carried over a fork."""

    def __init__(self, path: Path, *, lock_timeout_seconds: float = 10.0, seal: Seal | None = None) -> None:
        self.path = path
        self._seal = seal or _Plain()
        self._mirror = _mirror_of(path, self._seal)
        self._lock = threading.Lock()
        self._process = os.getpid()
        with self._refusing():
            self._database = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw",
                uri=True,
                timeout=lock_timeout_seconds,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                for setting in _SETTINGS:
                    self._database.execute(setting)
            except sqlite3.Error:
                self._database.close()
                raise

    @classmethod
    def create(
        cls, path: Path, record: Record, *, seal: Seal | None = None, keep: Mapping[str, bytes] | None = None
    ) -> LedgerStore:
        """A new ledger; refuses where there is one, or was one whose mirror remains."""
        if not path.exists():
            _mirror_of(path, seal or _Plain()).check_nothing_spent()
        try:
            # An empty file is an empty database; SQLite's other files take its permissions over.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise LedgerError(f"{path}: cannot be written: {error.strerror}") from None
        store = cls(path, seal=seal)
        try:
            store._fill(record, keep or {})
        except LedgerError:
            store.close()
            raise
        return store

    def _fill(self, record: Record, keep: Mapping[str, bytes]) -> None:
        with self._transaction() as database:
            if database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise LedgerError(f"{self.path}: there is a ledger already: open it, do not create it")
            self._mirror.check_nothing_spent()
            for statement in _TABLES:
                database.execute(statement)
            text = _encoded(record, self._seal)
            self._mirror.create(text)
            database.execute("INSERT INTO ledger VALUES (1, ?)", (text,))
            change = Change(database, record, self._seal)
            for name, content in keep.items():
                change.keep(name, content)

    @staticmethod
    def was_made(path: Path) -> bool:
        """Whether there is a ledger, whatever state it is in: a file that a crash left empty is none yet."""
        if not path.is_file():
            return False
        database = sqlite3.connect(path, timeout=10.0)
        try:
            return bool(database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
        except sqlite3.Error:
            return True
        finally:
            database.close()

    @classmethod
    def open(cls, path: Path, *, lock_timeout_seconds: float, seal: Seal | None = None) -> LedgerStore:
        """An existing ledger, checked."""
        if not path.is_file():
            raise LedgerError(f"{path}: there is no ledger here: create one, unless it was lost")
        store = cls(path, lock_timeout_seconds=lock_timeout_seconds, seal=seal)
        try:
            store._check_file()
        except LedgerError:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close the file; whatever was charged is on disk already."""
        self._database.close()

    @contextmanager
    def changing(self) -> Iterator[Change]:
        """Lock, read, and on leaving without an error write what was changed, durably."""
        with self._transaction() as database:
            before = self._newest(database)
            change = Change(database, before, self._seal)
            yield change
            is_new = change.record is not before
            if is_new:  # one change, however many charges are in it
                record = replace(change.record, sequence=before.sequence + 1)
                database.execute("UPDATE ledger SET record = ?", (_encoded(record, self._seal),))
        if is_new:
            with self._transaction() as database:
                self._newest(database)  # the mirror follows: not before that may anything leave

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if os.getpid() != self._process:
            raise LedgerError(f"{self.path}: the ledger was opened by another process: open it in this one")
        with self._lock, self._refusing(), transaction(self._database):
            yield self._database

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, WrongSeal) as error:
            raise LedgerError(f"{self.path}: the ledger cannot be used ({error}): nothing was released") from error

    def _check_file(self) -> None:
        with self._transaction() as database:
            application = database.execute("PRAGMA application_id").fetchone()[0]
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if application != _APPLICATION:
                raise LedgerError(f"{self.path}: this is not a ledger")
            if version != _SCHEMA:
                raise LedgerError(
                    f"{self.path}: format {version} is not the {_SCHEMA} that this veilrec knows: update it"
                )
            if database.execute("PRAGMA quick_check").fetchone()[0] != "ok":
                raise LedgerError(f"{self.path}: the ledger is damaged: nothing may be released")
            self._newest(database)

    def _newest(self, database: sqlite3.Connection) -> Record:
        """The newer of the two records; a mirror that is one change behind is brought up to date."""
        row = database.execute("SELECT record FROM ledger").fetchone()
        if row is None:
            raise LedgerError(f"{self.path}: the ledger has no record: nothing may be released")
        ours, mirrored = _decoded(row[0], self.path, self._seal), self._mirror.read()
        if mirrored.sequence == ours.sequence - 1:
            self._mirror.write(ours.sequence, row[0])
            return ours
        if mirrored.sequence < ours.sequence or (mirrored.sequence == ours.sequence and mirrored != ours):
            raise LedgerError(
                f"{self.path}: the ledger and {self._mirror.path.name} do not belong together (one was "
                "restored or changed): what was spent is not known, so nothing may be released"
            )
        return mirrored


class _Mirror:
    """The newest record once more, in two slots written in turn: a torn write leaves the other one."""

    def __init__(self, path: Path, seal: Seal | _Plain) -> None:
        self.path = path
        self._seal = seal

    def create(self, text: str) -> None:
        write_bytes(self.path, _slot(text).ljust(2 * _SLOT), mode=OWNER_ONLY)

    def check_nothing_spent(self) -> None:
        if self.path.exists() and self.read().sequence > 0:
            raise LedgerError(f"{self.path}: the ledger of this mirror is gone, but what it spent stays spent")

    def write(self, sequence: int, text: str) -> None:
        with self.path.open("r+b", buffering=0) as file:
            file.seek((sequence % 2) * _SLOT)
            file.write(_slot(text))
            os.fsync(file.fileno())

    def read(self) -> Record:
        content = self.path.read_bytes()
        records = []
        for start in (0, _SLOT):
            digest, text = content[start : start + _DIGEST], content[start + _DIGEST : start + _SLOT]
            if hashlib.sha256(text).digest() == digest:
                records.append(_decoded(text.decode(), self.path, self._seal))
        if not records:
            raise LedgerError(f"{self.path}: the ledger's mirror is damaged: nothing may be released")
        return max(records, key=lambda record: record.sequence)


def _mirror_of(path: Path, seal: Seal | _Plain) -> _Mirror:
    return _Mirror(path.with_name(f"{path.name}.seq"), seal)


def _slot(text: str) -> bytes:
    padded = text.encode().ljust(_SLOT - _DIGEST)
    if len(padded) > _SLOT - _DIGEST:
        raise LedgerError("the ledger's record is too long for its mirror: nothing was released")
    return hashlib.sha256(padded).digest() + padded


def _encoded(record: Record, seal: Seal | _Plain) -> str:
    content = _RECORDS.dump_json(record)
    return content.decode() if isinstance(seal, _Plain) else b64encode(seal.close(content, "record")).decode()


def _decoded(text: str, path: Path, seal: Seal | _Plain) -> Record:
    try:
        content = text if isinstance(seal, _Plain) else seal.open(b64decode(text), "record")
        return _RECORDS.validate_json(content)
    except (ValueError, BadInput, WrongSeal) as error:
        raise LedgerError(f"{path}: the ledger's record cannot be read: nothing may be released") from error
