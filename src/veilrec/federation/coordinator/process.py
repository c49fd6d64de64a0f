"""The process of a coordinator: its folder, its lock, its HTTPS service, and an end.

| route | who | what |
|---|---|---|
| `POST /v1/enrol` | whoever has an invitation | ties a key to a place |
| `POST /v1/poll` | a client | what it is asked; waits until there is something |
| `POST /v1/content` | a client | what belongs to its task, unless that is small and came with it |
| `POST /v1/answer` | a client | an answer; on disk when it is acknowledged |
| `GET /v1/status` | the operator, by a token | how far the run has come |

A client is known by its key: every request is signed over federation, client, kind, round and a digest of the body,
and names that digest. So the signature is checked first: a stranger is turned away before its body is read, and uses up
neither the share of requests of a client nor a place for a body. Bodies have a cap; only so many are read at once, one
of a client, and one that hardly comes makes room for another.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.files import write_json
from veilrec.federation import identity
from veilrec.federation.coordinator.aggregation import (
    HelperAggregation,
    PairwiseAggregation,
    SecureAggregation,
    TaskQueue,
)
from veilrec.federation.coordinator.driver import RoundDriver, StoreBusy
from veilrec.federation.coordinator.registry import NotInvited, Registry, RegistryEntry
from veilrec.federation.facts import FederationFacts, largest_answer
from veilrec.federation.federation import COORDINATOR, RPC_KINDS, WITH_CONTENT, Federation, FederationTask
from veilrec.federation.processes import alone_in
from veilrec.server.coordinator import Coordinator
from veilrec.server.secure_reports import MessageRefused
from veilrec.serving.middleware import Hot, Log, Metrics, RateLimit, RequestMiddleware
from veilrec.serving.process import CONNECTIONS, ListenAddress, serve_app
from veilrec.serving.requests import BUSY, Headers, Message, Receive, RequestRefused, Scope, Send, header, read_body
from veilrec.wire.signing import checked_origin

PATHS = ("/v1/enrol", "/v1/poll", "/v1/content", "/v1/answer")
PAGE_HEADERS = ("content-type", *(f"x-veilrec-{name}" for name in ("client", "digest", "kind", "number", "signature")))
_REMEMBERED_SECONDS = 3600
_OF_ORIGIN = (b"vary", b"origin")  # what is said depends on who asks


class PageApp(RequestMiddleware):
    """An application whose answers to clients the pages of one origin may read, and no other page."""

    page: bytes = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request; answers to clients name the page that may read them."""
        if scope["type"] != "http" or scope["path"] not in PATHS:
            await super().__call__(scope, receive, send)
            return
        own: Headers = [_OF_ORIGIN]
        if header(scope, b"origin") == self.page:
            own.append((b"access-control-allow-origin", self.page))

        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *own]
            await send(message)

        await super().__call__(scope, receive, telling)


def preflight_routes() -> list[Route]:
    """Routes of CORS preflight requests: the same answer to all."""
    return [Route(path, _permission, methods=["OPTIONS"]) for path in PATHS]


async def _permission(request: Request) -> Response:
    told = {
        "access-control-allow-methods": "POST",
        "access-control-allow-headers": ", ".join(PAGE_HEADERS),
        "access-control-max-age": str(_REMEMBERED_SECONDS),
    }
    return Response(status_code=204, headers=told)


CLIENT, SIGNATURE, KIND, NUMBER = b"x-veilrec-client", b"x-veilrec-signature", b"x-veilrec-kind", b"x-veilrec-number"
DIGEST = b"x-veilrec-digest"  # of the body, in hexadecimal digits
_LONGEST_POLL_SECONDS = 25.0
_SMALL = 4096  # bytes of a body that is not an answer
_SENT_ALONG = 1 << 14  # bytes of a content that goes out with its task: a request less, and a signature less to check
_JSON = b"application/json"
_UNSIGNED = "the request is not signed by this device's key"
_MAX_BODIES = 16  # answers that are read at once
_GRACE_SECONDS, _SLOWEST_BYTES = 2.0, 10_000  # of them, per second: a slower one makes room for another client's
RATE_OF_ADDRESS, _RATE_OF_CLIENT = 400.0, 20.0  # requests a second, for each task of a round


