"""Durable state of a coordinator: clients, position of the run, and received messages.

One SQLite database (write-ahead log, synchronous=FULL): a message is acknowledged once its row is committed, and a
round moves on in one transaction. Models are files beside it: written, synced, renamed, and only then named by a row.
The database is locked while a coordinator has it open: two on one folder would count every message twice.
"""

from __future__ import annotations

import hmac
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from veilrec.core.arrays import Doubles
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.files import OWNER_ONLY, key_in, replacing, sha256, transaction, write_bytes, write_text
from veilrec.core.schema import place_of_sum
from veilrec.core.state import StoredState
from veilrec.server.round_specs import Tally

Inbox = Literal["messages", "reports", "gains"]
Enrolled = Literal["clients", "validators"]

_APPLICATION = 0x7665696D
_SCHEMA = 4
TRANSCRIPT_BYTES = 1 << 26  # of all transcripts: the oldest go first
_SETTINGS = (
    "PRAGMA page_size=32768",  # of a new file: messages are long, and the system is asked for every page
    "PRAGMA locking_mode=EXCLUSIVE",
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA fullfsync=ON",
    "PRAGMA secure_delete=ON",
)
_LOG_BYTES = 1 << 22  # of the write-ahead log before it is emptied: what was deleted stays in it until then
_TABLES = (
    "CREATE TABLE run (only INTEGER PRIMARY KEY CHECK (only = 1), plan TEXT NOT NULL, secret TEXT NOT NULL,"
    " place TEXT NOT NULL)",
    "CREATE TABLE clients (number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL)",
    "CREATE TABLE cohort (client INTEGER PRIMARY KEY)",
    "CREATE TABLE messages (client INTEGER PRIMARY KEY, content BLOB NOT NULL)",
    "CREATE TABLE reports (client INTEGER PRIMARY KEY, content BLOB NOT NULL)",
    "CREATE TABLE validators (number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL)",
    "CREATE TABLE gains (client INTEGER PRIMARY KEY, content BLOB NOT NULL)",
    "CREATE TABLE selection (only INTEGER PRIMARY KEY CHECK (only = 1), state BLOB NOT NULL)",
    "CREATE TABLE invitation (only INTEGER PRIMARY KEY CHECK (only = 1), content BLOB NOT NULL)",
    "CREATE TABLE tally (only INTEGER PRIMARY KEY CHECK (only = 1), counts BLOB NOT NULL, reports INTEGER NOT NULL)",
    "CREATE TABLE history (number INTEGER PRIMARY KEY, report TEXT NOT NULL)",
    "CREATE TABLE transcripts (number INTEGER PRIMARY KEY, content BLOB NOT NULL)",
    f"PRAGMA application_id={_APPLICATION}",
    f"PRAGMA user_version={_SCHEMA}",
)


class RoundState(StrEnum):
    """The durable state of a round; values are what the database holds.

    | state | left by | to |
    |---|---|---|
    | `IDLE` | drawing the cohort | `REPORTING` |
    | `REPORTING` | enough reports in plaintext, or none due | `OPEN`; `OPENING` with secure aggregation |
    | `REPORTING` | enough masked reports | `SUMMING_REPORTS` |
    | `SUMMING_REPORTS` | the sum, or a sum that failed (the next attempt) | `REPORTING` |
    | `OPENING` | keys of all helpers, or keys and shares of enough clients | `OPEN` |
    | `OPENING` | too few clients | `CLOSING`, void |
    | `OPEN` | all updates, enough of them, or the deadline | `CLOSING` |
    | `CLOSING` | the sum, its noise and the server step; nothing of these if void | `IDLE` of the next round |
    | `IDLE` after the last round | the gains of held-out validation clients | `VALIDATED` |
    | `IDLE` after the last round | enough masked gains | `SUMMING_GAINS` |
    | `SUMMING_GAINS` | the sum, or a sum that failed (the next attempt) | `VALIDATED`, or `IDLE` |
    """

    IDLE = "between rounds"
    REPORTING = "asking"
    SUMMING_REPORTS = "counting"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    SUMMING_GAINS = "comparing"
    VALIDATED = "judged"


