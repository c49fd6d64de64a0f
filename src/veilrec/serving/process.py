"""Run any ASGI application of ours in a process: a socket, TLS, signals, and a graceful end.

The recommender (`app.serve`) and the coordinator of a federation both use it; it knows neither of them. What one
connection may do is in `connections`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from veilrec.core.errors import BadInput
from veilrec.serving.connections import Connection, Gate, Places
from veilrec.serving.middleware import FromLibrary, Log, RequestMiddleware
from veilrec.wire.signing import is_loopback

_BACKLOG = 2048
_MAX_CONNECTIONS = 4096
_GREETING = 512  # more, that are refused with a 503, or in a handshake
_OTHER_FILES = 128  # that a server may have open beside
CONNECTIONS = 256  # of one address
_KEEP_ALIVE_SECONDS = 30
_FINISH_SECONDS = 10  # for what runs when the end is asked for
_LOG_SECONDS = 0.05
_SAID_SECONDS = 60.0
_SENT_BYTES = 1 << 17  # of a connection, that wait in the system (twice as many): megabytes for each starve all others


@dataclass(frozen=True)
class ListenAddress:
    """Address, port and TLS files of a server."""

    host: str = "127.0.0.1"
    port: int = 8337
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool = False  # plain text to other machines
    oldest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    connections: int = CONNECTIONS  # of one address at once; 0: no limit
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
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENT_BYTES)  # its connections inherit it
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
    places = Places(min(_MAX_CONNECTIONS + _GREETING, _open_files() - _OTHER_FILES), place.connections)
    app.metrics.places = places

    def gate(**named: Any) -> Gate:
        return Gate(lambda: Connection(**named), context, places)

    config.http_protocol_class = gate  # type: ignore[assignment]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        server, told = _Server(config), partial(announce, place.url(opened))
        runner.run(_serve(server, log, opened, places, told, prepare, signals=signals))
    log.flush()


def _open_files() -> int:
    """Allow this process as many open files as the machine lets it, and return how many these are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * (_MAX_CONNECTIONS + _GREETING)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else soft


async def _serve(
    server: _Server,
    log: Log,
    opened: socket.socket,
    places: Places,
    announce: Callable[[], None],
    prepare: Prepare,
    *,
    signals: bool,
) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.force_exit = server.should_exit  # asked twice: at once
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT) if signals else ():
        loop.add_signal_handler(number, stop)
    prepare(loop, stop)
    log.later = lambda flush: loop.call_later(_LOG_SECONDS, flush)
    hurrying = asyncio.create_task(_hurry(server, log, places))
    announce()
    try:
        await server.serve(sockets=[opened])
    finally:
        hurrying.cancel()
        log.later = None


async def _hurry(server: _Server, log: Log, places: Places) -> None:
    """Once a second, hang up on those that are too slow; once a minute, say how many found no place."""
    loop = asyncio.get_running_loop()
    told, said_at = 0, -inf
    while True:
        await asyncio.sleep(1.0)
        now = loop.time()
        for connection in list(server.server_state.connections):
            if isinstance(connection, Connection):
                connection.close_if_slow(now)
        if places.refused > told and now - said_at >= _SAID_SECONDS:
            log.event(f"no place for {places.refused - told} connections: see --connections", level="warning")
            told, said_at = places.refused, now
