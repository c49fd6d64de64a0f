"""Bodies and errors: how much is read before anything is parsed, and how a refusal is worded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

BUSY: Headers = [(b"retry-after", b"2")]
_CLOSE: Headers = [(b"connection", b"close")]


class Refused(Exception):
    """A request that is answered with a status and one line."""

    def __init__(self, status: int, line: str, headers: Headers | None = None) -> None:
        super().__init__(line)
        self.status, self.line, self.headers = status, line, headers or []


class ClientGone(Exception):
    """Whoever asked has left before the body was whole."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """A header of a request; the first of several."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


async def read_body(scope: Scope, receive: Receive, cap: int) -> bytes:
    """The body of a request, never more than `cap` bytes of it: a larger one is refused while it comes."""
    told = header(scope, b"content-length")
    if told is not None and (not told.isdigit() or len(told) > 15 or int(told) > cap):
        raise _too_large(cap)
    message = await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body", False):
        parts, size = [body], len(body)
        while message.get("more_body", False):
            if size > cap:
                raise _too_large(cap)
            message = await receive()
            part = message.get("body", b"")
            parts.append(part)
            size += len(part)
        body = b"".join(parts)
    if message["type"] == "http.disconnect":
        raise ClientGone
    if len(body) > cap:
        raise _too_large(cap)
    return body


def _too_large(cap: int) -> Refused:
    return Refused(413, f"the body is too large: at most {cap:,} bytes are read", _CLOSE)


def decoded(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """The fields of a JSON body; anything odd is a 400 with one line."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise Refused(400, f"the body is not as it should be: {error}; see /docs") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        raise Refused(400, "the body is no JSON: send one object in UTF-8, as in /docs") from None
