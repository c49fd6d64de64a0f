"""Who may take part: places, invitations that were handed out, and the keys of those who came.

A place that is kept for somebody who is not known yet has no invitation: whoever comes for it is sent away.

A database of its own (`registry.sqlite`), so that somebody can be revoked while the coordinator runs. Of an invitation
the public half is kept: it is used up by the first key that it endorses; the same key may come again.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.files import Closing, transaction
from veilrec.federation.federation import FIRST_VALIDATOR
from veilrec.federation.identity import check_endorsement
from veilrec.wire.signing import BadSignature

FILE = "registry.sqlite"
Role = Literal["trainer", "validator", "helper"]
_TABLE = (
    "CREATE TABLE IF NOT EXISTS places (id TEXT PRIMARY KEY, role TEXT NOT NULL, place INTEGER NOT NULL,"
    " invitation BLOB NOT NULL, key BLOB, endorsement BLOB, revoked INTEGER NOT NULL DEFAULT 0, UNIQUE (role, place))"
)


_ENTRY = "SELECT id, role, place, key, endorsement, revoked, length(invitation) = 0 FROM places"


@dataclass(frozen=True)
class RegistryEntry:
    """A client's place in a federation, and who has it."""

    client: str
    role: Role
    number: int  # among those of its role
    key: bytes | None = None  # None: nobody has come with its invitation yet
    endorsement: bytes | None = None  # of the key, by the invitation
    revoked: bool = False
    free: bool = False  # nobody was invited to it yet

    @property
    def member(self) -> int:
        """Number in secure sums, which those who train and validation clients have apart."""
        return self.number + (FIRST_VALIDATOR if self.role == "validator" else 0)


class NotInvited(VeilrecError):
    """The sender was not invited, or was revoked."""


class Registry(Closing):
    """The places of one federation."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        if not folder.is_dir():
            raise BadInput(f"{folder} is not there: the coordinator's folder lies where `federate init` was run")
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        self._lock = threading.Lock()
        self._database = sqlite3.connect(self.path, timeout=10.0, isolation_level=None, check_same_thread=False)
        try:
            for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", _TABLE):
                self._database.execute(statement)
        except sqlite3.DatabaseError as error:
            self._database.close()
            raise BadInput(f"{self.path} is no list of clients ({error}): bring back the one that init wrote") from None

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def invite(self, client: str, role: Role, number: int, invitation: bytes = b"") -> None:
        """Reserve a place for an invitation; without one, for a client that is invited later."""
        values = (client, role, number, invitation)
        with self._lock:
            self._database.execute("INSERT INTO places (id, role, place, invitation) VALUES (?, ?, ?, ?)", values)

    def hand_out(self, client: str, invitation: bytes) -> None:
        """Assign a free place to an invitation; raise BadInput for one that is not free."""
        with self._lock:
            statement = "UPDATE places SET invitation = ? WHERE id = ? AND length(invitation) = 0"
            changed = self._database.execute(statement, (invitation, client)).rowcount
        if not changed:
            raise BadInput(f"the place of {client} was handed out in the meantime: invite again")

    def check(self, federation: str, client: str, key: bytes, endorsement: bytes) -> None:
        """Refuse whoever was not invited, without a transaction: strangers must not hold up clients."""
        with self._lock:
            row = self._database.execute("SELECT invitation FROM places WHERE id = ?", (client,)).fetchone()
        if row is None:
            raise NotInvited("this invitation is not one of this federation")
        if not row[0]:
            raise NotInvited("nobody has been invited to this place yet")
        try:
            check_endorsement(row[0], federation, client, key, endorsement)
        except BadSignature:
            raise NotInvited("this invitation is not one of this federation") from None

    def enrol(self, federation: str, client: str, key: bytes, endorsement: bytes) -> RegistryEntry:
        """Tie a key to a place; the same key again gets the same answer, another one does not."""
        self.check(federation, client, key, endorsement)
        with self._lock, transaction(self._database):
            query = "SELECT role, place, key, revoked FROM places WHERE id = ?"
            role, number, known, revoked = self._database.execute(query, (client,)).fetchone()
            if revoked:
                raise NotInvited("this device was revoked")
            if known is not None and known != key:
                raise NotInvited("this invitation was used already, with another key")
            if known is None:
                values = (key, endorsement, client)
                self._database.execute("UPDATE places SET key = ?, endorsement = ? WHERE id = ?", values)
        return RegistryEntry(client, role, number, key, endorsement)

    def find(self, client: str) -> RegistryEntry | None:
        """Look up a place by name; None if there is none."""
        with self._lock:
            row = self._database.execute(f"{_ENTRY} WHERE id = ?", (client,)).fetchone()
        return None if row is None else _entry(row)

    def entries(self, role: Role | None = None) -> list[RegistryEntry]:
        """Return all places, or those of one role: clients that train, validation clients, helpers, each by number."""
        with self._lock:
            rows = self._database.execute(f"{_ENTRY} ORDER BY role DESC, place").fetchall()
        return [entry for entry in map(_entry, rows) if role in (None, entry.role)]

    def revoke(self, client: str) -> None:
        """Permanently reject a client."""
        with self._lock:
            changed = self._database.execute("UPDATE places SET revoked = 1 WHERE id = ?", (client,)).rowcount
        if not changed:
            known = [entry.client for entry in self.entries()]
            some = f"{known[0]} to {known[-1]}" if known else "none"
            raise BadInput(f"no client {client!r} in this federation: it has {some}")


def _entry(row: tuple[Any, ...]) -> RegistryEntry:
    client, role, number, key, endorsement, revoked, free = row
    return RegistryEntry(client, role, number, key, endorsement, bool(revoked), bool(free))
