"""A release: a trained model on its way from a server to clients, whole, signed, and never older than the last one.

The manifest names every file with its size, its hash and the shapes of its arrays; its own bytes are signed. A client
believes nothing that it has not checked: not the size of a file before it is read, not a name, not a shape. What it
refuses it refuses in one line, and nothing of it is used.

A release has a last day. Near it, and for as long after it (`grace`), it is used with a warning; then it is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from veilrec.core.errors import BadInput
from veilrec.core.state import StoredState
from veilrec.privacy.guarantee import Guarantee
from veilrec.wire.queries import KINDS
from veilrec.wire.signing import (
    RELEASE,
    Revocation,
    Sentence,
    SigningKey,
    check_signature,
    encoded,
    fingerprint,
    given_up,
    judged,
    public_of,
    sentence_of,
    signature_of,
)

FORMAT = 1
CLIENT = 2  # what this code understands; a release says which it needs at least
NEEDS = {"catalogue": 2}  # clients of a family, where not every one knows it
MANIFEST, SIGNATURE, KEYS = "manifest.json", "manifest.sig", "keys.json"
FAMILIES = ("news", "factors", "catalogue", "ranker")
LARGEST = 8 << 30  # bytes of all files together that are read unless told otherwise
_LARGEST_MANIFEST = 1 << 20
_LARGEST_KEYS = 1 << 16
_PLAIN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe is opened, and then refused
_MAX_FILES = 64
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_FILE = re.compile(r"(model/)?[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DEEPEST = 64  # objects and lists inside of each other
_LARGEST_WHOLE = (1 << 53) - 1  # that a browser reads exactly
_MOMENT = re.compile(r"[2-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
MOMENT = "%Y-%m-%dT%H:%M:%SZ"
_LONGEST_GRACE = timedelta(days=14)
_GRACE_SHARE = 4  # of how long it is good for, at most this part

# What a manifest is made of, as the browser's `release.ts` has it, too: a type, the words that are allowed, a list of
# one shape, or a table of fields; with "?" a field may be missing or null, with "*" stand further fields of a shape.
_COUNT, _NUMBER, _TEXT, _MAP = "count", "number", "text", {"*": "anything"}
_OFFER = {
    **{"mode": _TEXT, "kind": KINDS, "size": _COUNT, "how?": _TEXT, "pool?": _COUNT, "slots?": _COUNT},
    **{"epsilon?": _NUMBER, "delta?": _NUMBER, "scale?": _NUMBER, "sigma?": _NUMBER, "clip?": _NUMBER},
    **{"unit?": _TEXT, "adjacency?": _TEXT, "noise?": _TEXT, "guarantee?": "guarantee", "*": "anything"},
}
_MANIFEST: Mapping[str, Any] = {
    **{"format": _COUNT, "minimum_client": _COUNT, "name": _NAME, "version": _COUNT, "family": FAMILIES},
    **{"created": "moment", "expires": "moment", "made_by": _TEXT, "method": _TEXT},
    **{"protected": "flag", "why_unprotected": [_TEXT], "guarantee": "guarantee"},
    "sizes": dict.fromkeys(("items", "dim", "interests", "longest"), _COUNT),
    **{"encoder": "program", "offers": [_OFFER], "data": {"*": _TEXT}, "figures": _MAP},
    "files": {"*": {"bytes": _COUNT, "sha256": _DIGEST, "tensors?": {"*": {"dtype": _TEXT, "shape": [_COUNT]}}}},
}


class BadRelease(BadInput):
    """A release that is not used: unsigned, altered, older than one that was used, too large, or no release."""


@dataclass(frozen=True)
class Newest:
    """The last release of a name that a client has used: nothing older is used after it, nor another of its number."""

    name: str
    version: int
    manifest_sha256: str
    revoked: tuple[Revocation, ...] = ()  # that were honoured, which hold for every name


@dataclass(frozen=True)
class Release:
    """A release whose signature, sizes and hashes were checked."""

    folder: Path
    manifest: Mapping[str, Any]
    manifest_bytes: bytes
    key: bytes  # that signed it
    signature: bytes
    keys: tuple[Sentence, ...]
    revoked: tuple[Revocation, ...] = ()  # that are honoured from now on

    @property
    def name(self) -> str:
        """Name of the release."""
        return str(self.manifest["name"])

    @property
    def version(self) -> int:
        """Its number; a later one has a larger one."""
        return int(self.manifest["version"])

    @property
    def family(self) -> str:
        """Model family, which decides how a client ranks."""
        return str(self.manifest["family"])

    @property
    def protected(self) -> bool:
        """Whether a proof covers the people whose data it was learnt from."""
        return bool(self.manifest["protected"])

    @cached_property
    def guarantee(self) -> Guarantee:
        """Guarantee for the users whose data trained it; unprotected ones say why it does not hold."""
        guarantee = Guarantee.from_json(self.manifest["guarantee"])
        why = "" if self.protected else "; ".join(self.manifest["why_unprotected"])
        return replace(guarantee, obstacle=guarantee.obstacle or why)

    @cached_property
    def digest(self) -> str:
        """Digest of the manifest, which names all other files."""
        return hashlib.sha256(self.manifest_bytes).hexdigest()

    @property
    def newest(self) -> Newest:
        """Identity of the release, which a client stores against downgrades."""
        return Newest(self.name, self.version, self.digest, self.revoked)

    @cached_property
    def expires(self) -> datetime:
        """From when on it should not be used any more."""
        return _moment(self.manifest["expires"])

    @property
    def grace(self) -> timedelta:
        """For how long before and after its last day it is used with a warning."""
        return min(_LONGEST_GRACE, (self.expires - _moment(self.manifest["created"])) / _GRACE_SHARE)

    def warning(self, now: float) -> str:
        """What people have to know about its last day at a time in seconds since 1970; empty if there is nothing."""
        moment = datetime.fromtimestamp(now, UTC)
        which = f"release {self.name} version {self.version}"
        if moment >= self.expires + self.grace:
            return (
                f"{which} expired at {self.manifest['expires']} and is not used any more: get a newer one, or set the"
                f" clock, which says {moment:%Y-%m-%d}"
            )
        if moment >= self.expires:
            over = self.expires + self.grace
            return f"{which} expired at {self.manifest['expires']}, and is refused from {over:{MOMENT}} on"
        near = moment >= self.expires - self.grace
        return f"{which} expires at {self.manifest['expires']}: a newer one is needed soon" if near else ""

    def refuse_expired(self, now: float) -> None:
        """Refuse it after its last day and the time of grace."""
        if now >= (self.expires + self.grace).timestamp():
            raise BadRelease(self.warning(now))

    def has(self, file: str) -> bool:
        """Whether a file is part of it."""
        return file in self.manifest["files"]

    def path(self, file: str) -> Path:
        """Path of a listed file; raise BadRelease for others."""
        if not self.has(file):
            raise BadRelease(f"release {self.name} has no file {file!r}: it has {', '.join(self.manifest['files'])}")
        return self.folder / file

    def arrays(self, file: str) -> Mapping[str, NDArray[Any]]:
        """The arrays of a file, each read when it is asked for."""
        return StoredState(self.path(file))

    def content(self, file: str) -> bytes:
        """A file, if it is still what was signed."""
        content = self.path(file).read_bytes()
        if hashlib.sha256(content).hexdigest() != self.manifest["files"][file]["sha256"]:
            raise BadRelease(f"{file} of release {self.name} was changed since the release was opened")
        return content

    def line(self) -> str:
        """Which release this is, for people."""
        unprotected = "" if self.protected else ", UNPROTECTED"
        return f"{self.name} version {self.version} ({self.method}{unprotected}), signed by {fingerprint(self.key)}"

    @property
    def method(self) -> str:
        """Name of the training method."""
        return str(self.manifest["method"])


def promise_of(manifest: Mapping[str, Any]) -> str:
    """Guarantee in a line; none where the noise can be reproduced."""
    guarantee = Guarantee.from_json(manifest["guarantee"])
    if manifest["protected"] or guarantee.basis != "proven":
        return guarantee.line()
    why = "; ".join(manifest["why_unprotected"])
    return f"nothing as it lies here ({why}); without that it would be {guarantee.line()}"


def canonical(manifest: Any) -> bytes:
    """The one way to write a manifest: these bytes are signed."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def describe_file(path: Path) -> dict[str, Any]:
    """Manifest entry of a file: size, hash, tensors."""
    with path.open("rb") as source:
        digest = hashlib.file_digest(source, "sha256").hexdigest()
    about: dict[str, Any] = {"bytes": path.stat().st_size, "sha256": digest}
    if path.suffix == ".safetensors":
        about["tensors"] = _tensors_of(path)
    return about