class Enrolment(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an enrolment request."""

    federation: str
    plan: str
    client: str
    key: str
    endorsement: str


@dataclass
class _Body:
    """An answer that is being read."""

    receive: Receive
    began: float
    size: int = 0
    limit: asyncio.Timeout | None = None  # None: all of it has come

    async def part(self) -> Message:
        """Receive some more of it."""
        message = await self.receive()
        self.size += len(message.get("body", b""))
        return message

    def is_slow(self, now: float) -> bool:
        """Whether whoever sends it only holds its place."""
        since = now - self.began
        return self.limit is not None and since > _GRACE_SECONDS and self.size < since * _SLOWEST_BYTES


class CoordinatorRoutes:
    """The routes of a coordinator."""

    def __init__(self, driver: RoundDriver, *, largest_answer: int, operator: bytes, rate: float) -> None:
        self._driver, self._cap, self._operator = driver, largest_answer, operator
        self._federation = driver.federation
        self._work = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._sending: dict[str, _Body] = {}  # answers that are being read, by client
        self._of_client = RateLimit(rate and _RATE_OF_CLIENT * driver.tasks_per_round)
        self._news: asyncio.Event = asyncio.Event()
        self._enrolment = msgspec.json.Decoder(Enrolment)

    def routes(self) -> list[Route]:
        """All of them, for the router."""
        gets: dict[str, Callable[[Request], Awaitable[Response]]] = {"/healthz": self.health, "/v1/status": self.status}
        return [
            Route("/v1/enrol", self.enrol, methods=["POST"]),
            *(Route(path, self.health, methods=["POST"]) for path in self.hot()),  # answered before the router
            *(Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()),
        ]

    def hot(self) -> dict[str, Hot]:
        """Map the paths that clients use in every round to their handlers."""
        return {"/v1/poll": self.poll, "/v1/content": self.content, "/v1/answer": self.answer}

    def start(self) -> None:
        """Be told, in the loop that runs now, whenever something new is asked."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._wake)

        self._driver.queue.watch(wake)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def health(self, request: Request) -> Response:
        """Whether the process is alive."""
        return _json({"status": "ok"})

    async def enrol(self, request: Request) -> Response:
        """Tie a client's key to its place."""
        body = await read_body(request.scope, request.receive, _SMALL)
        try:
            asked: Enrolment = self._enrolment.decode(body)
            key, endorsement = bytes.fromhex(asked.key), bytes.fromhex(asked.endorsement)
        except (msgspec.MsgspecError, ValueError, UnicodeDecodeError, RecursionError):
            raise RequestRefused(400, "this is no enrolment") from None
        made = self._federation
        if asked.federation != made.id:
            raise RequestRefused(404, "this is another federation: its id is not the one that the client was made for")
        if asked.plan != made.plan:
            raise RequestRefused(
                409, "the client has another version of the plan: copy federation.yaml and facts again"
            )
        try:
            self._driver.registry.check(made.id, asked.client, key, endorsement)  # strangers get no further
            place = await self._store(self._driver.registry.enrol, made.id, asked.client, key, endorsement)
        except NotInvited as error:
            raise RequestRefused(403, str(error)) from None
        self._driver.enrolled()
        return _json({"client": place.client, "role": place.role, "place": place.number})

    async def poll(self, scope: Scope, receive: Receive) -> tuple[bytes, bytes]:
        """Answer a poll: the client's task, or null if none came up in time."""
        client = self._sender(scope, "poll", 0).client
        body = await _body(scope, receive, _SMALL)
        wait = _seconds(body)
        until = perf_counter() + wait
        self._driver.see(client)
        while True:
            news = self._news  # before looking: what comes in between is not missed
            task: FederationTask | None = self._driver.queue.task_for(client)
            left = until - perf_counter()
            if task is not None or left <= 0:
                self._driver.see(client)
                content = self._small_content(body, client, task)
                return msgspec.json.encode(task) + (b"" if content is None else b"\n" + content), _JSON
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await news.wait()

    def _small_content(self, body: bytes, client: str, task: FederationTask | None) -> bytes | None:
        """Return a small content, which goes out with its task to a poll `SECONDS NONCE with-content`; else None."""
        if task is None or not 0 < task.size <= _SENT_ALONG or not body.endswith(b" " + WITH_CONTENT.encode()):
            return None
        return self._driver.queue.content(client, task.sha256)

    async def content(self, scope: Scope, receive: Receive) -> tuple[bytes, bytes]:
        """Send the content of a client's task."""
        client = self._sender(scope, "content", 0).client
        body = await _body(scope, receive, _SMALL)
        found = self._driver.queue.content(client, body.decode("ascii", "replace"))
        if found is None:
            raise RequestRefused(410, "nothing of this kind is asked for any more")
        return found, b"application/octet-stream"

    async def answer(self, scope: Scope, receive: Receive) -> tuple[bytes, bytes]:
        """Take an answer in."""
        kind, number = _text(scope, KIND), _whole(scope)
        client = self._sender(scope, kind, number).client
        if client in self._sending or not self._has_room():
            raise RequestRefused(503, "too many answers come at once: send it again in a moment", BUSY)
        own = self._sending[client] = _Body(receive, perf_counter())
        try:
            async with asyncio.timeout(None) as own.limit:
                body = await _body(scope, own.part, self._cap)
            own.limit = None
            if kind in RPC_KINDS:  # never behind those who wait for what is said on it
                receipt = self._driver.take(client, kind, number, body)
            else:
                receipt = await self._store(self._driver.take, client, kind, number, body)
        except MessageRefused as refusal:
            raise RequestRefused(409, str(refusal)) from None
        except TimeoutError:
            raise RequestRefused(503, "the answer came too slowly while others waited: send it again", BUSY) from None
        except StoreBusy:
            raise RequestRefused(503, "the answer could not be kept: send it again in a moment", BUSY) from None
        finally:
            del self._sending[client]
        return msgspec.json.encode({"receipt": receipt}), _JSON

    def _has_room(self) -> bool:
        """Whether another answer can be read; if not, one that hardly comes has to go, for whoever asks again."""
        if len(self._sending) < _MAX_BODIES:
            return True
        now = perf_counter()
        slow = next((body for body in self._sending.values() if body.is_slow(now)), None)
        if slow is None or slow.limit is None:
            return False
        slow.limit.reschedule(0.0)
        slow.limit = None
        return True

    async def status(self, request: Request) -> Response:
        """Send the status of the run to the operator."""
        given = header(request.scope, b"authorization") or b""
        if not hmac.compare_digest(given, b"Bearer " + self._operator):
            raise RequestRefused(401, "this is for the operator of the federation")
        return _json(await self._store(self._driver.status))

    def knows(self, scope: Scope) -> bool:
        """Whether a client has signed a request: it has a limit of its own, whoever else is behind its address."""
        path = scope["path"]
        try:
            if path == "/v1/answer":
                return not self._signer(scope, _text(scope, KIND), _whole(scope)).revoked
            return path in self.hot() and not self._signer(scope, path.rpartition("/")[2], 0).revoked
        except RequestRefused:
            return False

    def _signer(self, scope: Scope, kind: str, number: int) -> RegistryEntry:
        """Return the enrolled client that has signed a request for this; its body has not been read."""
        entry = self._driver.registry.find(_text(scope, CLIENT))
        if entry is None or entry.key is None:
            raise RequestRefused(401, "this device is not enrolled")
        try:
            signed, digest = bytes.fromhex(_text(scope, SIGNATURE)), _text(scope, DIGEST)
            identity.check_digest(entry.key, self._federation.id, entry.client, kind, number, digest, signed)
        except (VeilrecError, ValueError):
            raise RequestRefused(401, _UNSIGNED) from None
        return entry

    def _sender(self, scope: Scope, kind: str, number: int) -> RegistryEntry:
        """Return who has signed a request for this, and may send one now."""
        entry = self._signer(scope, kind, number)
        if entry.revoked:
            raise RequestRefused(403, "this device was revoked")
        wait = self._of_client.wait(entry.client, perf_counter())
        if wait:
            raise RequestRefused(
                429, f"too many requests of this device: wait {wait} s", [(b"retry-after", b"%d" % wait)]
            )
        return entry

    async def _store(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do what may wait for the disk, one after the other, outside of the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._work, work, *arguments)


def make_app(
    driver: RoundDriver,
    *,
    largest_answer: int,
    operator: bytes,
    log: Log,
    rate: float = RATE_OF_ADDRESS,
    page: str | None = None,
) -> RequestMiddleware:
    """Make the ASGI application; rate 0: no rate limit, for tests. `page`: the origin whose pages may be clients."""
    rate *= driver.tasks_per_round
    own = CoordinatorRoutes(driver, largest_answer=largest_answer, operator=operator, rate=rate)
    routes = own.routes() if page is None else [*own.routes(), *preflight_routes()]
    kind = RequestMiddleware if page is None else PageApp
    app = kind(own.hot(), Router(routes, redirect_slashes=False), RateLimit(rate), Metrics(), log)
    if page is not None and isinstance(app, PageApp):
        app.page = checked_origin(page).encode()
    app.on_start, app.knows = own.start, own.knows
    return app


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), 200, {"cache-control": "no-store"}, _JSON.decode())


