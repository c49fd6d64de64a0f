"""How a device reaches a server: a few requests that carry a query and nothing else of anybody.

No cookies, no redirects (a query goes where it was meant to go, or nowhere), no proxy that the environment names, a
limit to how much is read, and no plain text off this machine unless that is asked for.
"""

from __future__ import annotations

import gzip
import json
import ssl
import zlib
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, InvalidURL
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from veilrec.errors import BadInput, VeilrecError
from veilrec.wire.addresses import is_loopback
from veilrec.wire.codec import BadMessage
from veilrec.wire.pools import LARGEST, Pool, read_pool

_TIMEOUT = 10.0
_SOME = 1 << 22  # bytes of an answer that is no pool


class ServerAway(VeilrecError):
    """No usable answer: the request may have arrived, unless this is `NotConnected`."""


class NotConnected(ServerAway):
    """There was no connection to the server: nothing was sent."""


class _ConnectError(OSError):
    """Raised while connecting, TLS handshake included: no byte of a request has left by then."""


class _PlainConnection(HTTPConnection):
    def connect(self) -> None:
        try:
            super().connect()
        except OSError as error:
            raise _ConnectError(str(error)) from error


class _TlsConnection(HTTPSConnection):
    def connect(self) -> None:
        try:
            super().connect()
        except OSError as error:
            raise _ConnectError(str(error)) from error


class _PlainHandler(HTTPHandler):
    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_PlainConnection, req)


class _TlsHandler(HTTPSHandler):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._tls = context

    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_TlsConnection, req, context=self._tls)


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *given: Any, **named: Any) -> None:
        return None


class ServerLink:
    """One server."""

    def __init__(self, address: str, *, ca: Path | None = None, plaintext: bool = False) -> None:
        parts = urlsplit(address.rstrip("/"))
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise BadInput(f"{address!r} is no address of a server: give one such as https://news.example.org")
        if parts.scheme == "http" and not plaintext and not is_loopback(parts.hostname):
            raise BadInput(
                f"{address} is not encrypted, and not on this machine: a query would be read on its way; use https"
            )
        self.address = address.rstrip("/")
        self._opener: OpenerDirector = build_opener(
            _NoRedirects(), _PlainHandler(), _TlsHandler(_context(ca)), ProxyHandler({})
        )
        self._opener.addheaders = [("User-Agent", "veilrec"), ("Accept-Encoding", "gzip")]

    def best(self, query: bytes, k: int) -> list[dict[str, Any]]:
        """The k best items of a query."""
        content = self._send(f"/v1/recommend?k={k}", query, _SOME)
        try:
            items = json.loads(content)["items"]
            return [
                {"id": str(item["id"]), "title": str(item["title"]), "score": float(item["score"])} for item in items
            ]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ServerAway(f"{self.address} answers in a way that is not understood") from None

    def pool_for(self, query: bytes, k: int) -> Pool:
        """The k best items of a query with their vectors, for the device to rank."""
        return self._pool(self._send(f"/v1/recommend?k={k}&form=pool", query, LARGEST))

    def pool(self) -> Pool:
        """What is the same for everybody: the items that anybody could get."""
        return self._pool(self._send("/v1/pool", None, LARGEST))

    def _pool(self, content: bytes) -> Pool:
        try:
            return read_pool(content)
        except BadMessage as error:
            raise ServerAway(f"{self.address} sends a pool that is not understood ({error})") from None

    def _send(self, path: str, body: bytes | None, largest: int) -> bytes:
        headers = {} if body is None else {"Content-Type": "application/octet-stream"}
        asked = Request(self.address + path, data=body, headers=headers)  # noqa: S310
        try:
            with self._opener.open(asked, timeout=_TIMEOUT) as answer:
                content: bytes = answer.read(largest + 1)
                packed = answer.headers.get("Content-Encoding") == "gzip"
        except HTTPError as error:
            raise ServerAway(f"{self.address} refuses ({error.code}): {_told(error)}") from None
        except (URLError, OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, _ConnectError | InvalidURL):
                raise NotConnected(f"{self.address} cannot be reached ({reason})") from None
            raise ServerAway(f"{self.address} gives no answer ({reason})") from None
        if len(content) > largest:
            raise ServerAway(f"{self.address} sends more than {largest:,} bytes: they are not read")
        return _unpacked(content, largest, self.address) if packed else content


def _told(error: HTTPError) -> str:
    try:
        return str(json.loads(error.read(4096))["error"])[:300]
    except (ValueError, KeyError, TypeError, OSError):
        return str(error.reason)[:300]


def _unpacked(content: bytes, largest: int, address: str) -> bytes:
    """What was compressed, up to a limit: a small answer must not become a large one."""
    opened = zlib.decompressobj(wbits=31)
    try:
        whole = opened.decompress(content, largest + 1)
    except (zlib.error, gzip.BadGzipFile):
        raise ServerAway(f"{address} answers in a way that is not understood") from None
    if len(whole) > largest or not opened.eof:
        raise ServerAway(f"{address} sends more than {largest:,} bytes: they are not read")
    return whole


def _context(ca: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError):
        raise BadInput(f"{ca} is no certificate that a server can be known by: give a PEM file") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
