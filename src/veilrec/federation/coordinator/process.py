"""The process of a coordinator: its folder, its lock, its socket, and an end."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from veilrec.core.errors import BadInput
from veilrec.core.files import write_json
from veilrec.federation.coordinator.aggregation import (
    HelperAggregation,
    PairwiseAggregation,
    SecureAggregation,
    TaskBoard,
)
from veilrec.federation.coordinator.driver import RoundDriver
from veilrec.federation.coordinator.https import RATE_OF_ADDRESS, make_app
from veilrec.federation.coordinator.registry import Registry
from veilrec.federation.facts import FederationFacts, largest_answer
from veilrec.federation.federation import COORDINATOR, Federation
from veilrec.federation.processes import alone_in
from veilrec.server.coordinator import Coordinator
from veilrec.serving.middleware import Log
from veilrec.serving.process import ListenAddress, serve_app

STATUS, TOKEN = "status.json", "operator.token"
_LINGER_SECONDS = 20.0
_WAY_OUT = (
    "end what uses it, or write another port into the address in federation.yaml, here and in every copy; for another"
    " host, which the certificate has to name, make the federation again with `federate init --host`"
)


def open_coordinator(folder: Path, known: FederationFacts, secure: SecureAggregation | None = None) -> Coordinator:
    """Open the coordinator of a folder; without its secure aggregation it can be looked at, and not go on."""
    made, place = known.federation, folder / COORDINATOR
    if not (place / "secret").is_file():
        raise BadInput(f"{place} is no coordinator's folder: it has no secret; run it where `federate init` was run")
    least = made.minimum_messages if made.secagg == "none" else max(made.minimum_messages or 0, made.least)
    return Coordinator(
        place,
        known.plan,
        minimum_messages=least,
        minimum_reports=1 if made.secagg == "none" else made.least,
        over_selection=made.over_selection,
        secure=secure,
        goes_on=made.secagg == "none",
    )


class Control:
    """A handle on a coordinator that runs in a thread: tests and measurements end it by this, and look into it."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.ended = threading.Event()
        self.driver: RoundDriver | None = None
        self.stop: Callable[[], object] = lambda: None


def coordinate(
    folder: Path,
    known: FederationFacts,
    announce: Callable[[str], None],
    *,
    stay: bool = False,
    control: Control | None = None,
    log: Log | None = None,
    rate: float = RATE_OF_ADDRESS,
    page: str | None = None,
) -> bool:
    """Serve a federation until its rounds are over, or somebody stops it; whether they are.

    With a control no signal is listened to, which only a main thread can. Devices may
    also be pages of the origin `page`.
    """
    made, place = known.federation, folder / COORDINATOR
    log, board = log or Log(), TaskBoard()
    with locked(place), Registry(place) as registry:
        secure = _secure(board, registry, known, log)
        with open_coordinator(folder, known, secure) as server:
            driver = RoundDriver(server, registry, made, log.event, board=board, secure=secure)
            token, largest = read_token(place), largest_answer(known)
            app = make_app(driver, largest_answer=largest, operator=token, log=log, rate=rate, page=page)
            life = _Life(driver, place / STATUS, stay=stay, control=control)
            serve_app(app, log, _offered(made, place), announce, life.begin, signals=control is None)
            return life.end()


def _secure(board: TaskBoard, registry: Registry, known: FederationFacts, log: Log) -> SecureAggregation | None:
    made = known.federation
    if made.secagg == "none":
        return None
    kind = HelperAggregation if made.secagg == "helpers" else PairwiseAggregation
    return kind(board, registry, made, known.plan, log.event)


def _offered(made: Federation, place: Path) -> ListenAddress:
    address = urlsplit(made.address)
    host, port = address.hostname or "127.0.0.1", address.port or 0
    keys = (place / "tls.pem", place / "tls.key")
    return ListenAddress(host, port, *keys, oldest=ssl.TLSVersion.TLSv1_3, way_out=_WAY_OUT)


class _Life:
    """The driver's thread beside the loop that serves."""

    def __init__(self, driver: RoundDriver, status: Path, *, stay: bool, control: Control | None) -> None:
        self._driver, self._status, self._stay, self._control = driver, status, stay, control
        self._thread = threading.Thread(target=self._run, name="driver")
        self._is_over = False
        self._failure: BaseException | None = None
        self._leave: Callable[[], object] = lambda: None

    def begin(self, loop: Any, stop: Callable[[], None]) -> None:
        """Start, and end the service when all is done."""

        def leave() -> None:
            with suppress(RuntimeError):  # it has left already
                loop.call_soon_threadsafe(stop)

        self._leave = leave
        if self._control is not None:
            self._control.stop, self._control.driver = self._leave, self._driver
            self._control.ready.set()
        self._thread.start()

    def _run(self) -> None:
        try:
            self._is_over = self._driver.run()
            if self._is_over:
                write_json(self._status, self._driver.status())
                self._driver.linger(_LINGER_SECONDS)
        except BaseException as error:
            self._failure = error
        if not (self._is_over and self._stay):
            self._leave()

    def end(self) -> bool:
        """After the service has ended."""
        self._driver.stop()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        write_json(self._status, self._driver.status())
        return self._is_over


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One coordinator on a folder; whatever happens to it, its lock goes with it."""
    with alone_in(folder, f"another coordinator runs on {folder}: see `veilrec federate status`, or end it first"):
        yield


def read_token(folder: Path) -> bytes:
    """Read the operator's token."""
    try:
        return (folder / TOKEN).read_bytes().strip()
    except OSError as error:
        raise BadInput(f"{folder / TOKEN} cannot be read ({error.strerror}): it lies where init was run") from None


def last_status(folder: Path) -> dict[str, Any]:
    """Read the last status that a coordinator wrote; empty if there is none."""
    try:
        found: dict[str, Any] = json.loads((folder / COORDINATOR / STATUS).read_text())
    except (OSError, ValueError):
        return {}
    return found
