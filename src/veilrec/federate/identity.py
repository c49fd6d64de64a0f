"""Who says something: a device's own Ed25519 key, made on the device, that an invitation ties to its place.

What a device sends is signed together with the federation, what it is about and the round: a message cannot be passed
off as one of another device, round or federation, and a payload never says who it is from.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from veilrec.errors import BadInput
from veilrec.wire.signing import SigningKey, check_signature

PURPOSE = b"veilrec federation\n"


def statement(federation: str, device: str, kind: str, number: int, content: bytes) -> bytes:
    """What is signed."""
    digest = hashlib.sha256(content).hexdigest()
    return "\n".join((federation, device, kind, str(number), digest)).encode()


def sign(key: SigningKey, federation: str, device: str, kind: str, number: int, content: bytes) -> bytes:
    """A device's word for a content."""
    return key.sign(PURPOSE, statement(federation, device, kind, number, content))


def check(public: bytes, federation: str, device: str, kind: str, number: int, content: bytes, signed: bytes) -> None:
    """Refuse what the device did not sign, for this federation, kind and round."""
    check_signature(public, PURPOSE, statement(federation, device, kind, number, content), signed)


@dataclass(frozen=True)
class Invitation:
    """What lets a device enrol, once: `DEVICE:SECRET` in a file that only the device's owner has.

    The secret is a key. With it the device vouches for its own lasting key; whoever keeps places knows the public half,
    so that nobody, the coordinator included, can put another key in the place of an invited device.
    """

    device: str
    key: SigningKey

    @classmethod
    def new(cls, device: str) -> Invitation:
        """One that nobody can guess."""
        return cls(device, SigningKey(Ed25519PrivateKey.generate()))

    def text(self) -> str:
        """As it is handed over."""
        return f"{self.device}:{self.key.secret.private_bytes_raw().hex()}\n"

    @classmethod
    def read(cls, text: str, where: object) -> Invitation:
        """From what was handed over."""
        device, colon, secret = text.strip().rpartition(":")
        try:
            key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret) if colon and device else b"")
        except ValueError:
            raise BadInput(f"{where} is no invitation: ask whoever runs the federation for another one") from None
        return cls(device, SigningKey(key))

    @property
    def public(self) -> bytes:
        """What those who keep places know of it."""
        return self.key.public

    def endorse(self, federation: str, key: bytes) -> bytes:
        """The invitation's word for a device's lasting key."""
        return sign(self.key, federation, self.device, "enrol", 0, key)


def check_endorsement(invitation: bytes, federation: str, device: str, key: bytes, endorsement: bytes) -> None:
    """Refuse a key that the invitation of a device does not vouch for."""
    check(invitation, federation, device, "enrol", 0, key, endorsement)
