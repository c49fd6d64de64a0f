"""What comes in and what goes out, field by field: what is not written here is refused.

Bodies and errors: how much is read before anything is parsed, and how a refusal is worded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

MOST_K = 1000
LARGEST_NUMBER = 1e6  # of a vector or a prior: far beyond any model, and scores stay finite

Share = Annotated[float, Meta(ge=0.0, le=1.001)]
Number = Annotated[float, Meta(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
Shares = Annotated[
    list[Share], Meta(min_length=1, max_length=4096, description="Over the interests; they add up to 1.")
]
Numbers = Annotated[list[Number], Meta(min_length=1, max_length=4096)]
Count = Annotated[int, Meta(ge=1, le=MOST_K, description="How many items come back.")]
Word = Annotated[str, Meta(min_length=1, max_length=200)]
Text = Annotated[str, Meta(max_length=2000)]
Moment = Annotated[str, Meta(max_length=40, description="RFC 3339, as in 2026-11-17T06:40:00Z.")]


class RecommendRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A question: one of alpha, interest, vector and told, or none of them for the list that is the same for all.

    Categories and region are told in the clear: a device that does not want to tell them filters by itself.
    """

    alpha: Shares | None = None
    interest: Annotated[int, Meta(ge=0, le=65535)] | None = None
    vector: Numbers | None = None
    told: Numbers | None = None
    k: Count = 10
    categories: Annotated[list[Word], Meta(max_length=100)] | None = None
    region: Word | None = None


class NewItem(msgspec.Struct, forbid_unknown_fields=True):
    """An item to be recommended from now on."""

    title: Annotated[str, Meta(min_length=1, max_length=2000)]
    abstract: Text = ""
    category: Annotated[str, Meta(max_length=200)] = ""
    subcategory: Annotated[str, Meta(max_length=200)] = ""
    region: Annotated[str, Meta(max_length=200)] = ""
    expires: Moment | None = None
    prior: Annotated[Number, Meta(description="Added to the score of everybody.")] = 0.0


class ReleaseName(msgspec.Struct):
    """Which release answered."""

    name: str
    version: int


class Ranked(msgspec.Struct):
    """One item of an answer."""

    id: str
    title: str
    category: str
    score: float


class RecommendResponse(msgspec.Struct):
    """The best items, best first."""

    release: ReleaseName
    items: list[Ranked]


class Visible(msgspec.Struct):
    """What became of an item, once that is on disk and in the index."""

    id: str
    visible: bool


class Signed(msgspec.Struct):
    """The release: its manifest, as the text that is signed, its signature, and the keys that were handed over."""

    manifest: str
    signature: dict[str, str | int]
    keys: list[dict[str, str]]


class ErrorBody(msgspec.Struct):
    """What was wrong, what is allowed, what to do."""

    error: str


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

BUSY: Headers = [(b"retry-after", b"2")]
_CLOSE: Headers = [(b"connection", b"close")]


class RequestRefused(Exception):
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


def _too_large(cap: int) -> RequestRefused:
    return RequestRefused(413, f"the body is too large: at most {cap:,} bytes are read", _CLOSE)


def decoded(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """The fields of a JSON body; anything odd is a 400 with one line."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise RequestRefused(400, f"the body is not as it should be: {error}; see /docs") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        raise RequestRefused(400, "the body is no JSON: send one object in UTF-8, as in /docs") from None
