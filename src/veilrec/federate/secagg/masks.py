"""Masks that two sides agree on and nobody else can tell from noise, and the signed keys that they agree by.

Agreement: X25519, then HKDF-SHA256 bound to the session and to both sides. Mask: AES-256 in counter mode under a key
that is used for one vector of one round, added in the ring of 32 or 64 bits. Every word of a mask is uniform and
independent of the others, up to what it takes to break AES-256: a masked vector is as good as noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from veilrec.federate.secagg.terms import Reader, Words, packed
from veilrec.wire.codec import BadMessage
from veilrec.wire.signing import KEY_BYTES, SIGNATURE_BYTES, SigningKey, check_signature

ROUND_KEY = b"veilrec round key\n"  # what a signature of a round key is for
Role = Literal["helper", "device"]
_BLOCK = 16  # bytes of AES
_PIECE = 1 << 18  # bytes at a time, so that stream and vector stay in the cache
_ZEROS = memoryview(bytes(_PIECE))


@dataclass(frozen=True)
class RoundKey:
    """Somebody's public key for one round, with the signature of their lasting key."""

    number: int  # of the device, or of the helper
    public: bytes
    signature: bytes

    @classmethod
    def signed(cls, public: bytes, identity: SigningKey, session: bytes, role: Role, number: int) -> RoundKey:
        """As its owner tells it."""
        return cls(number, public, identity.sign(ROUND_KEY, _said(session, role, number, public)))

    def check(self, identity: bytes, session: bytes, role: Role) -> None:
        """Refuse one that the lasting key did not sign for this session and role."""
        check_signature(identity, ROUND_KEY, _said(session, role, self.number, self.public), self.signature)

    def encode(self) -> bytes:
        """For the wire."""
        return packed(self.number) + self.public + self.signature

    @classmethod
    def read(cls, reader: Reader, keys: int = 1) -> RoundKey:
        """Take what `encode` wrote; some announce several keys at once."""
        number = reader.count(2**32 - 1)
        return cls(number, reader.take(keys * KEY_BYTES), reader.take(SIGNATURE_BYTES))

    @staticmethod
    def size(keys: int = 1) -> int:
        """In bytes."""
        return 4 + keys * KEY_BYTES + SIGNATURE_BYTES


def _said(session: bytes, role: Role, number: int, public: bytes) -> bytes:
    return session + role.encode().ljust(8) + packed(number) + public


def public_half(secret: X25519PrivateKey) -> bytes:
    """What everybody may know."""
    return secret.public_key().public_bytes_raw()


def agreed_key(own: X25519PrivateKey, other: bytes, *about: bytes) -> bytes:
    """A key that only the two sides can work out, of 32 bytes, for the use that `about` names."""
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise BadMessage("a round key is no key to agree by: nothing is masked with it") from None
    return derived_key(shared, *about)


def derived_key(secret: bytes, *about: bytes) -> bytes:
    """HKDF-SHA256: one secret, a key for every use."""
    info = b"".join(len(part).to_bytes(4, "little") + part for part in about)
    return HKDF(hashes.SHA256(), 32, None, info).derive(secret)


class MaskStream:
    """The words of one mask, in order; a key makes one stream, and a stream is used once."""

    def __init__(self, key: bytes) -> None:
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK))).encryptor()
        self._buffer = bytearray(_PIECE + _BLOCK - 1)

    def add_to(self, total: Words, *, sign: Literal[1, -1] = 1) -> None:
        """Put the next words on a vector, or take them off, in place."""
        combine = np.add if sign == 1 else np.subtract
        step = _PIECE // total.itemsize
        for start in range(0, len(total), step):
            part = total[start : start + step]
            self._stream.update_into(_ZEROS[: part.nbytes], self._buffer)
            combine(part, np.frombuffer(self._buffer, total.dtype, len(part)), out=part)
