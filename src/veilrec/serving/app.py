"""The ASGI application and its routes.

Items are changed by clients with the token in a file that only its owner can read.

The page at / and its files are read once and sent from memory, so that no path leads out of the folder.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import mimetypes
import os
import re
import signal
import stat
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router

from veilrec.core.errors import BadInput
from veilrec.serving.edition import StoreFull, StoreGone
from veilrec.serving.middleware import Metrics, RateLimit, RequestMiddleware
from veilrec.serving.process import ListenAddress, serve_app
from veilrec.serving.requests import (
    BUSY,
    NewItem,
    RequestRefused,
    Signed,
    StaticFile,
    Visible,
    decoded,
    docs_page,
    document,
    has,
    header,
    read_body,
    takes_gzip,
)
from veilrec.serving.service import MAX_WAITING, NoEmbedder, RecommenderService, RecommendRoute, ready
from veilrec.wire.releases import FORMAT, Release

_SHORTEST, _LARGEST = 16, 4096  # characters of a token; bytes of its file
_MOMENT = "expires is no time: write it as 2026-11-17T06:40:00Z, with its zone"


def read_token(path: Path) -> bytes:
    """Read the token in a file that only its owner may read."""
    try:
        with path.open("rb") as opened:
            mode, token = os.fstat(opened.fileno()).st_mode, opened.read(_LARGEST).strip()
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}): give a file with a token") from None
    if stat.S_IMODE(mode) & 0o077:
        raise BadInput(f"{path} can be read by others: run chmod 600 {path}")
    if len(token) < _SHORTEST or not token.isascii() or any(byte <= 32 for byte in token):
        raise BadInput(f"the token in {path} is too short or has odd letters: give {_SHORTEST} or more, without spaces")
    return token


def check_token(request: Request, token: bytes | None, option: str) -> None:
    """Refuse a request without the token of an option of `veilrec serve`, in constant time."""
    if token is None:
        raise RequestRefused(403, f"nobody may do this here: start the server with {option}")
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # Digests are of one length, so that not even the length of the token shows.
    right, told = (hashlib.sha256(text).digest() for text in (token, given.strip().encode("utf-8", "replace")))
    if not hmac.compare_digest(right, told) or scheme.lower() != "bearer":
        raise RequestRefused(
            401, f"the token of {option} is missing or wrong: send it as Bearer", [(b"www-authenticate", b"Bearer")]
        )


def check_id(name: str) -> str:
    """Check the id of an item: a line of 1 to 200 printable letters."""
    if not 1 <= len(name) <= 200 or not name.isprintable() or name != name.strip():
        raise RequestRefused(400, "the id of the item is not as it should be: 1 to 200 letters, no control characters")
    return name


def moment(text: str | None) -> float:
    """Seconds since 1970 of a time in RFC 3339; infinity for none."""
    if text is None:
        return inf
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is None or "T" not in text.upper():
            raise RequestRefused(400, _MOMENT)
        return when.astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        raise RequestRefused(400, _MOMENT) from None


FOLDER = Path(__file__).parent / "static"
_ZIPPED = (".html", ".js", ".css", ".json", ".svg", ".map", ".wasm")
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm", ".map": "application/json"}


def page_files(folder: Path = FOLDER) -> Mapping[str, StaticFile]:
    """The files of the page by their path within the folder."""
    found: dict[str, StaticFile] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file():
            kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            zipped = path.suffix in _ZIPPED
            found[path.relative_to(folder).as_posix()] = StaticFile.of(path.read_bytes(), kind, zipped=zipped)
    return found


_PART = 1 << 16  # bytes of a file that are read, checked and sent at once: all of one that a slow reader holds here


def digests_of(path: Path, whole: str) -> tuple[bytes, ...]:
    """Return the digests of the parts of a file whose whole has this digest; BadInput for another file."""
    digest, found = hashlib.sha256(), []
    with path.open("rb") as source:
        while part := source.read(_PART):
            digest.update(part)
            found.append(hashlib.sha256(part).digest())
    if digest.hexdigest() != whole:
        raise BadInput(f"{path} was changed since the release was opened")
    return tuple(found)


@dataclass(frozen=True)
class VerifiedParts:
    """A file too large for memory: every part is checked when it is read, whatever happens to the file meanwhile."""

    path: Path
    digests: tuple[bytes, ...]

    def read(self, number: int) -> bytes:
        """Read a part; BadInput where it is not what was checked."""
        with self.path.open("rb") as source:
            source.seek(number * _PART)
            part = source.read(_PART)
        if self.digests and hashlib.sha256(part).digest() != self.digests[number]:
            raise BadInput(f"{self.path} was changed since it was checked")
        return part


HOT = "/v1/recommend"
_ITEMS, _FILES = "/v1/items/", "/v1/release/files/"
_MAX_CHANGES_WAITING = 64
_ZIPPED_FILES, _LARGEST_ZIPPED = ("items.safetensors", "ranking.safetensors"), 1 << 26  # that a browser fetches
_DIGEST = re.compile("[0-9a-f]{64}")
_FOREVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Settings:
    """How the service is offered; nothing of this changes what it answers."""

    rate: float = 200.0
    """Requests a second of one address, and twice as many at once; 0: no limit."""
    admin_token: bytes | None = None
    """What opens the routes of items; None: nothing does."""
    metrics_token: bytes | None = None
    """What opens /metrics; None: nothing does. Counts of a quiet server tell what somebody else was answered."""
    page: Path = FOLDER
    """The built page."""
    coordinator: str | None = None
    """The address of a federation's coordinator that the page may ask as well; None: it asks this server alone."""


