"""Connections of a server: a place for each, TLS, and HTTP/1.1 with bounds on what a stranger can make it hold.

| what | bound |
|---|---|
| connections of one address | `Places`, counted before TLS; one household of IPv6 (/64) is an address |
| TLS handshake | 10 seconds |
| bytes that are no body: request line, headers, chunk sizes and extensions, trailers | 16 KB since the last body byte |
| requests that wait behind another one (pipelining) | 16 |
| a whole request | 20 seconds |
| an answer that is not taken | 1 KB a second, over 20 seconds; 64 KB of it wait in this process |

Trailers are dropped: a header that comes after the body is none of the request.

Head and body of an answer are gathered: written one after the other they were two records of TLS and two packets.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MAX_HEADER_BYTES = 16 << 10
_MAX_HEADERS = 100
_MAX_WAITING = 16  # requests behind the one that is answered
_SLOWEST_SECONDS = 20.0  # for a whole request to come in, and between looks at how much of an answer was taken
_SLOWEST_BYTES = 1 << 10  # a second, of an answer
_HANDSHAKE_SECONDS = 10.0
_GOODBYE_SECONDS = 5.0  # for the other side to close TLS
_SMALL = 1 << 14  # bytes of a record of TLS; what is longer is not copied together
_HELD = 1 << 16  # bytes of an answer that wait here: more is written when these have gone


def network(address: str) -> str:
    """The part of an address that one household has: all of IPv4, the first half of IPv6."""
    if ":" not in address:
        return address
    try:
        whole = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(whole.ipv4_mapped or (int(whole) >> 64))


class Places:
    """Places for connections: `most` in all, `each` for one address; 0: as many as there are."""

    def __init__(self, most: int, each: int) -> None:
        self._most, self._each = most, each or most
        self._taken = Counter[str]()
        self.total = 0
        self.refused = 0

    def take(self, address: str) -> bool:
        """Take a place, if there is one for this address."""
        if self.total >= self._most or self._taken[address] >= self._each:
            self.refused += 1
            if not self._taken[address]:
                del self._taken[address]
            return False
        self._taken[address] += 1
        self.total += 1
        return True

    def leave(self, address: str) -> None:
        """Give a place back."""
        self.total -= 1
        self._taken[address] -= 1
        if not self._taken[address]:
            del self._taken[address]


class Gate(asyncio.Protocol):
    """What a new connection meets first: it gets a place or none, then TLS, then `make()` speaks HTTP on it."""

    def __init__(self, make: Callable[[], Connection], tls: ssl.SSLContext | None, places: Places) -> None:
        self._make, self._tls, self._places = make, tls, places
        self._address: str | None = None  # that has a place
        self._early = b""  # what came while nobody else listened
        self._greeting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, or hang up."""
        peer = transport.get_extra_info("peername")
        address = network(str(peer[0])) if peer else ""
        if not self._places.take(address):
            transport.abort()
            return
        self._address = address
        if self._tls is None:
            self._hand_over(transport, transport)
        else:
            self._greeting = asyncio.get_running_loop().create_task(self._greet(transport, self._tls))

    def data_received(self, data: bytes) -> None:
        """Keep what comes before TLS is there, and between its handshake and the first reader of HTTP."""
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        if self._address is not None:
            self._places.leave(self._address)
            self._address = None

    async def _greet(self, raw: asyncio.Transport, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            secured = loop.start_tls(
                raw,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=_GOODBYE_SECONDS,
            )
            handshake = loop.create_task(secured)
            await asyncio.sleep(0)  # from now on TLS reads; it gets what came before
            early, self._early = self._early, b""
            if early:
                reader: Any = raw.get_protocol()
                reader.get_buffer(len(early))[: len(early)] = early
                reader.buffer_updated(len(early))
            transport = await handshake
        except Exception:  # of a stranger: nothing to tell anybody
            raw.abort()
            self.connection_lost(None)
            return
        if transport is not None and self._address is not None:
            self._hand_over(transport, raw)

    def _hand_over(self, transport: asyncio.Transport, raw: asyncio.Transport) -> None:
        connection = self._make()
        connection.raw, connection.on_end = raw, self.connection_lost
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if self._early:
            connection.data_received(self._early)
            self._early = b""


class _Gathering:
    """A transport of which all that is written in one turn of the loop leaves at once, and no more than is taken."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._waiting: list[bytes] = []
        self._size = 0
        self.written = 0  # bytes, since it was opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send this with what follows at once."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)
        self._size += len(data)
        if self._size >= _HELD:  # whoever writes is told now that this is enough
            self._flush()

    def close(self) -> None:
        """Send what waits, and hang up."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        size, self._size = self._size, 0
        if not waiting or self._transport.is_closing():
            return
        self.written += size
        if size <= _SMALL:
            self._transport.write(b"".join(waiting))
        else:
            self._transport.writelines(waiting)


class Connection(HttpToolsProtocol):
    """HTTP/1.1 of the library, within bounds."""

    raw: asyncio.Transport | None = None  # below TLS
    transport: _Gathering  # type: ignore[assignment]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._no_body = 0  # bytes since the last one of a body, or the last request
        self.began: float | None = None  # when the request that is coming in began, or the connection
        self._looked: tuple[float, int] | None = None  # when, and how much had been taken, of an answer that waits
        self.on_end: Callable[[Exception | None], None] = lambda _: None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Note when a connection began."""
        self.began = self.loop.time()
        transport.set_write_buffer_limits(high=_HELD)
        super().connection_made(_Gathering(transport, self.loop))  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        super().connection_lost(exc)
        self.on_end(exc)

    def data_received(self, data: bytes) -> None:
        """Count what is no body."""
        if self.began is None:
            self.began = self.loop.time()
        self._no_body += len(data)
        super().data_received(data)
        if self._no_body > _MAX_HEADER_BYTES and self.parser is not None and not self.transport.is_closing():
            self.send_400_response("The headers are too large.")

    def on_headers_complete(self) -> None:
        """Check the size of the headers."""
        size = len(self.url) + sum(map(len, chain.from_iterable(self.headers)))
        if size > _MAX_HEADER_BYTES or len(self.headers) > _MAX_HEADERS or len(self.pipeline) >= _MAX_WAITING:
            raise ValueError("headers")  # the parser stops, and the client gets a 400
        self._no_body = 0
        super().on_headers_complete()
        self.headers = []  # those of the request are in its scope; what follows are trailers, which nobody reads

    def on_body(self, body: bytes) -> None:
        """Some of a body has come."""
        self._no_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is whole."""
        self._no_body = 0
        self.began = None
        super().on_message_complete()

    def close_if_slow(self, now: float) -> None:
        """Hang up on a request that does not end, and on an answer that is not taken."""
        if (self.began is not None and now - self.began > _SLOWEST_SECONDS) or self._is_stuck(now):
            self.transport.abort()  # to close would be to wait for the other side once more

    def _is_stuck(self, now: float) -> bool:
        waits = self.transport.get_write_buffer_size()
        if self.raw is not None and self.raw is not self.transport._transport:
            waits += self.raw.get_write_buffer_size()
        if not waits:
            self._looked = None
            return False
        taken = self.transport.written - waits
        since, before = self._looked = self._looked or (now, taken)
        if now - since < _SLOWEST_SECONDS:
            return False
        self._looked = (now, taken)
        return bool(taken - before < (now - since) * _SLOWEST_BYTES)
