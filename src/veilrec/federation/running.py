"""`veilrec federate up`, `down` and `status`: the processes of a federation on one machine.

The offline status is read from the databases of a coordinator that does not run; a crash cannot spoil them.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sqlite3
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.files import Seal, key_in
from veilrec.federation import federation, processes
from veilrec.federation.client.folder import DATA
from veilrec.federation.coordinator.process import last_status, read_token
from veilrec.federation.coordinator.registry import FILE as REGISTRY
from veilrec.federation.facts import FederationFacts
from veilrec.federation.federation import CA, CLIENTS, COORDINATOR, HELPERS, LOGS, RUN, Federation, command
from veilrec.federation.flower_messages import public_address
from veilrec.federation.helper import name_of
from veilrec.federation.link import client_context
from veilrec.federation.trust import trust_line
from veilrec.privacy.ledger import Ledger
from veilrec.server.round_store import RoundReport, totals

_PEOPLE = (
    "SELECT sum(length(invitation) > 0), sum(length(invitation) = 0), count(key), sum(revoked) FROM places"
    " WHERE role != 'helper'"
)


def offline_status(folder: Path, made: Federation) -> dict[str, Any]:
    """Offline status: what the databases of a coordinator say that does not run or does not answer."""
    place, told = folder / COORDINATOR, last_status(folder)
    if told.get("stage") == "over":  # it ended by itself, so that nothing has come since
        return told | {"seconds_left": None}
    try:
        found = _read(place / "coordinator.sqlite", "SELECT place FROM run")
        if not found:
            return _not_started(made)
        stands = json.loads(found[0][0])
        history = _read(place / "coordinator.sqlite", "SELECT report FROM history")
        came = {inbox: _count(place / "coordinator.sqlite", inbox) for inbox in ("messages", "reports")}
        people = _read(place / REGISTRY, _PEOPLE)[0]
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            return (told or _not_started(made)) | {"seconds_left": None}
        # A process has it open, and has not answered: it is starting, or it hangs.
        return _not_started(made) | told | {"stage": "not answering", "seconds_left": None}
    except (sqlite3.Error, ValueError, LookupError):  # being started at this moment, or not whole, which `up` then says
        return (told or _not_started(made)) | {"seconds_left": None}
    return {
        "federation": made.id,
        "round": stands["number"],
        "rounds": made.rounds,
        "stage": stands["stage"],
        "seconds_left": None,
        "clients": dict(zip(("invited", "free", "enrolled", "revoked"), people, strict=True)) | {"here": 0},
        "this_round": came,
        **totals(RoundReport.from_json(row[0]) for row in history),
    }


def _not_started(made: Federation) -> dict[str, Any]:
    return {"round": 0, "rounds": made.rounds, "stage": "not started"}


def _read(path: Path, query: str) -> list[Any]:
    """Query a database read-only; no rows if it does not exist."""
    if not path.is_file():
        return []
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as database:
        return database.execute(query).fetchall()


def _count(path: Path, table: str) -> int:
    return int(_read(path, f"SELECT count(*) FROM {table}")[0][0])  # noqa: S608 - one of two names


Transport: TypeAlias = Literal["https", "flower"]
OURSELVES = (sys.executable, "-c", "from veilrec.cli.main import run; run()")
_READY_SECONDS = 120.0  # for a coordinator to make its plan
_LEAVE_SECONDS = 30.0  # for clients to hear that it is over
_LOOK_SECONDS = 0.3
_RESTARTS = 1000  # of a process that is killed again and again
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Up:
    """A federation's processes, and what they have come to."""

    def __init__(self, folder: Path, say: Callable[[str], None], *, transport: Transport = "https") -> None:
        self.folder, self._say, self._transport = folder, say, transport
        self.made = federation.read(folder)
        if processes.running(folder):
            raise BadInput(f"{folder} is up already: see `{command('status', folder)}`, or end it with `down`")
        places = sorted(place for place in (folder / CLIENTS).glob("*") if place.is_dir())
        self.clients = [place for place in places if (place / DATA).is_file()]
        for place in places:
            if place not in self.clients:
                say(f"{place.name} is left out: nobody has brought its data yet")
        if not self.clients:
            raise BadInput(f"{folder / CLIENTS} holds no client: make the federation again")
        (folder / LOGS).mkdir(exist_ok=True)
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, tuple[str, ...]] = {}
        self._restarts: Counter[str] = Counter()
        self._heard: dict[str, int] = {}  # how far into a log its words are known

    def run(self, on_status: Callable[[Mapping[str, Any]], None]) -> None:
        """Run until the rounds are over; every process that was started is ended, whatever happens."""
        previous = signal.signal(signal.SIGTERM, _interrupt)
        try:
            self._start_coordinator()
            for place in self._helpers():
                self._start(place.name, "helper", str(place), "--federation", str(self.folder))
            by = ("--link", public_address(self.made.address)) if self._transport == "flower" else ()
            places = (str(place) for place in self.clients)
            self._start("clients", "client", *places, "--federation", str(self.folder), *by)
            self._watch(on_status)
        finally:
            self._end()
            signal.signal(signal.SIGTERM, previous)

    def _helpers(self) -> list[Path]:
        """List the helpers whose folders are here; name the others to the operator."""
        found = sorted((self.folder / HELPERS).glob("*"))
        for name in sorted({name_of(number) for number in range(len(self.made.helpers))} - {p.name for p in found}):
            self._say(f"{name} is not in {self.folder / HELPERS}: rounds wait until its operator starts it elsewhere")
        return found

    def _start_coordinator(self) -> None:
        command = "link" if self._transport == "flower" else "coordinator"
        coordinator = self._start("coordinator", command, str(self.folder))
        until = time.monotonic() + _READY_SECONDS
        while time.monotonic() < until:
            if coordinator.poll() is not None:
                raise VeilrecError(self._last_words("coordinator"))
            if live_status(self.folder, self.made) is not None:
                return
            time.sleep(0.1)
        raise VeilrecError(f"the coordinator is not ready after {_READY_SECONDS:g} s: see {self.folder / LOGS}")

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / LOGS / f"{name}.log").open("ab") as log:
            self._heard[name] = log.seek(0, os.SEEK_END)
            started = subprocess.Popen(  # noqa: S603 - ourselves
                [*OURSELVES, "federate", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **_ONE_THREAD},
                start_new_session=True,  # a Ctrl-C is for us, and we end the others
            )
        self._started[name], self._commands[name] = started, command
        own = processes.of("up", os.getpid())
        others = [processes.of(name, child.pid) for name, child in self._started.items() if child.poll() is None]
        processes.note(self.folder, [own, *others])
        return started

    def _watch(self, on_status: Callable[[Mapping[str, Any]], None]) -> None:
        while self._started["coordinator"].poll() != 0:
            for words in self._words("clients"):
                self._say(f"{words}; the others go on")
            for name, started in list(self._started.items()):
                code = started.poll()
                if code is None:
                    continue
                if code < 0:
                    self._start_again(name)
                elif code if name == "coordinator" else not self._is_over():
                    raise VeilrecError(self._last_words(name))
            status = live_status(self.folder, self.made)
            if status is not None:
                on_status(status)
            time.sleep(_LOOK_SECONDS)
        on_status(last_status(self.folder))

    def _start_again(self, name: str) -> None:
        self._restarts[name] += 1
        if self._restarts[name] > _RESTARTS:
            raise VeilrecError(f"the process `{name}` was killed {self._restarts[name]} times: given up")
        self._say(f"the process `{name}` was killed: it is started again where it was")
        if name == "coordinator":
            self._start_coordinator()
        else:
            self._start(name, *self._commands[name])

    def _is_over(self) -> bool:
        """Whether the rounds are: clients and helpers may then have left before the coordinator has."""
        live = live_status(self.folder, self.made) or {}
        return "over" in (live.get("stage"), last_status(self.folder).get("stage"))

    def _words(self, name: str) -> list[str]:
        """New error lines in the log of a process."""
        with (self.folder / LOGS / f"{name}.log").open("rb") as log:
            log.seek(self._heard[name])
            said, whole, _ = log.read().rpartition(b"\n")
        self._heard[name] += len(said + whole)
        return _error_lines(said)

    def _last_words(self, name: str) -> str:
        """Last error line of a process that ended by itself; earlier ones are printed at once."""
        missed = f"the process `{name}` has ended before the rounds were over: see {self.folder / LOGS / f'{name}.log'}"
        *before, last = self._words(name) or [missed]
        for words in before:
            self._say(words)
        return last

    def _end(self) -> None:
        """Let clients and helpers hear that it is over, and end what is left."""
        coordinator = self._started.get("coordinator")
        others = [started for name, started in self._started.items() if name != "coordinator"]
        if coordinator is not None and coordinator.poll() == 0:
            until = time.monotonic() + _LEAVE_SECONDS
            for started in others:
                _wait(started, max(0.0, until - time.monotonic()))
        every = [*others, *([] if coordinator is None else [coordinator])]
        for started in every:
            if started.poll() is None:
                started.terminate()
        for started in every:
            if not _wait(started, _LEAVE_SECONDS):
                started.kill()
                started.wait()
        (self.folder / processes.FILE).unlink(missing_ok=True)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _wait(started: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        started.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _error_lines(log: bytes) -> list[str]:
    lines = log.decode(errors="replace").splitlines()
    return [line.removeprefix("veilrec: ") for line in lines if line.startswith("veilrec: ")]


def detach(folder: Path, transport: Transport = "https") -> int:
    """Start `up` in the background; its process."""
    up = Up(folder, lambda _: None)  # refuses what cannot be started
    with (up.folder / LOGS / "up.log").open("ab") as log:
        started = subprocess.Popen(  # noqa: S603 - ourselves
            [*OURSELVES, "federate", "up", str(folder), "--transport", transport],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    until = time.monotonic() + _READY_SECONDS
    while time.monotonic() < until and live_status(folder, up.made) is None:
        if started.poll() is not None and started.returncode != 0:
            path = up.folder / LOGS / "up.log"
            raise VeilrecError([f"it could not be started: see {path}", *_error_lines(path.read_bytes())][-1])
        if started.poll() == 0:
            break
        time.sleep(0.1)
    return started.pid


def live_status(folder: Path, made: Federation) -> dict[str, Any] | None:
    """Ask the coordinator for its status; None if it does not answer."""
    address = urlsplit(made.address)
    context = client_context(folder / CA)
    connection = http.client.HTTPSConnection(address.hostname or "", address.port, timeout=5.0, context=context)
    try:
        token = read_token(folder / COORDINATOR).decode()
        connection.request("GET", "/v1/status", headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        content = response.read(1 << 20)
        found: dict[str, Any] = json.loads(content) if response.status == http.client.OK else {}
    except (OSError, ssl.SSLError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return found if found.get("federation") == made.id else None


def status(folder: Path) -> dict[str, Any]:
    """Status of a federation: progress, processes, and what the ledgers on this machine have spent."""
    made = federation.read(folder)
    live, promise = live_status(folder, made), FederationFacts(folder, made).guarantee
    return {
        "federation": made.id,
        "method": made.method,
        "address": made.address,
        "up": live is not None,
        "finished": (folder / RUN).is_dir(),
        "rehearsal": made.rehearsal,
        "secagg": made.secagg,
        "trust": trust_line(made),
        "processes": [vars(process) for process in processes.running(folder)],
        "run": live if live is not None else offline_status(folder, made),
        "promised": promise.to_json() | {"line": promise.line()},
        "ledgers": ledgers(folder),
    }


def ledgers(folder: Path) -> dict[str, Any]:
    """Summarise the ledgers of the clients on this machine."""
    spent, messages, counted = [], 0, 0
    for place in sorted((folder / CLIENTS).glob("*")):
        if not (place / "ledger").exists():
            continue
        try:
            with Ledger.open(place / "ledger", seal=Seal(key_in(place / "key"))) as ledger:
                reports = ledger.report()
        except (VeilrecError, OSError):
            continue
        counted += 1
        messages += max(report.messages for report in reports)
        spent += [report.spent for report in reports]
    most = max(spent, key=lambda guarantee: -1.0 if guarantee.epsilon is None else guarantee.epsilon, default=None)
    uncovered = any(guarantee.basis == "none" for guarantee in spent)
    return {
        "clients": counted,
        "protected_messages": messages,
        "unprotected": uncovered,
        "largest": None if most is None else most.to_json() | {"line": most.line()},
    }
