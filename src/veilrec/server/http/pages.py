"""The page at / and its files: read once, sent from memory, so that no path leads out of the folder."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"
_ZIPPED = (".html", ".js", ".css", ".json", ".svg", ".map", ".wasm", ".onnx")
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm", ".map": "application/json"}


@dataclass(frozen=True)
class Served:
    """Bytes with a type and a strong tag, zipped where that helps and the client reads it."""

    plain: bytes
    zipped: bytes | None
    kind: str
    tag: str

    @classmethod
    def of(cls, plain: bytes, kind: str, *, zipped: bool = True) -> Served:
        """Zipped once, for everybody."""
        small = gzip.compress(plain, 9, mtime=0) if zipped else None
        if small is not None and len(small) >= len(plain):
            small = None
        return cls(plain, small, kind, hashlib.sha256(plain).hexdigest()[:32])

    def answer(self, request: Request, *, cache: str = "no-cache") -> Response:
        """200 with the content, or 304 for whoever has it."""
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
    """Whether the client reads gzip."""
    for part in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, quality = part.partition(";")
        if name.strip() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def has(request: Request, tag: str) -> bool:
    """Whether the client has this content already."""
    told = request.headers.get("if-none-match", "")
    return told.strip() == "*" or tag in [each.strip().removeprefix("W/") for each in told.split(",")]


def page_files(folder: Path = FOLDER) -> Mapping[str, Served]:
    """The files of the page by their path within the folder."""
    found: dict[str, Served] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file():
            kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            zipped = path.suffix in _ZIPPED
            found[path.relative_to(folder).as_posix()] = Served.of(path.read_bytes(), kind, zipped=zipped)
    return found


def plain_page(name: str, *, protected: bool) -> Served:
    """What stands at / where the page was not built."""
    warning = (
        "" if protected else "<p><strong>Unprotected: no proof covers those this model was learnt from.</strong></p>"
    )
    text = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title><p>{name} is served here: see '
        f'<a href="/docs">the routes</a>.</p>{warning}</html>'
    )
    return Served.of(text.encode(), "text/html")
