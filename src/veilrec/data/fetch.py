"""Official files over the network: resumed where they broke off, checked, unpacked whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import TypeAlias
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from veilrec.core.errors import BadInput
from veilrec.core.files import new_folder
from veilrec.data.datasets import Dataset, datasets_folder, find_dataset

_CHUNK = 1 << 18
_TIMEOUT_SECONDS = 30

Progress: TypeAlias = Callable[[int, int | None], None]  # bytes so far; bytes in all, where the server says so


def fetch(
    name: str, *, accept: Callable[[str], bool], mirror: str | None = None, progress: Progress | None = None
) -> Path:
    """Download a data set into the cache and give its folder; a mirror is tried first.

    `accept` is given the licence text and says whether the user agrees; nothing is downloaded before.
    """
    dataset = find_dataset(name)
    folder = datasets_folder() / name
    if folder.is_dir() and any(folder.iterdir()):
        return folder
    archive = dataset.archive
    if archive is None:
        raise BadInput(_by_hand(dataset, folder))
    if not accept(dataset.licence):
        raise BadInput(f"{name} was not fetched: its licence must be accepted first (--accept-licence)")
    addresses = [_address(base, archive.file) for base in ((mirror,) if mirror else ()) + archive.addresses]
    part = datasets_folder() / f"{archive.file}.part"
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{part.parent} cannot be written ({error.strerror}): set VEILREC_CACHE") from None
    failure = _download(addresses, part, progress or (lambda _done, _total: None))
    if failure:
        raise BadInput(
            f"{name} could not be downloaded ({failure}): run the command again to go on where it broke off, "
            f"or download {_address(archive.addresses[0], archive.file)} by hand and unpack it into {folder}"
        )
    try:
        if archive.md5 is not None:
            _check(part, "md5", archive.md5, f"{archive.file} has the md5 checksum {{}}, published is {archive.md5}")
        with new_folder(folder) as fresh:
            _unpack(part, archive.file, fresh)
            for file, published in archive.sha256_inside.items():
                if not (fresh / file).is_file():
                    raise BadInput(f"{archive.file} holds no {file}: the file was removed, try again")
                words = f"{file} in {archive.file} has the sha256 {{}}, expected is {published}"
                _check(fresh / file, "sha256", published, words)
    finally:
        part.unlink(missing_ok=True)
    return folder


def _address(base: str, file: str) -> str:
    if urlsplit(base).scheme not in {"http", "https"}:
        raise BadInput(f"{base!r} is no web address: a mirror starts with http:// or https://")
    return f"{base.rstrip('/')}/{file}"


def _by_hand(dataset: Dataset, folder: Path) -> str:
    if dataset.kind in {"synthetic", "own file"}:
        return f"{dataset.name} is not downloaded: {dataset.how_to_get}"
    return (
        f"{dataset.name} cannot be fetched by a program: get {dataset.how_to_get}; "
        f"then unpack it into {folder} or give its folder as {dataset.name}:PATH"
    )


def _download(addresses: list[str], part: Path, progress: Progress) -> str:
    """Download from the first address that works; give the reasons why none did, or nothing."""
    reasons = []
    for address in addresses:
        try:
            _resume(address, part, progress)
        except (OSError, http.client.HTTPException) as error:
            reasons.append(f"{address}: {getattr(error, 'reason', None) or error or type(error).__name__}")
        else:
            return ""
    return "; ".join(reasons)


def _resume(address: str, part: Path, progress: Progress) -> None:
    """Download what is missing of a file; raise OSError when the connection ends early."""
    start = part.stat().st_size if part.exists() else 0
    try:
        answer = _open(address, start)
    except HTTPError as error:
        if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        if error.headers.get("Content-Range") == f"bytes */{start}":
            return  # it was whole already
        start, answer = 0, _open(address, 0)  # what is there is no beginning of this file
    with answer:
        resumed = answer.status == HTTPStatus.PARTIAL_CONTENT
        done = start if resumed else 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        with part.open("ab" if resumed else "wb") as target:
            while chunk := answer.read(_CHUNK):
                target.write(chunk)
                done += len(chunk)
                progress(done, total)
    if total is not None and done < total:
        raise OSError(f"the connection ended after {done:,} of {total:,} bytes")


def _open(address: str, start: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": "veilrec"} | ({"Range": f"bytes={start}-"} if start else {})
    request = Request(address, headers=headers)  # noqa: S310  (`_address` allows http and https only)
    answer: http.client.HTTPResponse = urlopen(request, timeout=_TIMEOUT_SECONDS)  # noqa: S310
    return answer


def _check(path: Path, digest: str, published: str, words: str) -> None:
    """Refuse a file with another digest; `words` have a place for it."""
    with path.open("rb") as source:
        found = hashlib.file_digest(source, digest).hexdigest()
    if found != published:
        raise BadInput(f"{words.format(found)}: the file was removed, try again")


def _unpack(part: Path, file: str, folder: Path) -> None:
    """Unpack an archive into a folder, without the one folder that may hold everything; never outside of it."""
    try:
        if file.endswith(".zip"):
            with zipfile.ZipFile(part) as packed_zip:
                packed_zip.extractall(folder)  # noqa: S202  (it drops what leads outside)
        else:
            with tarfile.open(part) as packed_tar:
                packed_tar.extractall(folder, filter="data")
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise BadInput(f"{file} cannot be unpacked ({error}): the file was removed, try again") from None
    inside = list(folder.iterdir())
    if len(inside) == 1 and inside[0].is_dir():
        top = inside[0].rename(folder / ".top")
        for child in list(top.iterdir()):
            child.rename(folder / child.name)
        top.rmdir()
