"""What somebody has read, on the device and nowhere else: an SQLite file whose every row is encrypted.

Without the key, the file tells how many rows there are. Forgetting leaves nothing of them in the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from veilrec._sqlite import transaction
from veilrec.errors import BadInput, VeilrecError
from veilrec.privacy.seal import Seal, WrongSeal

_APPLICATION = 0x76656868  # "vehh"
_SETTINGS = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "PRAGMA secure_delete=ON")
_MOST = 100_000  # clicks that are kept; the oldest go first
_LONGEST_ID = 1024


class HistoryStore:
    """The items that somebody has used, the latest last; each once, at the place of its latest use."""

    def __init__(self, path: Path, seal: Seal) -> None:
        self._path, self._seal = path, seal
        try:
            path.touch(mode=0o600)
            self._connection = sqlite3.connect(path, isolation_level=None)
            for line in _SETTINGS:
                self._connection.execute(line)
            self._check()
        except (sqlite3.Error, OSError) as error:
            raise VeilrecError(f"{path} cannot be used as a history ({error}): give another place for it") from None

    def _check(self) -> None:
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application != _APPLICATION and tables:
            raise VeilrecError(f"{self._path} is not a history of veilrec: give another place for it")
        self._connection.execute(f"PRAGMA application_id={_APPLICATION}")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS clicks (number INTEGER PRIMARY KEY AUTOINCREMENT, item BLOB NOT NULL)"
        )

    def items(self) -> list[str]:
        """The ids, the latest last."""
        rows = self._connection.execute("SELECT number, item FROM clicks ORDER BY number").fetchall()
        try:
            opened = [self._seal.open(item, f"click {number}").decode() for number, item in rows]
        except WrongSeal:
            raise VeilrecError(f"{self._path} does not open with this device's key: nothing of it is used") from None
        return list(reversed(dict.fromkeys(reversed(opened))))

    def add(self, *items: str) -> None:
        """Read these, in this order; on disk when this returns."""
        for item in items:
            if not item or len(item.encode()) > _LONGEST_ID:
                raise BadInput(f"an item has an id of 1 to {_LONGEST_ID} bytes, not {item[:40]!r}")
        with self._changing():
            for item in items:
                (last,) = self._connection.execute("SELECT coalesce(max(number), 0) FROM clicks").fetchone()
                number = max(last, self._last()) + 1
                sealed = self._seal.close(item.encode(), f"click {number}")
                self._connection.execute("INSERT INTO clicks VALUES (?, ?)", (number, sealed))
            self._connection.execute(
                "DELETE FROM clicks WHERE number <= (SELECT coalesce(max(number), 0) FROM clicks) - ?", (_MOST,)
            )

    def _last(self) -> int:
        found = self._connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'clicks'").fetchone()
        return int(found[0]) if found else 0

    def forget(self) -> None:
        """Everything, also what the file would keep of deleted rows."""
        with self._changing():
            self._connection.execute("DELETE FROM clicks")
        self._connection.execute("VACUUM")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Whatever was added is on disk already."""
        self._connection.close()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            with transaction(self._connection):
                yield
        except sqlite3.Error as error:
            raise VeilrecError(f"{self._path} cannot be written ({error}): nothing was changed") from None