async def _body(scope: Scope, receive: Receive, cap: int) -> bytes:
    """Read the body that a sender has signed the digest of."""
    body = await read_body(scope, receive, cap)
    if hashlib.sha256(body).hexdigest() != _text(scope, DIGEST):
        raise RequestRefused(401, _UNSIGNED)
    return body


def _text(scope: Scope, name: bytes) -> str:
    return (header(scope, name) or b"").decode("ascii", "replace")[:200]


def _whole(scope: Scope) -> int:
    text = header(scope, NUMBER) or b""
    if not text.isdigit() or len(text) > 15:
        raise RequestRefused(400, "the number of the round is missing")
    return int(text)


def _seconds(body: bytes) -> float:
    """Read how long a client waits: the beginning of a body `SECONDS NONCE`."""
    try:
        asked = float(body.split(b" ", 1)[0])
    except ValueError:
        raise RequestRefused(400, "a client says how long it waits") from None
    return min(max(asked, 0.0), _LONGEST_POLL_SECONDS) if isfinite(asked) else 0.0


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
        minimum_reports=1 if made.secagg == "none" else made.least_reported,
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
    """Serve a federation until its rounds are over or it is stopped; return whether they are.

    With a control no signal handlers are set, which only a main thread can. Pages of the origin `page` may be clients.
    """
    made, place = known.federation, folder / COORDINATOR
    log, queue = log or Log(), TaskQueue()
    with locked(place), Registry(place) as registry:
        secure = _secure(queue, registry, known, log)
        with open_coordinator(folder, known, secure) as server:
            driver = RoundDriver(server, registry, made, log.event, queue=queue, secure=secure)
            token, largest = read_token(place), largest_answer(known)
            app = make_app(driver, largest_answer=largest, operator=token, log=log, rate=rate, page=page)
            life = _Life(driver, place / STATUS, stay=stay, control=control)
            serve_app(app, log, _offered(made, place), announce, life.begin, signals=control is None)
            return life.end()


def _secure(queue: TaskQueue, registry: Registry, known: FederationFacts, log: Log) -> SecureAggregation | None:
    made = known.federation
    if made.secagg == "none":
        return None
    kind = HelperAggregation if made.secagg == "helpers" else PairwiseAggregation
    return kind(queue, registry, made, known.plan, log.event)


def _offered(made: Federation, place: Path) -> ListenAddress:
    address = urlsplit(made.address)
    host, port = address.hostname or "127.0.0.1", address.port or 0
    keys = (place / "tls.pem", place / "tls.key")
    each = max(CONNECTIONS, 2 * made.clients)  # all clients may be behind one address, and come again
    return ListenAddress(host, port, *keys, connections=each, oldest=ssl.TLSVersion.TLSv1_3, way_out=_WAY_OUT)


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
