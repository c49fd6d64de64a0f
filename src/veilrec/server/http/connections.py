"""One connection: uvicorn's, with bounds on what may come before a request is whole, and answers that leave whole.

The parser that it uses has no limit on headers of its own, and nobody looks at the time while a request trickles in.
Head and body of an answer are written one after the other: two records of TLS and two packets, for a few bytes each.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_HEADER_BYTES = 16 << 10
_MOST_HEADERS = 100
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
        """A client has come."""
        self.began = self.loop.time()
        super().connection_made(_Gathering(transport, self.loop))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Count what comes before a request is known."""
        if self.began is None:
            self.began = self.loop.time()
        self._before_body += len(data)
        super().data_received(data)
        if self.parser is not None and self._before_body > _MOST_HEADER_BYTES and not self.transport.is_closing():
            self._refuse()

    def on_headers_complete(self) -> None:
        """From here on the body's own limit counts."""
        size = len(self.url) + sum(map(len, chain.from_iterable(self.headers)))
        if size > _MOST_HEADER_BYTES or len(self.headers) > _MOST_HEADERS:
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