def sign_release(folder: Path, manifest: Mapping[str, Any], key: SigningKey, keys: Sequence[Sentence] = ()) -> None:
    """Write the manifest of a folder whose files it names, and its signature."""
    content = canonical(manifest)
    check_manifest(manifest)
    (folder / MANIFEST).write_bytes(content)
    signature = {"format": FORMAT, "key": key.public.hex(), "signature": encoded(key.sign(RELEASE, content))}
    (folder / SIGNATURE).write_bytes(canonical(signature) + b"\n")
    if keys:
        (folder / KEYS).write_bytes(canonical([sentence.to_json() for sentence in keys]) + b"\n")


def open_release(
    folder: Path,
    *,
    trusted: bytes | None = None,
    newest: Newest | None = None,
    largest: int = LARGEST,
    clock: Callable[[], float] | None = time.time,
) -> Release:
    """Check a release and open it; `trusted` is the public key that a client knows, `newest` what it used last.

    Without a trusted key the release is checked against the key that it names itself: whole, but of an unknown author.
    Without a clock one that has expired is opened, too: to look at it, or to put a newer one in its place.
    """
    if not (folder / MANIFEST).is_file():
        raise BadRelease(f"{folder} is no release: it has no {MANIFEST}; make one with `veilrec release RUN --out DIR`")
    manifest_bytes = _read_some(folder / MANIFEST, _LARGEST_MANIFEST)
    key, signature = _signature_in(folder / SIGNATURE)
    sentences = _sentences_in(folder / KEYS)
    accepted, revoked = judged(trusted or key, sentences, () if newest is None else newest.revoked)
    if key not in accepted or key in given_up(sentences):
        raise BadRelease(
            f"{folder} is signed by {fingerprint(key)}, and the trusted key is {fingerprint(trusted or b'')}, which has"
            " not handed over to it, or the key was given up or revoked: nothing of it is used"
        )
    check_signature(key, RELEASE, manifest_bytes, signature)
    manifest = parse_manifest(manifest_bytes)
    release = Release(folder, manifest, manifest_bytes, key, signature, tuple(sentences), revoked)
    refuse_older(release, newest)
    if clock is not None:
        release.refuse_expired(clock())
    _check_files(release, largest)
    return release


