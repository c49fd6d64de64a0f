"""A release: a trained model on its way from a server to clients, whole, signed, and never older than the last one.

The manifest names every file with its size, its hash and the shapes of its arrays; its own bytes are signed. A client
believes nothing that it has not checked: not the size of a file before it is read, not a name, not a shape. What it
refuses it refuses in one line, and nothing of it is used.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from veilrec.core.errors import BadInput
from veilrec.core.state import StoredState
from veilrec.privacy.guarantee import Guarantee
from veilrec.wire.signing import (
    RELEASE,
    Rotation,
    SigningKey,
    check_signature,
    encoded,
    fingerprint,
    follow,
    given_up,
    public_of,
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
_MAX_FILES = 64
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_FILE = re.compile(r"(model/)?[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FIELDS = {
    "format": int,
    "minimum_client": int,
    "name": str,
    "version": int,
    "created": str,
    "made_by": str,
    "method": str,
    "family": str,
    "protected": bool,
    "why_unprotected": list,
    "guarantee": dict,
    "sizes": dict,
    "encoder": (dict, type(None)),
    "offers": list,
    "data": dict,
    "figures": dict,
    "files": dict,
}


class BadRelease(BadInput):
    """A release that is not used: unsigned, altered, older than one that was used, too large, or no release."""


@dataclass(frozen=True)
class Newest:
    """The last release of a name that a client has used: nothing older is used after it, nor another of its number."""

    name: str
    version: int
    manifest_sha256: str


@dataclass(frozen=True)
class Release:
    """A release whose signature, sizes and hashes were checked."""

    folder: Path
    manifest: Mapping[str, Any]
    manifest_bytes: bytes
    key: bytes  # that signed it
    signature: bytes
    keys: tuple[Rotation, ...]

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
        return Newest(self.name, self.version, self.digest)

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
    return f"nothing as it lies here ({why}); with secure noise it would be {guarantee.line()}"


def canonical(manifest: Mapping[str, Any]) -> bytes:
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


def sign_release(folder: Path, manifest: Mapping[str, Any], key: SigningKey, keys: Sequence[Rotation] = ()) -> None:
    """Write the manifest of a folder whose files it names, and its signature."""
    content = canonical(manifest)
    check_manifest(manifest)
    (folder / MANIFEST).write_bytes(content)
    signature = {"format": FORMAT, "key": key.public.hex(), "signature": encoded(key.sign(RELEASE, content))}
    (folder / SIGNATURE).write_bytes(canonical(signature) + b"\n")
    if keys:
        (folder / KEYS).write_text(json.dumps([rotation.to_json() for rotation in keys], indent=1) + "\n")


def open_release(
    folder: Path, *, trusted: bytes | None = None, newest: Newest | None = None, largest: int = LARGEST
) -> Release:
    """Check a release and open it; `trusted` is the public key that a client knows, `newest` what it used last.

    Without a trusted key the release is checked against the key that it names itself: whole, but of an unknown author.
    """
    if not (folder / MANIFEST).is_file():
        raise BadRelease(f"{folder} is no release: it has no {MANIFEST}; make one with `veilrec release RUN --out DIR`")
    manifest_bytes = _read_some(folder / MANIFEST, _LARGEST_MANIFEST)
    key, signature = _signature_in(folder / SIGNATURE)
    rotations = _rotations_in(folder / KEYS)
    accepted = {key} if trusted is None else follow(trusted, rotations)
    for rotation in rotations:
        rotation.check()
    if key not in accepted or key in given_up(rotations):
        raise BadRelease(
            f"{folder} is signed by {fingerprint(key)}, and the trusted key is {fingerprint(trusted or b'')}, which has"
            " not handed over to it: nothing of it is used"
        )
    check_signature(key, RELEASE, manifest_bytes, signature)
    manifest = parse_manifest(manifest_bytes)
    release = Release(folder, manifest, manifest_bytes, key, signature, tuple(rotations))
    refuse_older(release, newest)
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
    try:
        manifest = json.loads(content.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise BadRelease("the manifest is no JSON: nothing of the release is used") from None
    check_manifest(manifest)
    return dict(manifest)


def check_manifest(manifest: Any) -> None:
    """Refuse a manifest with a field that is missing, unknown or of another kind."""
    if not isinstance(manifest, Mapping):
        raise BadRelease("the manifest is no JSON object: nothing of the release is used")
    if manifest.get("format") != FORMAT:
        raise BadRelease(f"the release has format {manifest.get('format')!r}, this veilrec reads {FORMAT}: update it")
    least = manifest.get("minimum_client")
    if isinstance(least, int) and least > CLIENT:
        raise BadRelease(f"the release needs a client of version {least}, this one is {CLIENT}: update veilrec")
    odd = [name for name in manifest if name not in _FIELDS] + [name for name in _FIELDS if name not in manifest]
    wrong = [name for name, kind in _FIELDS.items() if name in manifest and not _is(manifest[name], kind)]
    if odd or wrong:
        raise BadRelease(
            f"the manifest is none of format {FORMAT}: its field {(odd + wrong)[0]} is not as it should be"
        )
    if not _NAME.fullmatch(manifest["name"]) or manifest["family"] not in FAMILIES or manifest["version"] < 1:
        raise BadRelease("the manifest is not as it should be: name, family or version are impossible")
    for name, about in manifest["files"].items():
        _check_entry(name, about)
    if len(manifest["files"]) > _MAX_FILES:
        raise BadRelease(f"the release has {len(manifest['files'])} files: at most {_MAX_FILES} are read")
    Guarantee.from_json(manifest["guarantee"])


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _no_constant(text: str) -> Any:
    raise ValueError(text)


def _check_entry(name: str, about: Any) -> None:
    whole = (
        _FILE.fullmatch(name) is not None
        and isinstance(about, Mapping)
        and set(about) <= {"bytes", "sha256", "tensors"}
        and _is(about.get("bytes"), int)
        and about["bytes"] >= 0
        and isinstance(about.get("sha256"), str)
        and _DIGEST.fullmatch(about["sha256"]) is not None
        and ("tensors" in about) == name.endswith(".safetensors")
    )
    if not whole:
        raise BadRelease(f"the manifest names a file {name[:80]!r} in a way that is not allowed: nothing of it is used")


def _check_files(release: Release, largest: int) -> None:
    """Sizes first: nothing is read that is too large; then hashes, then the shapes of arrays."""
    files = release.manifest["files"]
    total = sum(about["bytes"] for about in files.values())
    if total > largest:
        raise BadRelease(f"the release has {total:,} bytes: at most {largest:,} are read")
    for name, about in files.items():
        path = release.folder / name
        if path.is_symlink() or not path.is_file():
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
    listed = {*files, MANIFEST, SIGNATURE, KEYS}
    for path in release.folder.rglob("*"):  # what nobody signed must not lie where it might be read
        name = path.relative_to(release.folder).as_posix()
        if path.is_file() and name not in listed:
            raise BadRelease(f"{name} lies in the release and is not signed: remove it, or get the release again")


def _tensors_of(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="numpy") as opened:
        names = opened.keys()
        views = {name: opened.get_slice(name) for name in names}
        return {name: {"dtype": view.get_dtype(), "shape": list(view.get_shape())} for name, view in views.items()}


def _signature_in(path: Path) -> tuple[bytes, bytes]:
    if not path.is_file():
        raise BadRelease(f"{path.parent} is not signed: it has no {SIGNATURE}; nothing of it is used")
    fields = _json_in(path, _LARGEST_KEYS)
    if not isinstance(fields, Mapping) or fields.get("format") != FORMAT or len(fields) != 3:
        raise BadRelease(f"{SIGNATURE} is no signature of format {FORMAT}: nothing of the release is used")
    return public_of(fields.get("key")), signature_of(fields.get("signature"))


def _rotations_in(path: Path) -> list[Rotation]:
    if not path.exists():
        return []
    fields = _json_in(path, _LARGEST_KEYS)
    if not isinstance(fields, list):
        raise BadRelease(f"{KEYS} is no list of rotations: nothing of the release is used")
    return [Rotation.from_json(each) for each in fields]


def _json_in(path: Path, largest: int) -> Any:
    try:
        return json.loads(_read_some(path, largest).decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise BadRelease(f"{path.name} of the release is no JSON: nothing of it is used") from None


def _read_some(path: Path, largest: int) -> bytes:
    """A small file; a large one is not read."""
    try:
        if path.stat().st_size > largest:
            raise BadRelease(f"{path.name} has {path.stat().st_size:,} bytes: at most {largest:,} are read")
        return path.read_bytes()
    except OSError as error:
        raise BadRelease(f"{path} cannot be read ({error.strerror}): nothing of the release is used") from None


def whole_numbers(values: NDArray[Any], *shape: int) -> NDArray[Any]:
    """An array of a release, if it has this shape and is finite."""
    if values.shape != shape or (
        values.dtype.kind == "f" and not math.isfinite(float(np.abs(values).max(initial=0.0)))
    ):
        raise BadRelease(f"the release has an array of shape {values.shape}, and {shape} with finite numbers is needed")
    return values
