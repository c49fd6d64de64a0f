from __future__ import annotations

import sqlite3

import pytest

from veilrec.core.files import transaction


@pytest.fixture
def database() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:", isolation_level=None)
    made.execute("PRAGMA foreign_keys = ON")
    made.execute("CREATE TABLE parent (n INTEGER PRIMARY KEY)")
    made.execute("CREATE TABLE child (n INTEGER REFERENCES parent (n) DEFERRABLE INITIALLY DEFERRED)")
    return made


def rows(database: sqlite3.Connection) -> tuple[list[int], list[int]]:
    parents, children = (database.execute(q).fetchall() for q in ("SELECT n FROM parent", "SELECT n FROM child"))
    return [n for (n,) in parents], [n for (n,) in children]


def test_all_of_it_or_nothing(database: sqlite3.Connection) -> None:
    with transaction(database):
        database.execute("INSERT INTO parent VALUES (1)")
    with pytest.raises(KeyError), transaction(database):
        database.execute("INSERT INTO parent VALUES (2)")
        raise KeyError
    assert rows(database) == ([1], [])


def test_an_end_that_is_refused_leaves_nothing_open(database: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError), transaction(database):  # the constraint is looked at by COMMIT
        database.execute("INSERT INTO child VALUES (7)")
    assert not database.in_transaction
    with transaction(database):
        database.execute("INSERT INTO parent VALUES (7)")
    assert rows(database) == ([7], [])