def refuse_older(release: Release, newest: Newest | None) -> None:
    """A client never goes back, and never takes two releases of the same number."""
    if newest is None or newest.name != release.name:
        return
    if release.version < newest.version:
        raise BadRelease(
            f"release {release.name} is version {release.version}, and version {newest.version} was used before: a"
            " client never goes back to an older model"
        )
    if release.version == newest.version and release.digest != newest.manifest_sha256:
        raise BadRelease(
            f"release {release.name} has another content than the version {newest.version} that was used before: a new"
            " content needs a new number"
        )


def parse_manifest(content: bytes) -> dict[str, Any]:
    """The fields of a manifest, each of its kind; anything odd is refused."""
    if len(content) > _LARGEST_MANIFEST:
        raise BadRelease(f"the manifest has {len(content):,} bytes: at most {_LARGEST_MANIFEST:,} are read")
    manifest = _parsed(content, "the manifest")
    check_manifest(manifest)
    return dict(manifest)


def check_manifest(manifest: Any) -> None:
    """Refuse a manifest with a field that is missing, unknown or of another kind."""
    if not isinstance(manifest, Mapping):
        raise BadRelease("the manifest is no JSON object: nothing of the release is used")
    if not _fits(manifest.get("format"), _COUNT) or manifest["format"] != FORMAT:
        raise BadRelease(f"the release has format {manifest.get('format')!r}, this veilrec reads {FORMAT}: update it")
    least = manifest.get("minimum_client")
    if isinstance(least, int) and least > CLIENT:
        raise BadRelease(f"the release needs a client of version {least}, this one is {CLIENT}: update veilrec")
    if "expires" not in manifest:
        raise BadRelease("the release is of an older veilrec and says not when it expires: release the run again")
    unknown = (name for name in manifest if name not in _MANIFEST)
    wrong = (name for name, shape in _MANIFEST.items() if not _field_fits(manifest, name, shape))
    odd = next(chain(unknown, wrong), None)
    if odd is not None:
        raise BadRelease(f"the manifest is none of format {FORMAT}: its field {odd[:40]!r} is not as it should be")
    if not _moment(manifest["created"]) < _moment(manifest["expires"]) or not manifest["version"]:
        raise BadRelease("the manifest is not as it should be: it has version 0, or expires before it was made")
    for name, about in manifest["files"].items():
        whole = ("tensors" in about) == name.endswith(".safetensors") and name not in (MANIFEST, SIGNATURE, KEYS)
        if _FILE.fullmatch(name) is None or not whole:
            raise BadRelease(f"the manifest names a file {name[:80]!r} in a way that is not allowed: nothing is used")
    if len(manifest["files"]) > _MAX_FILES:
        raise BadRelease(f"the release has {len(manifest['files'])} files: at most {_MAX_FILES} are read")


