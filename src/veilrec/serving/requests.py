"""Requests and responses, field by field: unknown fields are refused.

Bodies are read up to a limit before anything is parsed; a refusal is a status and one line.

The document of the API is `openapi.yaml`; the schemas of its bodies come from the structures that read and write them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from veilrec._version import __version__
from veilrec.wire.releases import Release

_HERE = Path(__file__).parent
MAX_K = 1000
BODY_CAP = 1 << 16  # bytes of a body that are read; more are refused before they are parsed
LARGEST_NUMBER = 1e6  # of a vector or a prior: far beyond any model, and scores stay finite

Share = Annotated[float, Meta(ge=0.0, le=1.001)]
Number = Annotated[float, Meta(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
Shares = Annotated[
    list[Share], Meta(min_length=1, max_length=4096, description="Over the interests; they add up to 1.")
]
Numbers = Annotated[list[Number], Meta(min_length=1, max_length=4096)]
Count = Annotated[int, Meta(ge=1, le=MAX_K, description="How many items come back.")]
Word = Annotated[str, Meta(min_length=1, max_length=200)]
Text = Annotated[str, Meta(max_length=2000)]
Moment = Annotated[str, Meta(max_length=40, description="RFC 3339, as in 2026-11-17T06:40:00Z.")]


class RecommendRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A query: one of alpha, interest, vector and told, or none of them for the non-personalised list.

    Categories and region are sent in plaintext: a client that does not want to send them filters by itself.
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
    """State of an item, once it is on disk and in the index."""

    id: str
    visible: bool


class Signed(msgspec.Struct):
    """The release: its manifest, as the text that is signed, its signature, and the keys that were handed over."""

    manifest: str
    signature: dict[str, str | int]
    keys: list[dict[str, str]]


class ErrorBody(msgspec.Struct):
    """An error: what was wrong, what is allowed, what to do."""

    error: str


_BODIES = (RecommendRequest, RecommendResponse, NewItem, Visible, Signed, ErrorBody)


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
    """The client left before the body was whole."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """A header of a request; the first of several."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


async def read_body(scope: Scope, receive: Receive, cap: int = BODY_CAP) -> bytes:
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


@dataclass(frozen=True)
class StaticFile:
    """Bytes with a type and a strong tag, zipped where that helps and the client reads it."""

    plain: bytes
    zipped: bytes | None
    kind: str
    tag: str

    @classmethod
    def of(cls, plain: bytes, kind: str, *, zipped: bool = True, level: int = 9) -> StaticFile:
        """Zip the content once, for all clients."""
        small = gzip.compress(plain, level, mtime=0) if zipped else None
        if small is not None and len(small) >= len(plain):
            small = None
        return cls(plain, small, kind, hashlib.sha256(plain).hexdigest()[:32])

    def answer(self, request: Request, *, cache: str = "no-cache") -> Response:
        """Answer 200 with the content, or 304 to a client that has it."""
        zipped = self.zipped is not None and takes_gzip(request)
        tag = f'"{self.tag}-gz"' if zipped else f'"{self.tag}"'
        headers = {"etag": tag, "cache-control": cache, "vary": "accept-encoding"}
        if has(request, tag):
            return Response(status_code=304, headers=headers)
        if zipped:
            headers["content-encoding"] = "gzip"
        content = self.zipped if zipped else self.plain
        return Response(content, headers=headers, media_type=self.kind)


def takes_gzip(request: Request) -> bool:
    """Check whether the client accepts gzip."""
    for part in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, quality = part.partition(";")
        if name.strip() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def has(request: Request, tag: str) -> bool:
    """Check whether the client has this content already."""
    told = request.headers.get("if-none-match", "")
    return told.strip() == "*" or tag in [each.strip().removeprefix("W/") for each in told.split(",")]


def document(release: Release) -> dict[str, Any]:
    """Return the OpenAPI document of the service of a release."""
    import yaml

    _, schemas = msgspec.json.schema_components(_BODIES, ref_template="#/components/schemas/{name}")
    api: dict[str, Any] = yaml.safe_load(_HERE.joinpath("openapi.yaml").read_text(encoding="utf-8"))
    del api["x-shared"]
    promise = "" if release.protected else " This release is unprotected: no proof covers those it was learnt from."
    api["info"] = {
        "title": f"veilrec: {release.name}",
        "version": __version__,
        "description": f"Recommendations without a history leaving the client.{promise}",
    }
    api["components"]["schemas"] = schemas
    return api


def docs_page(api: Mapping[str, Any]) -> bytes:
    """Render an OpenAPI document as HTML: routes with their answers, then the bodies."""
    from jinja2 import Environment

    template = _HERE.joinpath("docs.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True)
    return environment.from_string(template).render(api=api, dumps=json.dumps).encode()
