"""Keys that sign releases: Ed25519, kept in files of their own, and handed over from an old key to a new one.

A rotation is a sentence signed by the old key: "from now on, this one". Whoever trusts the old key follows the chain
to the newest; nobody without the old key can start one. A revocation is a sentence signed by another key that is
trusted: "never again, that one"; of the hand-overs of a revoked key only those that lead to its revoker still count.

Addresses: which are this machine's own, where alone something may travel in plain text unasked, and of what form.
"""

from __future__ import annotations

import ipaddress
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from veilrec.core.errors import BadInput
from veilrec.core.files import replacing

KEY_BYTES, SIGNATURE_BYTES = 32, 64
RELEASE, ROTATION = b"veilrec release\n", b"veilrec key rotation\n"  # what a signature is for goes into it
REVOCATION = b"veilrec key revocation\n"
MAX_SENTENCES = 64
_KEY = re.compile("[0-9a-f]{64}")
_RAW = (serialization.Encoding.Raw, serialization.PublicFormat.Raw)


class BadSignature(BadInput):
    """Something is not signed by the key that it should be signed by."""


@dataclass(frozen=True)
class SigningKey:
    """Secret half of an Ed25519 key pair."""

    secret: Ed25519PrivateKey

    @property
    def public(self) -> bytes:
        """Public half, 32 bytes."""
        return self.secret.public_key().public_bytes(*_RAW)

    def sign(self, purpose: bytes, content: bytes) -> bytes:
        """64 bytes."""
        return self.secret.sign(purpose + content)


@dataclass(frozen=True)
class Rotation:
    """From one key to the next, signed by the one before."""

    old: bytes
    new: bytes
    signature: bytes

    @classmethod
    def made(cls, old: SigningKey, new: bytes) -> Rotation:
        """Sign the hand-over to a new key."""
        return cls(old.public, new, old.sign(ROTATION, old.public + new))

    def check(self) -> None:
        """Refuse one that the old key did not sign."""
        check_signature(self.old, ROTATION, self.old + self.new, self.signature)

    def to_json(self) -> dict[str, str]:
        """As in `keys.json` of a release."""
        return {"old": self.old.hex(), "new": self.new.hex(), "signature": b64encode(self.signature).decode()}

    @classmethod
    def from_json(cls, fields: Any) -> Rotation:
        """Read what `to_json` wrote; its signature is not looked at yet."""
        if not isinstance(fields, Mapping) or set(fields) != {"old", "new", "signature"}:
            raise BadSignature("a rotation of keys has the fields old, new and signature, and this one has others")
        old, new = (public_of(fields[name]) for name in ("old", "new"))
        return cls(old, new, signature_of(fields["signature"]))


