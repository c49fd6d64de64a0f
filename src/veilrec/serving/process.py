"""Run any ASGI application of ours in a process: a socket, TLS, signals, and a graceful end.

The recommender (`app.serve`) and the coordinator of a federation both use it; it knows neither of them.

One connection: uvicorn's, with bounds on what may come before a request is whole, and answers that leave whole.

The parser that it uses has no limit on headers of its own, and nobody looks at the time while a request trickles in.
Head and body of an answer are written one after the other: two records of TLS and two packets, for a few bytes each.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from veilrec.core.errors import BadInput
from veilrec.serving.middleware import FromLibrary, Log, RequestMiddleware
from veilrec.wire.signing import is_loopback

_MAX_HEADER_BYTES = 16 << 10
_MAX_HEADERS = 100
_SLOWEST_SECONDS = 20.0  # for a whole request to come in


_SMALL = 1 << 14  # bytes of a record of TLS; what is longer is not copied together


class _Gathering:
    """A transport of which all that is written in one turn of the loop leaves at once."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._waiting: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send this with what follows at once."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)

    def close(self) -> None:
        """Send what waits, and hang up."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting or self._transport.is_closing():
            return
        if sum(map(len, waiting)) <= _SMALL:
            self._transport.write(b"".join(waiting))
        else:
            self._transport.writelines(waiting)


class Connection(HttpToolsProtocol):
    """Refuses headers that are too large, and requests that do not end."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._before_body = 0  # bytes since the last request, before the headers of the next were whole
        self.began: float | None = None  # when the request that is coming in began, or the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Note when a connection began."""
        self.began = self.loop.time()
        super().connection_made(_Gathering(transport, self.loop))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Count what comes before a request is known."""
        if self.began is None:
            self.began = self.loop.time()
        self._before_body += len(data)
        super().data_received(data)
        if self.parser is not None and self._before_body > _MAX_HEADER_BYTES and not self.transport.is_closing():
            self._refuse()

    def on_headers_complete(self) -> None:
        """Check the size of the headers."""
        size = len(self.url) + sum(map(len, chain.from_iterable(self.headers)))
        if size > _MAX_HEADER_BYTES or len(self.headers) > _MAX_HEADERS:
            self._before_body = size
            raise ValueError("headers")  # the parser stops, and the client gets a 400
        self._before_body = -(1 << 62)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request is whole."""
        self._before_body = 0
        self.began = None
        super().on_message_complete()

    def _refuse(self) -> None:
        self.send_400_response("The headers are too large.")

    def close_if_slow(self, now: float) -> None:
        """Hang up on a request that does not end."""
        if self.began is not None and now - self.began > _SLOWEST_SECONDS and not self.transport.is_closing():
            self.transport.close()


_BACKLOG = 2048
_MAX_CONNECTIONS = 4096
_KEEP_ALIVE_SECONDS = 30
_FINISH_SECONDS = 10  # for what runs when the end is asked for
_LOG_SECONDS = 0.05


@dataclass(frozen=True)
class ListenAddress:
    """Address, port and TLS files of a server."""

    host: str = "127.0.0.1"
    port: int = 8337
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool = False  # plain text to other machines
    oldest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    way_out: str = "give another --host or --port; port 0 is any"  # where this one cannot be used

    def check(self) -> None:
        """Refuse addresses that would send private answers over a network in plaintext."""
        if (self.certificate is None) != (self.key is None):
            raise BadInput("TLS needs both: give --tls-cert and --tls-key")
        if self.certificate is None and not self.insecure and not is_loopback(self.host):
            raise BadInput(
                f"{self.host} is open to other machines, and without TLS what they tell could be read on the way: give"
                " --tls-cert and --tls-key, or --insecure-plaintext behind a proxy that has them"
            )

    def listen(self) -> socket.socket:
        """Open the socket; raise BadInput where the port is taken."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (socket.gaierror, OverflowError, UnicodeError):
            raise BadInput(f"{self.host}:{self.port} is no address of this machine: {self.way_out}") from None
        family, _, _, _, address = found[0]
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(address)
            opened.listen(_BACKLOG)
        except (OSError, OverflowError) as error:
            opened.close()
            reason = getattr(error, "strerror", None) or "not allowed"
            raise BadInput(f"port {self.port} of {self.host} cannot be used ({reason}): {self.way_out}") from None
        opened.setblocking(False)
        return opened

    def url(self, opened: socket.socket) -> str:
        """Return the URL of an open socket."""
        port = opened.getsockname()[1]
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.certificate is None else 'https'}://{host}:{port}"

    def tls(self) -> ssl.SSLContext | None:
        """TLS 1.2 and newer unless told otherwise, or none."""
        if self.certificate is None or self.key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self.oldest
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise BadInput(
                f"{self.certificate} and {self.key} are no certificate and key ({error.strerror or error})"
            ) from None
        return context


class _Server(uvicorn.Server):
    """Leave signals to `serve_app`: after a graceful end the exit code is 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


Prepare = Callable[[asyncio.AbstractEventLoop, Callable[[], None]], None]
"""Called in the loop before the first request, with what ends the service."""


def serve_app(
    app: RequestMiddleware,
    log: Log,
    place: ListenAddress,
    announce: Callable[[str], None],
    prepare: Prepare,
    *,
    signals: bool = True,
) -> None:
    """Serve an application until SIGTERM, Ctrl-C, or whatever `prepare` arranges; a thread listens to no signals."""
    place.check()
    context, opened = place.tls(), place.listen()
    uvicorn_log = logging.getLogger("uvicorn.error")
    uvicorn_log.handlers, uvicorn_log.propagate = [FromLibrary(log)], False
    uvicorn_log.setLevel(logging.WARNING)
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_FINISH_SECONDS,
    )
    config.load()
    config.ssl = context
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(_Server(config), log, opened, lambda: announce(place.url(opened)), prepare, signals=signals))
    log.flush()


async def _serve(
    server: _Server, log: Log, opened: socket.socket, announce: Callable[[], None], prepare: Prepare, *, signals: bool
) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.force_exit = server.should_exit  # asked twice: at once
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT) if signals else ():
        loop.add_signal_handler(number, stop)
    prepare(loop, stop)
    log.later = lambda flush: loop.call_later(_LOG_SECONDS, flush)
    hurrying = asyncio.create_task(_hurry(server))
    announce()
    try:
        await server.serve(sockets=[opened])
    finally:
        hurrying.cancel()
        log.later = None


async def _hurry(server: _Server) -> None:
    """Hang up on requests that do not end, once a second."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(1.0)
        now = loop.time()
        for connection in list(server.server_state.connections):
            if isinstance(connection, Connection):
                connection.close_if_slow(now)
