"""How far a coordinator that does not run has come: what its databases say, which nothing that ended it could spoil."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from veilrec.federate.coordinator.driver import added
from veilrec.federate.coordinator.process import last_status
from veilrec.federate.coordinator.registry import FILE as REGISTRY
from veilrec.federate.federation import COORDINATOR, Federation

_ADDED = ("messages", "down_bytes", "up_bytes", "report_bytes")
_PEOPLE = (
    "SELECT sum(length(invitation) > 0), sum(length(invitation) = 0), count(key), sum(revoked) FROM places"
    " WHERE role != 'helper'"
)


def status_at_rest(folder: Path, made: Federation) -> dict[str, Any]:
    """The entries of a running coordinator's status that are on disk; nobody is here, and no deadline runs."""
    place, told = folder / COORDINATOR, last_status(folder)
    if told.get("stage") == "over":  # it ended by itself, so that nothing has come since
        return told | {"seconds_left": None}
    try:
        found = _read(place / "coordinator.sqlite", "SELECT place FROM run")
        if not found:
            return _not_started(made)
        stands = json.loads(found[0][0])
        rounds = [json.loads(row[0]) for row in _read(place / "coordinator.sqlite", "SELECT report FROM history")]
        came = {inbox: _count(place / "coordinator.sqlite", inbox) for inbox in ("messages", "reports")}
        people = _read(place / REGISTRY, _PEOPLE)[0]
    except (sqlite3.Error, ValueError, LookupError):  # being started at this moment, or not whole, which `up` then says
        return (told or _not_started(made)) | {"seconds_left": None}
    return {
        "federation": made.id,
        "round": stands["number"],
        "rounds": made.rounds,
        "stage": stands["stage"],
        "seconds_left": None,
        "devices": dict(zip(("invited", "free", "enrolled", "revoked"), people, strict=True)) | {"here": 0},
        "this_round": came,
        "void": sum(report["void"] for report in rounds),
        **{name: sum(report[name] for report in rounds) for name in _ADDED},
        "refused": added(report["refused"] for report in rounds),
    }


def _not_started(made: Federation) -> dict[str, Any]:
    return {"round": 0, "rounds": made.rounds, "stage": "not started"}


def _read(path: Path, query: str) -> list[Any]:
    """What a database says that nobody may change here; nothing if it was never made."""
    if not path.is_file():
        return []
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as database:
        return database.execute(query).fetchall()


def _count(path: Path, table: str) -> int:
    return int(_read(path, f"SELECT count(*) FROM {table}")[0][0])  # noqa: S608 - one of two names