@dataclass(frozen=True)
class Revocation:
    """A key that signs nothing any more, said and signed by another key."""

    revoked: bytes
    by: bytes
    signature: bytes

    @classmethod
    def made(cls, by: SigningKey, revoked: bytes) -> Revocation:
        """Sign that a key is revoked."""
        if by.public == revoked:
            raise BadInput("a key cannot revoke itself: sign with the key that clients are to trust instead")
        return cls(revoked, by.public, by.sign(REVOCATION, by.public + revoked))

    def check(self) -> None:
        """Refuse one that the other key did not sign."""
        check_signature(self.by, REVOCATION, self.by + self.revoked, self.signature)

    def to_json(self) -> dict[str, str]:
        """As in `keys.json` of a release."""
        return {"revoked": self.revoked.hex(), "by": self.by.hex(), "signature": encoded(self.signature)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Revocation:
        """Read what `to_json` wrote; its signature is not looked at yet."""
        return cls(public_of(fields["revoked"]), public_of(fields["by"]), signature_of(fields["signature"]))


Sentence = Rotation | Revocation


def sentence_of(fields: Any) -> Sentence:
    """Read a rotation or a revocation as `to_json` wrote it; its signature is not looked at yet."""
    if not isinstance(fields, Mapping) or set(fields) != {"revoked", "by", "signature"}:
        return Rotation.from_json(fields)
    return Revocation.from_json(fields)


def check_signature(key: bytes, purpose: bytes, content: bytes, signature: bytes) -> None:
    """Refuse a signature that is not of this key over this content for this purpose."""
    try:
        _public_key(key).verify(signature, purpose + content)
    except (InvalidSignature, ValueError):
        raise BadSignature(f"the signature is not that of key {fingerprint(key)}: nothing of it is used") from None


@lru_cache(maxsize=1024)
def _public_key(key: bytes) -> Ed25519PublicKey:
    """Decode a public key; cached, because signers repeat."""
    return Ed25519PublicKey.from_public_bytes(key)


def follow(trusted: bytes, sentences: Sequence[Sentence], known: Sequence[Revocation] = ()) -> set[bytes]:
    """The keys that a trusted one has handed over to, and itself, without the revoked; see `judged`."""
    return judged(trusted, sentences, known)[0]


def judged(
    trusted: bytes, sentences: Sequence[Sentence], known: Sequence[Revocation] = ()
) -> tuple[set[bytes], tuple[Revocation, ...]]:
    """The keys to accept for a trusted one, and the revocations to honour from now on; every sentence is checked.

    Keys before the trusted one in a chain are not trusted: they were given up. `known` are revocations that were
    honoured before; they hold whatever is left out now. Of two keys that revoke each other the first sentence counts.
    """
    if len(sentences) > MAX_SENTENCES:
        raise BadSignature(f"there are {len(sentences)} rotations and revocations: at most {MAX_SENTENCES} are read")
    for sentence in sentences:
        sentence.check()
    rotations = [sentence for sentence in sentences if isinstance(sentence, Rotation)]
    reached = _reached(trusted, rotations)
    honoured: dict[Revocation, None] = {}
    for one in (*known, *(sentence for sentence in sentences if isinstance(sentence, Revocation))):
        gone = {each.revoked for each in honoured}
        if one in known or (one.by in reached and one.by not in gone):
            honoured[one] = None
            rotations = [
                step for step in rotations if step.old != one.revoked or one.by in _reached(step.new, rotations)
            ]
    return _reached(trusted, rotations) - {each.revoked for each in honoured}, tuple(honoured)


def _reached(start: bytes, rotations: Sequence[Rotation]) -> set[bytes]:
    reached = {start}
    for _ in rotations:  # in any order
        reached |= {rotation.new for rotation in rotations if rotation.old in reached}
    return reached


def given_up(sentences: Sequence[Sentence]) -> set[bytes]:
    """The keys that were handed over: what they sign from then on is not accepted beside the chain."""
    return {sentence.old for sentence in sentences if isinstance(sentence, Rotation)}


def fingerprint(key: bytes) -> str:
    """Short form of a key: its first 16 hexadecimal digits."""
    return key.hex()[:16]


def public_of(text: Any) -> bytes:
    """A public key from 64 hexadecimal digits, small ones."""
    if isinstance(text, str) and _KEY.fullmatch(text) is not None:
        return bytes.fromhex(text)
    raise BadSignature("a public key has 64 hexadecimal digits, and this one has not")


def signature_of(text: Any) -> bytes:
    """A signature from base64, in the one way that its bytes are written."""
    try:
        signature = b64decode(text, validate=True) if isinstance(text, str) else b""
    except ValueError:
        signature = b""
    if len(signature) != SIGNATURE_BYTES or encoded(signature) != text:
        raise BadSignature(f"a signature has {SIGNATURE_BYTES} bytes in base64, and this one has not")
    return signature


def new_key(path: Path) -> SigningKey:
    """Make a key: the secret half in `path`, for its owner alone, the public one beside it in `path.pub`."""
    public = public_path(path)
    for place in (path, public):
        if place.exists():
            raise BadInput(f"{place} exists already: give another name; a key is never overwritten")
    key = SigningKey(Ed25519PrivateKey.generate())
    content = key.secret.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with replacing(path, mode=0o600) as part:
        part.chmod(0o600)
        part.write_bytes(content)
    with replacing(public) as part:
        part.write_text(key.public.hex() + "\n")
    return key


def public_path(path: Path) -> Path:
    """Path of the public half of a key."""
    return path.with_name(path.name + ".pub")


def read_key(path: Path) -> SigningKey:
    """The secret key of a file that only its owner can read."""
    try:
        mode, content = path.stat().st_mode, path.read_bytes()
    except OSError as error:
        raise BadInput(f"no key can be read from {path} ({error.strerror}): make one with `release keygen`") from None
    if mode & 0o077 and os.name == "posix":
        raise BadInput(f"{path}: others can read this key; chmod 600 it, or make a new one if somebody has read it")
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadInput(f"{path} is no secret key for releases: make one with `release keygen`")
    return SigningKey(key)


def read_public(given: str) -> bytes:
    """A public key from a file that `release keygen` wrote, or from its 64 hexadecimal digits."""
    if len(given) == 2 * KEY_BYTES and not Path(given).exists():
        return public_of(given.lower())
    try:
        with Path(given).open(encoding="ascii", errors="replace") as opened:
            text = opened.read(4 * KEY_BYTES).strip().lower()
    except OSError as error:
        raise BadInput(
            f"no public key can be read from {given} ({error.strerror}): give the .pub file of `release keygen`, or its"
            " 64 digits"
        ) from None
    if len(text) != 2 * KEY_BYTES:
        raise BadInput(f"{given} is no public key: give the .pub file of `release keygen`")
    return public_of(text)


def encoded(signature: bytes) -> str:
    """A signature as JSON holds it."""
    return b64encode(signature).decode()


_ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<host>[a-z0-9][a-z0-9.-]*|\[[0-9a-f:]+\])(:[0-9]{1,5})?")
_LABEL = r"(?!-)[a-zA-Z0-9_-]{1,63}(?<!-)"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")


def checked_host(host: str) -> str:
    """A name or an IP address of a machine, without port and brackets; BadInput for anything else."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if _NAME.fullmatch(host) is None or host.rpartition(".")[2].isdecimal():
            raise BadInput(
                f"{host!r} is no name and no IP address of a machine: give one such as coordinator.example.org,"
                " 192.0.2.7 or ::1, without https:// and port"
            ) from None
    if "%" in host:
        raise BadInput(f"{host!r} has a zone that only this machine knows: give an address without it")
    return host


def is_loopback(host: str) -> bool:
    """Whether a host, by name or address, is a loopback address of this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def checked_origin(address: str) -> str:
    """An origin as browsers write it, which is safe in a header; BadInput for anything else."""
    found = _ORIGIN.fullmatch(address)
    if found is None or (found["scheme"] == "http" and not is_loopback(found["host"].strip("[]"))):
        raise BadInput(
            f"{address!r} is no origin: give https://HOST or https://HOST:PORT, in small letters and without a path"
            " (http only on this machine)"
        )
    return address
