"""The log: one JSON object a line, of fields from a closed list.

There is no place in it for an id of an item, a vector, an address, a body or a query string: what is not in the list
cannot be written. A word about the server itself ("event") comes from the code and never from a request.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import BinaryIO

import msgspec

_AT_ONCE = 512  # lines that wait to be written


class RequestLine(msgspec.Struct):
    """What is kept of a request."""

    time: float
    request: str
    """Its id, which we drew."""
    route: str
    """The template: /v1/items/{id}, never the path."""
    status: int
    microseconds: int
    bytes: int
    """Of the answer."""


class EventLine(msgspec.Struct, omit_defaults=True):
    """What happened to the server."""

    time: float
    event: str
    level: str = "info"
    request: str = ""
    """The id of the request during which it happened."""


class Log:
    """Lines to a stream; those of requests wait up to a moment, so that many are written at once."""

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self._stream = stream or getattr(sys.stderr, "buffer", None)
        self._encoder = msgspec.json.Encoder()
        self._waiting: list[bytes] = []
        self._lock = threading.Lock()
        self.later: Callable[[Callable[[], None]], object] | None = None  # how to be called again in a moment

    def request(self, request: str, route: str, status: int, seconds: float, size: int) -> None:
        """One answered request."""
        line = RequestLine(round(time.time(), 3), request, route, status, int(seconds * 1e6), size)
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
    """What the HTTP library has to say becomes an event, without the values that it would put in."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """The words of the message as they stand in the library's code: no arguments, no traceback."""
        self._log.event(str(record.msg).partition("\n")[0][:200], level=record.levelname.lower())