def _fits(value: Any, shape: Any) -> bool:
    """Whether a value of JSON has a shape, see `_MANIFEST`."""
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(each, shape[0]) for each in value)
    if isinstance(shape, tuple):
        return isinstance(value, str) and value in shape
    if isinstance(shape, re.Pattern):
        return isinstance(value, str) and shape.fullmatch(value) is not None
    if isinstance(shape, Mapping):
        if not isinstance(value, Mapping) or not all(_field_fits(value, name, inner) for name, inner in shape.items()):
            return False
        known = {name.removesuffix("?") for name in shape} - {"*"}
        return all("*" in shape and _fits(each, shape["*"]) for name, each in value.items() if name not in known)
    return _KINDS_OF_FIELDS[shape](value)


def _field_fits(value: Mapping[str, Any], name: str, shape: Any) -> bool:
    if name.endswith("?"):
        return value.get(name[:-1]) is None or _fits(value[name[:-1]], shape)
    return name == "*" or (name in value and _fits(value[name], shape))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST_WHOLE


def _is_moment(value: Any) -> bool:
    try:
        return isinstance(value, str) and _MOMENT.fullmatch(value) is not None and bool(_moment(value))
    except ValueError:
        return False


def _is_guarantee(value: Any) -> bool:
    if not isinstance(value, Mapping) or any(isinstance(each, bool) for each in value.values()):
        return False
    try:
        guarantee = Guarantee.from_json(value)
    except BadInput:
        return False
    return isinstance(guarantee.basis, str) and isinstance(guarantee.honest_note, str)


_KINDS_OF_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "anything": lambda _: True,
    "flag": lambda value: isinstance(value, bool),
    "text": lambda value: isinstance(value, str) and re.search("[\x00-\x1f\x7f]", value) is None,
    "count": _is_count,
    "number": lambda value: type(value) in (int, float) and 0 <= value < math.inf,
    "moment": _is_moment,
    "program": lambda value: value is None or _fits(value, _MAP),
    "guarantee": _is_guarantee,
}


def _moment(text: str) -> datetime:
    return datetime.strptime(text, MOMENT).replace(tzinfo=UTC)


def _parsed(content: bytes, what: str, end: bytes = b"") -> Any:
    """JSON that is written as `canonical` does, so that nobody can write the same in another way."""
    try:
        fields = json.loads(content.decode(), parse_constant=_no_constant, parse_int=_whole)
        same = canonical(fields) + end == content and _is_shallow(fields, _DEEPEST)
    except (ValueError, RecursionError):
        raise BadRelease(f"{what} is no JSON: nothing of the release is used") from None
    if not same:
        raise BadRelease(f"{what} is not written in the one way that is signed: nothing of the release is used")
    return fields