def make_app(service: RecommenderService, settings: Settings | None = None) -> RequestMiddleware:
    """The application of a service; it starts and stops the service with itself."""
    settings = settings or Settings()
    metrics = Metrics()
    routes = Routes(service, settings, metrics)
    asking = RecommendRoute(service) if settings.rate else RecommendRoute(service, each=MAX_WAITING)
    cold = Router(routes.all(), redirect_slashes=False)
    door = RequestMiddleware({HOT: asking}, cold, RateLimit(settings.rate), metrics, service.log)
    if settings.coordinator is not None:
        door.let_pages_ask(settings.coordinator)
    door.on_start, door.on_stop = service.start, service.close
    return door


class Routes:
    """All routes but the hot one."""

    def __init__(self, service: RecommenderService, settings: Settings, metrics: Metrics) -> None:
        self._service, self._settings, self._metrics = service, settings, metrics
        self._files = page_files(settings.page)
        self._signed: tuple[str, StaticFile] | None = None
        self._zipped: dict[str, bytes] = {}
        self._parts: dict[str, tuple[bytes, ...]] = {}
        self._preparing = asyncio.Lock()  # one at a time: many ask for a new file at once
        self._item_decoder = msgspec.json.Decoder(NewItem)

    def all(self) -> list[Route]:
        """List the routes in the order in which they are tried."""
        api = document(self._service.release)
        gets: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/healthz": self.healthz,
            "/readyz": self.readyz,
            "/metrics": self.metrics,
            "/v1/pool": self.pool,
            "/v1/release": self.release,
            _FILES + "{path:path}": self.release_file,
            "/openapi.json": _fixed(StaticFile.of(msgspec.json.encode(api), "application/json")),
            "/docs": _fixed(StaticFile.of(docs_page(api), "text/html")),
            "/docs.css": _fixed(StaticFile.of((FOLDER.parent / "docs.css").read_bytes(), "text/css")),
            "/": self.page,
            "/web/{path:path}": self.page_file,
        }
        routes = [Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()]
        routes.append(Route(HOT, self.healthz, methods=["POST"]))  # for the list of routes: the middleware answers it
        return [*routes, Route(_ITEMS + "{id:path}", self.item, methods=["PUT", "DELETE"])]

    async def healthz(self, request: Request) -> Response:
        """Whether the process is alive."""
        return _json({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        """Whether it can answer."""
        if self._service.edition is None or self._service.expired:
            ready(self._service)
        return _json({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        """Counts, for Prometheus, with its token."""
        check_token(request, self._settings.metrics_token, "--metrics-token-file")
        service, edition = self._service, self._service.edition
        items = len(edition.catalogue) if edition is not None and edition.ranks_here else 0
        pool = service.pool
        plain, zipped = (pool.plain, pool.zipped or pool.plain) if pool else (b"", b"")
        gauges = (
            ("ready", "Whether the index is ready.", float(edition is not None and not service.expired)),
            ("release_version", "Version of the release that answers.", float(service.release.version)),
            ("release_protected", "Whether a proof covers the release.", float(service.release.protected)),
            (
                "release_expires",
                "When the release expires, in seconds since 1970.",
                service.release.expires.timestamp(),
            ),
            ("items", "Items in the index.", float(items)),
            ("pool_bytes", "Bytes of the pool, not zipped.", float(len(plain))),
            ("pool_zipped_bytes", "Bytes of the pool as it is sent.", float(len(zipped))),
        )
        return Response(self._metrics.text(gauges), media_type="text/plain; version=0.0.4", headers=_NO_STORE)

    async def pool(self, request: Request) -> Response:
        """The public pool."""
        if self._service.edition is not None:
            ready(self._service)
        pool = self._service.pool
        if pool is None:
            raise RequestRefused(503, "the pool is not ready: ask again in a moment", BUSY)
        return pool.answer(request)

    async def release(self, request: Request) -> Response:
        """The manifest and its signature."""
        release = self._service.release
        if self._signed is None or self._signed[0] != release.digest:
            self._signed = (release.digest, _signed(release))
        return self._signed[1].answer(request)

    async def release_file(self, request: Request) -> Response:
        """A file that the manifest names, and no other; under SHA256/NAME, what is kept may be kept for good."""
        release, name = self._service.release, request.path_params["path"]
        digest, _, rest = name.partition("/")
        by_content = _DIGEST.fullmatch(digest) is not None
        name = rest if by_content else name
        if not release.has(name) or (by_content and release.manifest["files"][name]["sha256"] != digest):
            raise RequestRefused(404, "the release has no such file: its manifest names those that it has")
        about = release.manifest["files"][name]
        cache = _FOREVER if by_content else "no-cache"
        headers = {"etag": f'"{about["sha256"]}"', "cache-control": cache, "vary": "accept-encoding"}
        if has(request, headers["etag"]) or has(request, f'"{about["sha256"]}-gz"'):
            return Response(status_code=304, headers=headers)
        if request.method == "HEAD":  # nobody makes us read gigabytes for nothing
            headers["content-length"] = str(about["bytes"])
            return Response(headers=headers, media_type="application/octet-stream")
        zipped = name in _ZIPPED_FILES and about["bytes"] <= _LARGEST_ZIPPED and takes_gzip(request)
        try:
            if zipped:
                content = await self._zipped_file(release, name)
                headers |= {"etag": f'"{about["sha256"]}-gz"', "content-encoding": "gzip"}
                return Response(content, headers=headers, media_type="application/octet-stream")
            parts = VerifiedParts(release.path(name), await self._digests(release, name))
            first = await asyncio.to_thread(parts.read, 0)
        except (BadInput, OSError):
            raise self._lost_file() from None
        headers["content-length"] = str(about["bytes"])
        return StreamingResponse(self._sent(first, parts), headers=headers, media_type="application/octet-stream")

    async def _sent(self, first: bytes, parts: VerifiedParts) -> AsyncIterator[bytes]:
        """The parts of a file; a part that was altered is not sent, and the answer breaks off before it."""
        yield first
        for number in range(1, len(parts.digests)):
            try:
                part = await asyncio.to_thread(parts.read, number)
            except (BadInput, OSError):
                raise self._lost_file() from None
            yield part

    async def _digests(self, release: Release, name: str) -> tuple[bytes, ...]:
        """Digests of the parts of a file, once for each: those of the whole that the manifest names."""
        digest = str(release.manifest["files"][name]["sha256"])
        async with self._preparing:
            if digest not in self._parts:
                found = await asyncio.to_thread(digests_of, release.path(name), digest)
                kept = {str(about["sha256"]) for about in release.manifest["files"].values()}
                self._parts = {key: value for key, value in self._parts.items() if key in kept} | {digest: found}
            return self._parts[digest]

    def _lost_file(self) -> RequestRefused:
        self._service.log.seldom("a file of the release was removed or changed on disk: put it back", level="error")
        return RequestRefused(503, "this file of the release is not to be had now: ask again later", BUSY)

    async def _zipped_file(self, release: Release, name: str) -> bytes:
        """A file that browsers rank with, zipped once; all of a release together have room in memory."""
        digest = str(release.manifest["files"][name]["sha256"])
        async with self._preparing:
            if digest not in self._zipped:
                made = await asyncio.to_thread(lambda: gzip.compress(release.content(name), 6, mtime=0))
                kept = {str(about["sha256"]) for about in release.manifest["files"].values()}
                self._zipped = {key: value for key, value in self._zipped.items() if key in kept} | {digest: made}
            return self._zipped[digest]

    async def item(self, request: Request) -> Response:
        """Add, change or remove an item: on disk and in the index before the answer leaves."""
        check_token(request, self._settings.admin_token, "--admin-token-file")
        name = check_id(_tail(request, _ITEMS))
        service = self._service
        ready(service)
        if service.waiting >= _MAX_CHANGES_WAITING:
            raise RequestRefused(503, "too many changes are waiting: try again in a moment", BUSY)
        try:
            if request.method == "DELETE":
                there = await asyncio.wrap_future(service.submit(service.remove, name))
                if not there:
                    raise RequestRefused(404, "there is no item of this id")
                return _json(Visible(name, False))
            kind = header(request.scope, b"content-type")
            if kind is not None and kind.partition(b";")[0].strip().lower() != b"application/json":
                raise RequestRefused(415, "the body has a type that is not read: send application/json")
            body = await read_body(request.scope, request.receive)
            new: NewItem = decoded(self._item_decoder, body)
            expires = moment(new.expires)
            is_new = await asyncio.wrap_future(service.submit(service.put, name, new, expires))
        except NoEmbedder as error:
            raise RequestRefused(501, str(error)) from None
        except StoreFull as error:
            raise RequestRefused(507, str(error)) from None
        except StoreGone as error:
            service.log.event(str(error), level="error")
            raise RequestRefused(503, str(error), BUSY) from None
        except BadInput as error:
            raise RequestRefused(400, str(error)) from None
        return _json(Visible(name, True), status=201 if is_new else 200)

    async def page(self, request: Request) -> Response:
        """The front page."""
        return self._page_file("index.html", request)

    async def page_file(self, request: Request) -> Response:
        """Files of the front page."""
        return self._page_file(request.path_params["path"], request)

    def _page_file(self, name: str, request: Request) -> Response:
        if name not in self._files:
            raise RequestRefused(404, "the page has no such file")
        return self._files[name].answer(request)


def _fixed(file: StaticFile) -> Callable[[Request], Awaitable[Response]]:
    """Make the endpoint of a file that never changes."""

    async def answer(request: Request) -> Response:
        return file.answer(request)

    return answer


_NO_STORE = {"cache-control": "no-store"}


def _json(value: object, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, _NO_STORE, "application/json")


def _signed(release: Release) -> StaticFile:
    signature: dict[str, str | int] = {
        "format": FORMAT,
        "key": release.key.hex(),
        "signature": b64encode(release.signature).decode(),
    }
    keys = [rotation.to_json() for rotation in release.keys]
    content = Signed(release.manifest_bytes.decode(), signature, keys)
    return StaticFile.of(msgspec.json.encode(content), "application/json")


def _tail(request: Request, start: str) -> str:
    """The rest of the path as it was meant: a slash in an id comes as %2F."""
    raw = request.scope.get("raw_path") or request.scope["path"].encode()
    try:
        return unquote(raw.partition(b"?")[0].decode("ascii")[len(start) :], errors="strict")
    except UnicodeDecodeError:
        raise RequestRefused(400, "the id of the item is no UTF-8") from None


def serve(
    service: RecommenderService, settings: Settings, place: ListenAddress, announce: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or Ctrl-C; SIGHUP takes a new version of the release."""

    def prepare(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
        loop.add_signal_handler(signal.SIGHUP, lambda: service.submit(service.reload))
        service.on_failure = lambda: loop.call_soon_threadsafe(stop)

    serve_app(make_app(service, settings), service.log, place, announce, prepare)
    if service.failure is not None:
        raise BadInput(service.failure)
