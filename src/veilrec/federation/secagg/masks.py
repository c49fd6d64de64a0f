"""Masks that two sides agree on and nobody else can tell from noise, the signed keys for that, and a check of sums.

Agreement: X25519, then HKDF-SHA256 bound to the session and to both sides. Mask: AES-256 in counter mode under a key
that is used for one vector of one round, added in the ring of 32 or 64 bits. Every word of a mask is uniform and
independent of the others, up to what it takes to break AES-256: a masked vector is as good as noise.

Check: one number more beside every vector, so that a wrong sum is noticed. Server and clients share a key that helpers
do not have. It names two vectors a and b of 64-bit words. A client reads its numbers as a matrix X, row by row, and
sends a' X b modulo 2^64 along, under masks like everything else. The sum of these is a' S b for the sum S of all
matrices: it tells whoever knows S and the key nothing new.

Whoever changes the sum by E and the check by e, without the key, passes if a' E b = e. Take a row of E that is not
zero, and in it the entry that 2 divides least often, v times. With uniform b the row's product is uniform among the
multiples of 2^v; 2 divides it exactly w times with probability 2^-(w - v + 1), and it is 0 with 2^-(64 - v). With
uniform a, a multiple of exactly 2^w takes any value with probability 2^-(64 - w) at most. All together at most

    sum over w = v..63 of 2^-(w - v + 1) 2^-(64 - w), and 2^-(64 - v)  =  (66 - v) / 2 * 2^-(64 - v).

Two sums that fit in q bits differ by less than 2^q, so that v is below q: 2^-28 for q = 32. See `missed`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from veilrec.core.arrays import Offsets
from veilrec.federation.secagg.terms import MessageReader, Words, packed
from veilrec.wire.messages import BadMessage
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
        """Sign a round key with the lasting key of its owner."""
        return cls(number, public, identity.sign(ROUND_KEY, _said(session, role, number, public)))

    def check(self, identity: bytes, session: bytes, role: Role) -> None:
        """Refuse one that the lasting key did not sign for this session and role."""
        check_signature(identity, ROUND_KEY, _said(session, role, self.number, self.public), self.signature)

    def encode(self) -> bytes:
        """Encode for the wire."""
        return packed(self.number) + self.public + self.signature

    @classmethod
    def read(cls, reader: MessageReader, keys: int = 1) -> RoundKey:
        """Take what `encode` wrote; some announce several keys at once."""
        number = reader.count(2**32 - 1)
        return cls(number, reader.take(keys * KEY_BYTES), reader.take(SIGNATURE_BYTES))

    @staticmethod
    def size(keys: int = 1) -> int:
        """Size of an encoded key in bytes."""
        return 4 + keys * KEY_BYTES + SIGNATURE_BYTES


def _said(session: bytes, role: Role, number: int, public: bytes) -> bytes:
    return session + role.encode().ljust(8) + packed(number) + public


def public_half(secret: X25519PrivateKey) -> bytes:
    """Public half of a round key."""
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


CHECK_KEY_BYTES = 32


def missed(width: int) -> float:
    """At most how often a wrong sum of numbers of so many bits goes unnoticed, whoever made it knowing no key."""
    v = width - 1
    return (66 - v) / 2 * 2.0 ** -(64 - v)


def check_value(values: Offsets, key: bytes) -> NDArray[np.uint64]:
    """The check of a vector, or of a sum of vectors: one word."""
    columns = math.isqrt(len(values) - 1) + 1
    rows = -(-len(values) // columns)
    factors = np.zeros(rows + columns, np.uint64)
    MaskStream(key).add_to(factors)
    left, right = factors[:rows], factors[rows:]
    words = values.view(np.uint64)
    whole = len(values) // columns
    products = np.zeros(rows, np.uint64)
    products[:whole] = words[: whole * columns].reshape(whole, columns) @ right
    rest = words[whole * columns :]
    if len(rest):
        products[whole] = rest @ right[: len(rest)]
    return np.array([left @ products], "<u8")
