"""The door: every request gets an id, a limit, a route, a time, and headers that keep browsers careful."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping
from secrets import token_hex
from time import perf_counter
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.routing import Router

from veilrec.server.http.limits import RateLimit
from veilrec.server.http.logs import Log
from veilrec.server.http.metrics import Metrics
from veilrec.server.http.receiving import ClientGone, Headers, Message, Receive, Refused, Scope, Send

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
_UNLIMITED = {"/healthz", "/readyz"}
_GONE = 499  # in the log: nobody was there to be answered

Hot = Callable[[Scope, Receive], Awaitable[tuple[bytes, bytes]]]
"""What a route that is asked often does with a POST: the body of its answer, and of which type that is."""


class Door:
    """The ASGI application."""

    def __init__(self, hot: Mapping[str, Hot], cold: Router, limit: RateLimit, metrics: Metrics, log: Log) -> None:
        """`hot`: by path, what answers a POST past the router, which knows these paths too, for other methods."""
        self._hot, self._cold, self._limit, self.metrics, self._log = hot, cold, limit, metrics, log
        self._headers = _COLD
        self.on_start: Callable[[], None] = lambda: None
        self.on_stop: Callable[[], None] = lambda: None

    def let_pages_ask(self, address: str) -> None:
        """Pages of this door may also ask one other server: the coordinator of a federation that they take part in."""
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
            wait = 0 if path in _UNLIMITED or client is None else self._limit.wait(client[0], start)
            if wait:
                route = "(limited)"
                await answer.refuse(429, f"too many requests from this address: wait {wait} s", _wait_for(wait))
            elif hot is not None:
                route = f"POST {path}"
                body, kind = await hot(scope, receive)
                await answer.whole(200, body, [(b"content-type", kind), _NO_STORE], _ALWAYS)
            else:
                scope["app"] = self
                await self._cold(scope, receive, answer.part)
        except Refused as refusal:
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
        await self._send({"type": "http.response.body", "body": body})

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
        await self._send(message)


def _wait_for(seconds: int) -> Headers:
    return [(b"retry-after", b"%d" % seconds), (b"connection", b"close")]


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
