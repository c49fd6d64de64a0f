"""Middleware: every request gets an id, a rate limit, a route, a time, and security headers.

How often one address may ask: a bucket of tokens for each, in a table that cannot grow without bound.

The log: one JSON object a line, of fields from a closed list. Times and sizes are rounded up to coarse steps: what was
asked must not follow from how many bytes were answered, or how fast.

There is no place in it for an id of an item, a vector, an address, a body or a query string: what is not in the list
cannot be written. A word about the server itself ("event") comes from the code and never from a request.

What is counted, as Prometheus reads it: requests, their times and sizes in classes, by route and status, and nothing of
anybody. Sums are of the rounded values.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping
from math import ceil, inf
from secrets import token_hex
from time import perf_counter
from typing import Any, BinaryIO

import msgspec
from starlette.exceptions import HTTPException
from starlette.routing import Router

from veilrec.serving.connections import Places, network
from veilrec.serving.requests import ClientGone, Headers, Message, Receive, RequestRefused, Scope, Send

_BURST_SECONDS = 2.0  # what may be asked at once after a pause, in seconds of the rate
_MOST = 1 << 16  # addresses that are remembered; beyond that the one seen first is forgotten


class RateLimit:
    """`rate` requests a second for each address, and twice as many at once; 0 means no limit.

    Addresses stay in memory for as long as their bucket is not full again, which is two seconds, and go nowhere.
    """

    def __init__(self, rate: float, *, most: int = _MOST) -> None:
        self.rate, self.burst, self._most = rate, max(1.0, rate * _BURST_SECONDS), most
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens, and when they were counted
        self._swept = 0.0

    def __len__(self) -> int:
        return len(self._buckets)

    def wait(self, address: str, now: float) -> int:
        """0 if the address may ask now, which is counted; else the seconds until it may."""
        if self.rate <= 0:
            return 0
        address = network(address)
        if now - self._swept > _BURST_SECONDS:
            self._sweep(now)
        tokens, since = self._buckets.get(address, (self.burst, now))
        tokens = min(self.burst, tokens + (now - since) * self.rate)
        if tokens < 1.0:
            return ceil((1.0 - tokens) / self.rate)
        if address not in self._buckets and len(self._buckets) >= self._most:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[address] = (tokens - 1.0, now)
        return 0

    def _sweep(self, now: float) -> None:
        """Forget whose bucket is full again."""
        self._swept = now
        full = self.burst / self.rate
        self._buckets = {who: bucket for who, bucket in self._buckets.items() if now - bucket[1] < full}


_AT_ONCE = 512  # lines that wait to be written
_SELDOM_SECONDS = 60.0


class RequestLine(msgspec.Struct):
    """Log line of a request."""

    time: float
    request: str
    """Its id, which we drew."""
    route: str
    """The template: /v1/items/{id}, never the path."""
    status: int
    microseconds: int
    """Rounded up to a power of 2."""
    bytes: int
    """Of the answer; rounded up to a power of 2."""


class EventLine(msgspec.Struct, omit_defaults=True):
    """Log line of an event of the server."""

    time: float
    event: str
    level: str = "info"
    request: str = ""
    """The id of the request during which it happened."""


def coarse(number: int) -> int:
    """Round up to a power of 2; 0 stays."""
    return 1 << (number - 1).bit_length() if number > 1 else max(0, number)


class Log:
    """Lines to a stream; those of requests wait up to a moment, so that many are written at once."""

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self._stream = stream or getattr(sys.stderr, "buffer", None)
        self._encoder = msgspec.json.Encoder()
        self._waiting: list[bytes] = []
        self._lock = threading.Lock()
        self._said: dict[str, tuple[float, int]] = {}  # when, and how often it was left out since
        self.later: Callable[[Callable[[], None]], object] | None = None  # how to be called again in a moment

    def request(self, request: str, route: str, status: int, seconds: float, size: int) -> None:
        """One answered request."""
        line = RequestLine(round(time.time(), 3), request, route, status, coarse(int(seconds * 1e6)), coarse(size))
        with self._lock:
            self._waiting.append(self._encoder.encode(line))
            waiting = len(self._waiting)
        if self.later is None or waiting >= _AT_ONCE:
            self.flush()
        elif waiting == 1:
            self.later(self.flush)

    def event(self, text: str, *, level: str = "info", request: str = "") -> None:
        """Something that happened to the server, at once."""
        with self._lock:
            self._waiting.append(self._encoder.encode(EventLine(round(time.time(), 3), text, level, request)))
        self.flush()

    def seldom(self, text: str, *, level: str = "warning") -> None:
        """What strangers can bring about as often as they like: at once, then once a minute, with how often."""
        now = time.monotonic()
        said, left_out = self._said.get(text, (-inf, 0))
        if now - said < _SELDOM_SECONDS:
            self._said[text] = said, left_out + 1
            return
        self._said[text] = now, 0
        self.event(f"{text} ({left_out + 1} times since this was said last)" if left_out else text, level=level)

    def flush(self) -> None:
        """Write what waits. A log that cannot be written does not stop the service."""
        with self._lock:
            lines, self._waiting = self._waiting, []
            if not lines or self._stream is None:
                return
            try:
                self._stream.write(b"\n".join(lines) + b"\n")
                self._stream.flush()
            except (OSError, ValueError):
                pass


class FromLibrary(logging.Handler):
    """Log messages of the HTTP library as events, without their values."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """The words of the message as they stand in the library's code: no arguments, no traceback."""
        self._log.seldom(str(record.msg).partition("\n")[0][:200], level=record.levelname.lower())