def _is_shallow(value: Any, left: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left >= 0 and all(_is_shallow(each, left - 1) for each in inner)


def _no_constant(text: str) -> Any:
    raise ValueError(text)


def _whole(text: str) -> int:
    value = int(text)
    if abs(value) > _LARGEST_WHOLE:
        raise ValueError(text)
    return value


def _check_files(release: Release, largest: int) -> None:
    """Sizes first: nothing is read that is too large; then hashes, then the shapes of arrays."""
    files = release.manifest["files"]
    total = sum(about["bytes"] for about in files.values())
    if total > largest:
        raise BadRelease(f"the release has {total:,} bytes: at most {largest:,} are read")
    listed = {*files, MANIFEST, SIGNATURE, KEYS}
    for place, folders, names in os.walk(release.folder):  # what nobody signed must not lie where it might be read
        for path in (Path(place) / name for name in (*folders, *names)):
            name, mode = path.relative_to(release.folder).as_posix(), path.lstat().st_mode
            if not (stat.S_ISREG(mode) and name in listed) and not (stat.S_ISDIR(mode) and name == "model"):
                raise BadRelease(
                    f"{name} lies in the release and is no plain file that was signed: remove it, or get the release"
                    " again"
                )
    for name, about in files.items():
        path = release.folder / name
        if not path.is_file():
            raise BadRelease(f"the release is not whole: {name} is missing; get it again")
        if path.stat().st_size != about["bytes"]:
            raise BadRelease(f"{name} of the release has {path.stat().st_size:,} bytes and not {about['bytes']:,}")
        try:
            described = describe_file(path)
        except (OSError, ValueError, KeyError, SafetensorError):
            raise BadRelease(f"{name} of the release cannot be read: it was altered; get it again") from None
        if described["sha256"] != about["sha256"]:
            raise BadRelease(f"{name} of the release was altered: its hash is another; get it again")
        if described.get("tensors") != about.get("tensors"):
            raise BadRelease(f"{name} of the release has other arrays than its manifest says")


def _tensors_of(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="numpy") as opened:
        names = opened.keys()
        views = {name: opened.get_slice(name) for name in names}
        return {name: {"dtype": view.get_dtype(), "shape": list(view.get_shape())} for name, view in views.items()}


def _signature_in(path: Path) -> tuple[bytes, bytes]:
    if not os.path.lexists(path):
        raise BadRelease(f"{path.parent} is not signed: it has no {SIGNATURE}; nothing of it is used")
    fields = _parsed(_read_some(path, _LARGEST_KEYS), SIGNATURE, b"\n")
    whole = _fits(fields, {"format": _COUNT, "key": _TEXT, "signature": _TEXT})
    if not whole or fields["format"] != FORMAT:
        raise BadRelease(f"{SIGNATURE} is no signature of format {FORMAT}: nothing of the release is used")
    return public_of(fields["key"]), signature_of(fields["signature"])


def _sentences_in(path: Path) -> list[Sentence]:
    if not os.path.lexists(path):
        return []
    fields = _parsed(_read_some(path, _LARGEST_KEYS), KEYS, b"\n")
    if not isinstance(fields, list):
        raise BadRelease(f"{KEYS} is no list of rotations and revocations: nothing of the release is used")
    return [sentence_of(each) for each in fields]


def _read_some(path: Path, largest: int) -> bytes:
    """A small plain file; of a large one, a link, a pipe or a device nothing is used."""
    try:
        with os.fdopen(os.open(path, _PLAIN), "rb") as opened:
            plain = stat.S_ISREG(os.fstat(opened.fileno()).st_mode)
            content = opened.read(largest + 1) if plain else b""
    except OSError as error:
        raise BadRelease(f"{path} cannot be read ({error.strerror}): nothing of the release is used") from None
    if not plain:
        raise BadRelease(f"{path} is no plain file: nothing of the release is used")
    if len(content) > largest:
        raise BadRelease(f"{path.name} is too large: at most {largest:,} bytes are read")
    return content


def whole_numbers(values: NDArray[Any], *shape: int) -> NDArray[Any]:
    """An array of a release, if it has this shape and is finite."""
    if values.shape != shape or (
        values.dtype.kind == "f" and not math.isfinite(float(np.abs(values).max(initial=0.0)))
    ):
        raise BadRelease(f"the release has an array of shape {values.shape}, and {shape} with finite numbers is needed")
    return values
