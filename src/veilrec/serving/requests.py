"""What comes in and what goes out, field by field: what is not written here is refused.

Bodies and errors: how much is read before anything is parsed, and how a refusal is worded.

The document of the API, OpenAPI 3.1: bodies come from the structures that read and write them.

The document of the API as a page: one file of HTML and one of style, nothing from elsewhere, no script.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from html import escape
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from veilrec._version import __version__
from veilrec.wire.releases import Release

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


Json = dict[str, Any]
_BODIES = (RecommendRequest, RecommendResponse, NewItem, Visible, Signed, ErrorBody)
_COMMON = (400, 405, 413, 429, 503)
_WHEN = {
    400: "Not as it should be; one line says what is.",
    401: "The token is missing or wrong.",
    403: "Items cannot be changed on this server.",
    404: "There is no such thing.",
    405: "Not with this method.",
    409: "This release ranks on devices only.",
    413: "The body is too large; it was not read.",
    415: "The body has a type that is not read.",
    429: "Too many requests from this address; Retry-After says how long to wait.",
    501: "This server has no encoder for new items.",
    503: "Not ready, or too busy; Retry-After says how long to wait.",
    507: "The disk is full; nothing was changed.",
}


def document(release: Release) -> Json:
    """Of the service of a release."""
    _, schemas = msgspec.json.schema_components(_BODIES, ref_template="#/components/schemas/{name}")
    promise = "" if release.protected else " This release is unprotected: no proof covers those it was learnt from."
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"veilrec: {release.name}",
            "version": __version__,
            "description": f"Recommendations without a history leaving the device.{promise}",
        },
        "paths": {
            "/v1/recommend": {"post": _recommend()},
            "/v1/pool": {
                "get": _get("The items that anybody may reach, to be ranked on the device", _bytes(), 304, 409)
            },
            "/v1/release": {"get": _get("The manifest of the release and its signature", _json("Signed"), 304)},
            "/v1/release/files/{path}": {
                "get": _get("A file of the release", _bytes(), 304, 404) | {"parameters": [_in_path("path")]}
            },
            "/v1/items/{id}": {"parameters": [_in_path("id")], "put": _put(), "delete": _delete()},
            "/healthz": {"get": _get("Whether the server is alive", _any_json())},
            "/readyz": {"get": _get("Whether it can answer", _any_json())},
            "/metrics": {
                "get": _get("Counts for Prometheus; nothing of anybody", {"text/plain": {"schema": {"type": "string"}}})
            },
            "/openapi.json": {"get": _get("This document", _any_json(), 304)},
        },
        "components": {"schemas": schemas, "securitySchemes": {"admin": {"type": "http", "scheme": "bearer"}}},
    }


def _recommend() -> Json:
    bytes_only = "of a query in bytes; a JSON body has it inside"
    listed: Json = {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 200}, "maxItems": 100}
    return {
        "operationId": "recommend",
        "summary": "The best items for what a device tells, or for nobody in particular",
        "parameters": [
            _in_query("form", {"enum": ["list", "pool"]}, "pool: a file of items with vectors, for the device to rank"),
            _in_query("k", {"type": "integer", "minimum": 1, "maximum": MOST_K}, bytes_only),
            _in_query("categories", listed, bytes_only),
            _in_query("region", {"type": "string", "minLength": 1, "maxLength": 200}, bytes_only),
        ],
        "requestBody": {"required": True, "content": _json("RecommendRequest") | _bytes()},
        "responses": _responses(200, _json("RecommendResponse") | _bytes(), 409, 415),
    }


def _put() -> Json:
    responses = _responses(200, _json("Visible"), 401, 403, 409, 415, 501, 507)
    return {
        "operationId": "put-item",
        "summary": "Add an item or change it; it is on disk and visible when this is answered",
        "security": [{"admin": []}],
        "requestBody": {"required": True, "content": _json("NewItem")},
        "responses": {"201": responses["200"], **responses},
    }


def _delete() -> Json:
    return {
        "operationId": "delete-item",
        "summary": "Take an item out for good",
        "security": [{"admin": []}],
        "responses": _responses(200, _json("Visible"), 401, 403, 404, 409, 507),
    }


def _get(summary: str, content: Json, *statuses: int) -> Json:
    return {"summary": summary, "responses": _responses(200, content, *statuses)}


def _responses(good: int, content: Json, *statuses: int) -> Json:
    found: Json = {str(good): {"description": "As asked.", "content": content}}
    if 304 in statuses:
        found["304"] = {"description": "You have it."}
    for status in sorted({*_COMMON, *statuses} - {304}):
        found[str(status)] = {"description": _WHEN[status], "content": _json("ErrorBody")}
    return found


def _json(name: str) -> Json:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _any_json() -> Json:
    return {"application/json": {"schema": {"type": "object"}}}


def _bytes() -> Json:
    return {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def _in_path(name: str) -> Json:
    schema = {"type": "string", "minLength": 1, "maxLength": 200}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _in_query(name: str, schema: Json, what: str) -> Json:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": what}


STYLE = b"""
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
section { border-top: 1px solid #8888; padding: 0.5rem 0 }
h2 code { font-size: 1rem }
.method { font-weight: 700; display: inline-block; min-width: 4.5rem }
table { border-collapse: collapse } td { padding: 0.1rem 1rem 0.1rem 0; vertical-align: top }
pre { overflow-x: auto; background: #8882; padding: 0.6rem; border-radius: 4px }
"""


def docs_page(api: Mapping[str, Any]) -> bytes:
    """HTML of an OpenAPI document: routes with their answers, then the bodies."""
    info = api["info"]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<title>{escape(info["title"])}</title><link rel="stylesheet" href="/docs.css"></head><body><main>',
        f"<h1>{escape(info['title'])}</h1><p>{escape(info['description'])}</p>",
        '<p>The same for programs: <a href="/openapi.json">openapi.json</a>.</p>',
    ]
    for path, methods in api["paths"].items():
        shared = methods.get("parameters", [])
        parts += [_operation(path, name, shared, each) for name, each in methods.items() if name != "parameters"]
    for name, schema in api["components"]["schemas"].items():
        text = escape(json.dumps(schema, indent=2, ensure_ascii=False))
        parts.append(f'<section id="{escape(name)}"><h2>{escape(name)}</h2><pre>{text}</pre></section>')
    return ("".join(parts) + "</main></body></html>").encode()


def _operation(path: str, method: str, shared: list[Any], operation: Mapping[str, Any]) -> str:
    rows = []
    for each in [*shared, *operation.get("parameters", [])]:
        about = f"{each['in']}; {each.get('description', 'needed' if each['required'] else '')}"
        rows.append((each["name"], escape(about.strip("; "))))
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        rows.append(("body", f"{escape(kind)} {_link(content)}"))
    for status, answer in operation["responses"].items():
        kinds = " ".join(f"{escape(kind)} {_link(each)}" for kind, each in answer.get("content", {}).items())
        rows.append((status, f"{escape(answer['description'])} {kinds}"))
    table = "".join(f"<tr><td><code>{escape(name)}</code></td><td>{text}</td></tr>" for name, text in rows)
    head = f'<h2><code><span class="method">{method.upper()}</span> {escape(path)}</code></h2>'
    return f"<section>{head}<p>{escape(operation['summary'])}.</p><table>{table}</table></section>"


def _link(content: Mapping[str, Any]) -> str:
    name = content["schema"].get("$ref", "").rpartition("/")[2]
    return f'<a href="#{escape(name)}">{escape(name)}</a>' if name else ""