_EDGES = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """Counts and a histogram of seconds for every route template and status: a closed list, however many ask."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[list[int], list[float]]] = {}
        self.places: Places | None = None  # of the connections, where they are counted

    def note(self, route: str, status: int, seconds: float, size: int) -> None:
        """One answered request: its route template, its status, its time, the bytes of its answer."""
        entry = self._seen.get((route, status))
        if entry is None:
            entry = self._seen[route, status] = ([0] * (len(_EDGES) + 1), [0.0, 0.0])
        place = bisect_left(_EDGES, seconds)
        entry[0][place] += 1
        entry[1][0] += _EDGES[min(place, len(_EDGES) - 1)]
        entry[1][1] += coarse(size)

    def text(self, gauges: Iterable[tuple[str, str, float]]) -> str:
        """The page at /metrics; `gauges` are (name, what it is, value)."""
        lines = []
        if self.places is not None:
            gauges = (
                *gauges,
                ("connections", "Open connections.", float(self.places.total)),
                ("connections_refused", "Connections that found no place.", float(self.places.refused)),
            )
        for name, what, value in gauges:
            lines += [f"# HELP veilrec_{name} {what}", f"# TYPE veilrec_{name} gauge", f"veilrec_{name} {value:.15g}"]
        seen = sorted(self._seen.items())
        lines += ["# HELP veilrec_request_seconds Time to answer.", "# TYPE veilrec_request_seconds histogram"]
        for (route, status), (counts, (seconds, _)) in seen:
            labels, total = f'route="{route}",status="{status}"', 0
            for edge, number in zip((*map(str, _EDGES), "+Inf"), counts, strict=True):
                total += number
                lines.append(f'veilrec_request_seconds_bucket{{{labels},le="{edge}"}} {total}')
            lines.append(f"veilrec_request_seconds_sum{{{labels}}} {seconds:.9g}")
            lines.append(f"veilrec_request_seconds_count{{{labels}}} {total}")
        lines += ["# HELP veilrec_answer_bytes_total Bytes of answers, each rounded up to a power of 2."]
        lines += ["# TYPE veilrec_answer_bytes_total counter"]
        for (route, status), (_, (_, size)) in seen:
            lines.append(f'veilrec_answer_bytes_total{{route="{route}",status="{status}"}} {size:.15g}')
        return "\n".join(lines) + "\n"


_METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}
_ALWAYS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
POLICY = b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
_POLICY = b"content-security-policy"
_COLD: Headers = [*_ALWAYS, (_POLICY, POLICY)]
_NO_STORE = (b"cache-control", b"no-store")
_JSON = (b"content-type", b"application/json")
_HEALTH = {"/healthz", "/readyz"}
_PIECE = 1 << 16  # bytes of an answer that are handed to a connection at once
_LIMITED = "(limited)"  # in the metrics: no route was looked for
_GONE = 499  # in the log: the client had left

Hot = Callable[[Scope, Receive], Awaitable[tuple[bytes, bytes]]]
"""What a route that is asked often does with a POST: the body of its answer, and of which type that is."""


class RequestMiddleware:
    """The ASGI application."""

    def __init__(self, hot: Mapping[str, Hot], cold: Router, limit: RateLimit, metrics: Metrics, log: Log) -> None:
        """`hot`: by path, what answers a POST past the router, which knows these paths too, for other methods."""
        self._hot, self._cold, self._limit, self.metrics, self._log = hot, cold, limit, metrics, log
        self._health_limit = RateLimit(limit.rate)  # apart: whoever asks too often can still see that it is alive
        self._headers = _COLD
        self.on_start: Callable[[], None] = lambda: None
        self.on_stop: Callable[[], None] = lambda: None
        self.knows: Callable[[Scope], bool] = lambda _: False  # who has a limit elsewhere, whatever their address asks

    def let_pages_ask(self, address: str) -> None:
        """Allow pages to query one other server: the coordinator of a federation that they take part in."""
        self._headers = [*_ALWAYS, (_POLICY, POLICY + f"; connect-src 'self' {address}".encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        start = perf_counter()
        answer = _Sending(send, token_hex(8), self._headers)
        route = ""
        try:
            path = scope["path"]
            hot = self._hot.get(path) if scope["method"] == "POST" else None
            client = scope.get("client")
            limit = self._health_limit if path in _HEALTH else self._limit
            wait = 0 if client is None else limit.wait(client[0], start)
            if wait and not self.knows(scope):
                route = _LIMITED
                await answer.refuse(
                    429,
                    f"too many requests from this address: wait {wait} s",
                    [(b"retry-after", b"%d" % wait), (b"connection", b"close")],
                )
            elif hot is not None:
                route = f"POST {path}"
                body, kind = await hot(scope, receive)
                await answer.whole(200, body, [(b"content-type", kind), _NO_STORE], _ALWAYS)
            else:
                scope["app"] = self
                await self._cold(scope, receive, answer.part)
        except RequestRefused as refusal:
            await answer.refuse(refusal.status, refusal.line, refusal.headers)
        except HTTPException as refusal:
            await answer.refuse(
                refusal.status_code, _WORDS.get(refusal.status_code, "refused"), _encoded(refusal.headers)
            )
        except ClientGone:
            answer.status = _GONE
        except Exception as error:
            self._log.event(f"failed: {_where(error)}", level="error", request=answer.request)
            await answer.refuse(500, f"the server failed: its log has more under request {answer.request}", [])
        route = route or _template(scope)
        seconds = perf_counter() - start
        self.metrics.note(route, answer.status, seconds, answer.size)
        if route == _LIMITED:
            self._log.seldom("an address asked too often and got 429")
            return
        self._log.request(answer.request, route, answer.status, seconds, answer.size)

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Start and stop; no web sockets."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.on_start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                self.on_stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


_WORDS = {
    404: "there is nothing here: see /docs for the routes",
    405: "this route does not take this method: see /docs",
}


class _Sending:
    """An answer on its way out, counted; every one has the id of its request."""

    def __init__(self, send: Send, request: str, cold: Headers) -> None:
        self._send, self.request, self._cold = send, request, cold
        self.status, self.size = 0, 0

    async def whole(self, status: int, body: bytes, headers: Headers, always: Headers | None = None) -> None:
        """An answer in one piece."""
        always = self._cold if always is None else always
        self.status, self.size = status, len(body)
        own = [*headers, *always, (b"x-request-id", self.request.encode()), (b"content-length", b"%d" % len(body))]
        await self._send({"type": "http.response.start", "status": status, "headers": own})
        message: Message = {"type": "http.response.body", "body": body}
        await self._send(message if len(body) <= _PIECE else await self._but_the_last(message))

    async def refuse(self, status: int, line: str, headers: Headers) -> None:
        """One line as JSON; nothing where an answer has begun, which then breaks off."""
        if self.status:
            return
        body = msgspec.json.encode({"error": line})
        await self.whole(status, body, [_JSON, _NO_STORE, *headers])

    async def part(self, message: Message) -> None:
        """What a cold route sends."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], *self._cold, (b"x-request-id", self.request.encode())]
        else:
            self.size += len(message.get("body", b""))
            if len(message.get("body", b"")) > _PIECE:
                message = await self._but_the_last(message)
        await self._send(message)

    async def _but_the_last(self, message: Message) -> Message:
        """Send all pieces of a body but one, each when the connection has room for it, and return that one."""
        body = message["body"]
        last = (len(body) - 1) // _PIECE * _PIECE
        for start in range(0, last, _PIECE):
            await self._send({**message, "body": body[start : start + _PIECE], "more_body": True})
        return {**message, "body": body[last:]}


def _template(scope: Scope) -> str:
    """The route as it is declared, never as it was asked for."""
    route: Any = scope.get("route")
    method = scope["method"] if scope["method"] in _METHODS else "OTHER"
    return f"{method} {getattr(route, 'path_format', '(none)')}"


def _encoded(headers: Any) -> Headers:
    return [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]


def _where(error: Exception) -> str:
    """Which error, and at which line of which file: not its words, which may hold what was sent."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