_STEPS = {RoundState.OPENING: 1, RoundState.OPEN: 1, RoundState.CLOSING: 2, RoundState.VALIDATED: 1}


@dataclass(frozen=True)
class RunPosition:
    """Position of a run: the round, its state, and its counters."""

    number: int = 0  # of the round that is open, or comes next
    stage: RoundState = RoundState.IDLE
    void: bool = False  # of a round that is closing: whether too few came
    model: str = ""  # the file of the newest model; none yet
    model_sha256: str = ""  # of that file
    report_bytes: int = 0  # that came in for this round
    told_bytes: int = 0  # that went to clients for reports under masks
    attempt: int = 0  # of adding up reports under masks
    differing: tuple[str, ...] = ()  # clients that acted on something else than the others: the round is void
    wanted: int = 0  # messages that are enough, where more clients were drawn than are needed; 0: all of the cohort

    @property
    def steps(self) -> int:
        """Number of irreversible transitions so far: rounds that opened, and rounds whose messages are fixed."""
        return 2 * self.number + _STEPS.get(self.stage, 0)

    @classmethod
    def from_json(cls, content: str) -> RunPosition:
        """Read what `RoundStore.move` wrote."""
        fields = json.loads(content)
        differing = tuple(fields.get("differing", ()))
        return cls(**{**fields, "stage": RoundState(fields["stage"]), "differing": differing})


@dataclass(frozen=True)
class RoundReport:
    """Report of a finished round: participation, bytes on the network, refusals."""

    number: int
    clients: int  # of the cohort
    messages: int  # that were counted
    void: bool  # whether too few came, so that nothing was released
    down_bytes: int
    up_bytes: int  # reports included
    report_bytes: int
    refused: Mapping[str, int] = field(default_factory=dict)  # by reason, since the coordinator was last started
    declined: Mapping[str, int] = field(default_factory=dict)  # clients that took no part, by reason, likewise
    differing: tuple[str, ...] = ()  # clients that acted on something else than the others

    @classmethod
    def from_json(cls, content: str) -> RoundReport:
        """Read what `RoundStore.add_history` wrote."""
        fields = json.loads(content)
        return cls(**{**fields, "differing": tuple(fields["differing"])})


def totals(history: Iterable[RoundReport]) -> dict[str, Any]:
    """Add up rounds that are over: void ones, messages, bytes, and what was refused by reason."""
    rounds, refused, declined = list(history), Counter[str](), Counter[str]()
    for report in rounds:
        refused.update(report.refused)
        declined.update(report.declined)
    differing = {str(report.number): list(report.differing) for report in rounds if report.differing}
    names = ("void", "messages", "down_bytes", "up_bytes", "report_bytes")
    return {name: sum(getattr(report, name) for report in rounds) for name in names} | {
        "refused": dict(refused),
        "declined": dict(declined),
        "differing": differing,
    }


_DATABASE, _SECRET, _MARK = "coordinator.sqlite", "secret", "last-step"


def put_secret(folder: Path, secret: bytes) -> None:
    """Make a folder ready for a coordinator that draws from this secret, and has not begun."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_text(folder / _MARK, "0\n", mode=OWNER_ONLY)
    write_bytes(folder / _SECRET, secret, mode=OWNER_ONLY)


def secret_of(folder: Path) -> bytes:
    """The secret of a run, made at random where nothing has begun; a run that lacks a part of itself is refused.

    A new secret would draw other noise for a round that is closing, and a new database the same noise for other sums.
    """
    there = {name: (folder / name).exists() for name in (_DATABASE, _SECRET, _MARK)}
    if any(there.values()) and not there[_MARK]:
        raise BadInput(f"{folder / _MARK} is gone, which says how far the run has come: bring it back")
    if not there[_SECRET] and (there[_DATABASE] or (there[_MARK] and _marked(folder))):
        raise BadInput(f"{folder / _SECRET} is gone, and the run has begun: bring it back")
    if not there[_MARK]:
        write_text(folder / _MARK, "0\n", mode=OWNER_ONLY)
    return key_in(folder / _SECRET)


def _marked(folder: Path) -> int:
    """How far the run has come, as noted outside of its database."""
    path = folder / _MARK
    try:
        text = path.read_text(encoding="ascii")
        return int(text.removesuffix("\n") if text.endswith("\n") else "")  # one without its end was cut short
    except FileNotFoundError:
        raise BadInput(f"{path} is gone, which says how far the run has come: bring it back") from None
    except (OSError, ValueError):
        raise BadInput(f"{path} is damaged, which says how far the run has come: bring it back") from None


class RoundStore:
    """The database and the model files of one coordinator, whose noise is drawn from `secret`."""

    def __init__(self, folder: Path, plan: str, secret: bytes) -> None:
        self.folder = folder
        path = folder / _DATABASE
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite's other files take its permissions over
        self._database = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            self._claim(path)
            with transaction(self._database):
                self._fill_or_check(path, plan, hmac.digest(secret, b"coordinator", "sha256").hex())
            self.place = RunPosition.from_json(self._one("SELECT place FROM run"))
            self._refuse_older_copy(path)
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            self._database.close()
            raise BadInput(f"{path}: the database is damaged ({error}): bring back the newest copy") from None
        except BaseException:
            self._database.close()
            raise

    def _claim(self, path: Path) -> None:
        try:
            for setting in _SETTINGS:
                self._database.execute(setting)
            pages = _LOG_BYTES // int(self._one("PRAGMA page_size"))
            self._database.execute(f"PRAGMA wal_autocheckpoint={pages}")
            self._database.execute("BEGIN EXCLUSIVE")
            self._database.execute("COMMIT")
            if (found := self._one("PRAGMA quick_check")) != "ok":
                raise BadInput(f"{path}: the database is damaged ({found}): bring back the newest copy")
        except sqlite3.OperationalError as error:
            raise BadInput(f"{path}: cannot be used ({error}): is another coordinator running on it?") from None
        except sqlite3.DatabaseError as error:
            raise BadInput(f"{path}: this is not the database of a coordinator ({error})") from None

    def _fill_or_check(self, path: Path, plan: str, secret: str) -> None:
        if not self._one("SELECT count(*) FROM sqlite_master"):
            for statement in _TABLES:
                self._database.execute(statement)
            begun = json.dumps(asdict(RunPosition()))
            self._database.execute("INSERT INTO run VALUES (1, ?, ?, ?)", (plan, secret, begun))
        if (self._one("PRAGMA application_id"), self._one("PRAGMA user_version")) != (_APPLICATION, _SCHEMA):
            raise BadInput(f"{path}: this is not the database of a coordinator of this veilrec")
        if self._one("SELECT plan FROM run") != plan:
            raise BadInput(f"{path}: this run was started with another plan: use its own, or another folder")
        if not hmac.compare_digest(self._one("SELECT secret FROM run"), secret):
            raise BadInput(f"{path.with_name(_SECRET)} is not the secret that this run was started with: bring it back")

    def close(self) -> None:
        """Close the database; whatever was acknowledged is on disk already."""
        self._database.close()

    @contextmanager
    def moving(self, place: RunPosition) -> Iterator[None]:
        """Commit the changes in this block together with a new position of the run, or none of them."""
        if place.model:
            is_same = place.model == self.place.model
            digest = self.place.model_sha256 if is_same else sha256([self.folder / place.model])
            place = replace(place, model_sha256=digest)
        with transaction(self._database):
            yield
            self._database.execute("UPDATE run SET place = ?", (json.dumps(asdict(place)),))
        self.place = place

    def _one(self, query: str, values: Sequence[Any] = ()) -> Any:
        row = self._database.execute(query, values).fetchone()
        return None if row is None else row[0]

    # Clients

    def enrol(self, client_id: str, who: Enrolled = "clients") -> int:
        """The number of a training or validation client; new or known."""
        with transaction(self._database):
            known = self.number_of(client_id, who)
            if known is None:
                known = self.count(who)
                self._database.execute(f"INSERT INTO {who} VALUES (?, ?)", (known, client_id))  # noqa: S608
            return known

    def number_of(self, client_id: str, who: Enrolled = "clients") -> int | None:
        """The number of a training or validation client; None if it is not enrolled."""
        number: int | None = self._one(f"SELECT number FROM {who} WHERE id = ?", (client_id,))  # noqa: S608
        return number

    def everybody(self, who: Enrolled = "clients") -> tuple[str, ...]:
        """The ids of all training or validation clients, by their numbers."""
        return self._ids(f"SELECT id FROM {who} ORDER BY number")  # noqa: S608

    def _ids(self, query: str) -> tuple[str, ...]:
        return tuple(row[0] for row in self._database.execute(query))

    def set_selection(self, state: Doubles) -> None:
        """Store the outcome of model selection."""
        self._database.execute("INSERT INTO selection VALUES (1, ?)", (state.astype("<f8").tobytes(),))

    def selection(self) -> Doubles | None:
        """Stored verdict of the validation clients; None before it."""
        state = self._one("SELECT state FROM selection")
        return None if state is None else np.frombuffer(state, "<f8").astype(np.float64)

    def set_cohort(self, clients: Sequence[int]) -> None:
        """Store the cohort of the round."""
        self._database.execute("DELETE FROM cohort")
        self._database.executemany("INSERT INTO cohort VALUES (?)", ((int(client),) for client in clients))

    def cohort(self) -> tuple[str, ...]:
        """The ids of the clients that the round is for, by their numbers."""
        return self._ids("SELECT id FROM clients JOIN cohort ON number = client ORDER BY number")

    def in_cohort(self, number: int) -> bool:
        """Whether the round is for a client."""
        return self._one("SELECT 1 FROM cohort WHERE client = ?", (number,)) is not None

    # What came in

    def content(self, inbox: Inbox, client: int) -> bytes | None:
        """Stored message of a client; None if there is none."""
        content: bytes | None = self._one(f"SELECT content FROM {inbox} WHERE client = ?", (client,))  # noqa: S608
        return content

    def put(self, inbox: Inbox, client: int, content: bytes) -> None:
        """Keep what a client has sent; it is on disk when this returns."""
        with transaction(self._database):
            self._database.execute(f"INSERT INTO {inbox} VALUES (?, ?)", (client, content))  # noqa: S608

    def contents(self, inbox: Inbox) -> Iterator[bytes]:
        """Iterate over the messages of an inbox, in the order of client numbers."""
        for row in self._database.execute(f"SELECT content FROM {inbox} ORDER BY client"):  # noqa: S608
            yield row[0]

    def senders(self, inbox: Inbox) -> tuple[str, ...]:
        """The ids of those who have sent something, by their numbers."""
        who = "validators" if inbox == "gains" else "clients"
        return self._ids(f"SELECT id FROM {who} JOIN {inbox} ON number = client ORDER BY number")  # noqa: S608

    def count(self, table: Inbox | Enrolled | Literal["cohort"]) -> int:
        """Count the messages of an inbox, the clients that are enrolled, or those of the cohort."""
        return int(self._one(f"SELECT count(*) FROM {table}"))  # noqa: S608

    def amount(self, inbox: Inbox) -> tuple[int, int]:
        """Count the messages of an inbox, and their bytes."""
        query = f"SELECT count(*), coalesce(sum(length(content)), 0) FROM {inbox}"  # noqa: S608
        count, size = self._database.execute(query).fetchone()
        return count, size

    def empty(self, inbox: Inbox) -> None:
        """Forget all that came."""
        self._database.execute(f"DELETE FROM {inbox}")  # noqa: S608

    def tally(self) -> Tally | None:
        """Stored tally of the reports, noise included; None before it."""
        row = self._database.execute("SELECT counts, reports FROM tally").fetchone()
        return None if row is None else Tally(np.frombuffer(row[0], "<f8").astype(np.float64), row[1])

    def set_invitation(self, content: bytes) -> None:
        """Keep what the clients of a secure sum get beside the model."""
        self._database.execute("INSERT OR REPLACE INTO invitation VALUES (1, ?)", (content,))

    def invitation(self) -> bytes | None:
        """Stored invitation to a secure sum; None without secure aggregation."""
        content: bytes | None = self._one("SELECT content FROM invitation")
        return content

    def clear_tally(self) -> None:
        """Forget what earlier reports came to."""
        self._database.execute("DELETE FROM tally")

    def set_tally(self, counts: Doubles, reports: int) -> None:
        """Keep what the reports came to."""
        values = (counts.astype("<f8").tobytes(), reports)
        self._database.execute("INSERT OR REPLACE INTO tally VALUES (1, ?, ?)", values)

    # Models and rounds that are over

    def write_model(self, state: Mapping[str, NDArray[Any]], number: int) -> str:
        """A file with the model after so many rounds; nothing counts on it before a row names it."""
        name = f"model-{number}.safetensors"
        with replacing(self.folder / name, mode=OWNER_ONLY) as part:
            save_file({key: np.ascontiguousarray(values) for key, values in state.items()}, part)
        return name

    def model(self) -> StoredState | None:
        """The newest model; None before the first."""
        if not self.place.model:
            return None
        path = self.folder / self.place.model
        try:
            if sha256([path]) != self.place.model_sha256:
                raise BadInput(f"{path} is not the model that the run has come to: bring that one back")
            return StoredState(path)
        except OSError as error:
            raise BadInput(f"{path} cannot be read ({error.strerror}): bring the run's newest model back") from None

    def remove_older_models(self) -> None:
        """Files that no row names any more, also such as a crash left."""
        for path in self.folder.glob("model-*.safetensors"):
            if path.name != self.place.model:
                path.unlink()

    def add_history(self, report: RoundReport) -> None:
        """Remember a round that is over."""
        values = (report.number, json.dumps(asdict(report)))
        self._database.execute("INSERT INTO history VALUES (?, ?)", values)

    def history(self) -> tuple[RoundReport, ...]:
        """Every round that is over."""
        rows = self._database.execute("SELECT report FROM history ORDER BY number")
        return tuple(RoundReport.from_json(row[0]) for row in rows)

    def add_transcript(self, number: int, content: bytes) -> None:
        """Keep what is needed to check a sum later, in the open transaction; where there is no room the oldest go."""
        if not content:
            return
        self._database.execute("INSERT OR REPLACE INTO transcripts VALUES (?, ?)", (place_of_sum(number), content))
        while int(self._one("SELECT sum(length(content)) FROM transcripts")) > TRANSCRIPT_BYTES:
            self._database.execute("DELETE FROM transcripts WHERE number = (SELECT min(number) FROM transcripts)")

    def transcripts(self) -> tuple[bytes, ...]:
        """Transcripts of the sums that were opened, in the order of the run."""
        return tuple(row[0] for row in self._database.execute("SELECT content FROM transcripts ORDER BY number"))

    # Older copies

    def mark(self) -> None:
        """Note where the run stands outside of the database as well, before anything of that is told to anybody."""
        if _marked(self.folder) != self.place.steps:
            write_text(self.folder / _MARK, f"{self.place.steps}\n", mode=OWNER_ONLY)

    def _refuse_older_copy(self, path: Path) -> None:
        """Refuse a restored database: it would reuse the noise of a round on another sum."""
        if _marked(self.folder) > self.place.steps:
            raise VeilrecError(
                f"{path}: this is an older copy, and the run has gone on since: its noise must not be used again; "
                "restore the newest copy, or start a new run in another folder"
            )
