"""The messages of `pairs` as bytes, and the Shamir sharing of the secrets in them; odd bytes raise `BadMessage`."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeVar

from veilrec.core.errors import BadInput
from veilrec.federation.secagg.terms import MOST_DEVICES, MessageReader, RoundKey, Terms, TooFew, Words, packed
from veilrec.wire.messages import BadMessage
from veilrec.wire.signing import SIGNATURE_BYTES

PRIME = 2**256 + 297  # the least prime above 2^256: every 32-byte secret is an element
SECRET_BYTES, SHARE_BYTES = 32, 33


def split(secret: bytes, threshold: int, points: Sequence[int]) -> list[bytes]:
    """A share for every point: a random polynomial of degree `threshold` - 1 whose value at 0 is the secret."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if not 1 <= threshold <= len(points):
        raise BadInput(f"the threshold is {threshold} with {len(points)} shares: it is at least 1 and at most all")
    if len(set(points)) < len(points) or not all(0 < point < PRIME for point in points):
        raise ValueError("the points of shares are distinct and not 0")
    # 40 bytes modulo the prime are uniform to 2^-63.
    coefficients = [int.from_bytes(os.urandom(40), "big") % PRIME for _ in range(threshold - 1)]
    constant = int.from_bytes(secret, "big")
    shares = []
    for point in points:
        value = 0
        for coefficient in coefficients:
            value = (value * point + coefficient) % PRIME
        shares.append(((value * point + constant) % PRIME).to_bytes(SHARE_BYTES, "big"))
    return shares


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret of at least `threshold` shares, by point; what is no secret raises."""
    points = tuple(sorted(shares))[:threshold]
    if len(points) < threshold:
        raise TooFew(f"{len(points)} shares came, and {threshold} are needed: the round is void, nothing is revealed")
    weights = _weights_at_zero(points)
    value = sum(w * int.from_bytes(shares[x], "big") for w, x in zip(weights, points, strict=True)) % PRIME
    if value >> (8 * SECRET_BYTES):
        raise BadMessage("some shares belong to no secret")
    return value.to_bytes(SECRET_BYTES, "big")


@lru_cache(maxsize=4096)
def _weights_at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights of the values at these points in the value at 0."""
    weights = []
    for i, x in enumerate(points):
        top = bottom = 1
        for j, other in enumerate(points):
            if j != i:
                top = top * other % PRIME
                bottom = bottom * (other - x) % PRIME
        weights.append(top * pow(bottom, -1, PRIME) % PRIME)
    return tuple(weights)


KEYS = 2  # that a device announces: one for boxes, one for masks
BOX_BYTES = 2 * SHARE_BYTES + 16  # a share of each secret, sealed
COMMITMENT_BYTES = 32
SecretKind = Literal["seed", "key"]
Value = TypeVar("Value")
_KINDS: tuple[SecretKind, ...] = ("seed", "key")
_MOST_NUMBER = 2**32 - 1
_NUMBER, _BOX, _SIGNATURE, _SHARE = (  # the number of a device, and what belongs to it
    struct.Struct(form) for form in ("<I", f"<I{BOX_BYTES}s", f"<I{SIGNATURE_BYTES}s", f"<IB{SHARE_BYTES}s")
)


def decode_advert(content: bytes) -> RoundKey:
    """A device's two keys for the round."""
    advert = RoundKey.read(reader := MessageReader(content), KEYS)
    reader.end()
    return advert


@dataclass(frozen=True)
class Group:
    """The members of a round, and the keys of one client's neighbours."""

    members: tuple[int, ...]
    adverts: tuple[RoundKey, ...]

    def encode(self) -> bytes:
        """Encode for the wire."""
        adverts = b"".join(advert.encode() for advert in self.adverts)
        return encode_numbers(self.members) + packed(len(self.adverts)) + adverts

    @classmethod
    def decode(cls, content: bytes) -> Group:
        """Check and read a message; signatures are not looked at yet."""
        reader = MessageReader(content)
        members = read_numbers(reader)
        adverts = tuple(RoundKey.read(reader, KEYS) for _ in range(reader.count(MOST_DEVICES)))
        reader.end()
        return cls(members, adverts)


@dataclass(frozen=True)
class SealedShares:
    """A device's secrets in shares, one sealed box for every neighbour, and what its seed has to be."""

    number: int
    commitment: bytes
    boxes: Mapping[int, bytes]  # by neighbour

    def encode(self) -> bytes:
        """Encode for the wire."""
        return packed(self.number) + self.commitment + encode_boxes(self.boxes)

    @classmethod
    def read(cls, reader: MessageReader) -> SealedShares:
        """Take what `encode` wrote."""
        return cls(reader.count(_MOST_NUMBER), reader.take(COMMITMENT_BYTES), read_boxes(reader))

    @classmethod
    def decode(cls, content: bytes) -> SealedShares:
        """Check and read a message."""
        shares = cls.read(reader := MessageReader(content))
        reader.end()
        return shares


def encode_boxes(boxes: Mapping[int, bytes]) -> bytes:
    """Sealed boxes, by the device that they are for, or from."""
    return packed(len(boxes)) + b"".join(packed(number) + boxes[number] for number in sorted(boxes))


def read_boxes(reader: MessageReader) -> dict[int, bytes]:
    """Take what `encode_boxes` wrote."""
    return _in_order(reader.several(_BOX, MOST_DEVICES))


def decode_boxes(content: bytes) -> dict[int, bytes]:
    """Decode the boxes that neighbours have sealed for a client."""
    boxes = read_boxes(reader := MessageReader(content))
    reader.end()
    return boxes


def encode_masked(number: int, words: Words) -> bytes:
    """A device's vector under all of its masks."""
    return packed(number) + words.tobytes()


def decode_masked(content: bytes, terms: Terms) -> tuple[int, Words]:
    """Check and read a masked vector."""
    reader = MessageReader(content)
    number, words = reader.count(_MOST_NUMBER), reader.words(terms)
    reader.end()
    return number, words


def encode_numbers(numbers: Sequence[int]) -> bytes:
    """A list of devices, ascending."""
    return packed(len(numbers)) + b"".join(map(packed, numbers))


def read_numbers(reader: MessageReader) -> tuple[int, ...]:
    """Take what `encode_numbers` wrote."""
    return tuple(_in_order((number, None) for (number,) in reader.several(_NUMBER, MOST_DEVICES)))


def decode_numbers(content: bytes) -> tuple[int, ...]:
    """A list of devices."""
    numbers = read_numbers(reader := MessageReader(content))
    reader.end()
    return numbers


def encode_signatures(signatures: Mapping[int, bytes]) -> bytes:
    """Signatures under one list, by device."""
    return packed(len(signatures)) + b"".join(packed(number) + signatures[number] for number in sorted(signatures))


def decode_signatures(content: bytes) -> dict[int, bytes]:
    """Check and read signatures; whether they are any good is not looked at yet."""
    reader = MessageReader(content)
    signatures: dict[int, bytes] = _in_order(reader.several(_SIGNATURE, MOST_DEVICES))
    reader.end()
    return signatures


@dataclass(frozen=True)
class Reveal:
    """The shares that a device gives up: of the seeds of those who are in the sum, of the keys of the others."""

    number: int
    shares: Mapping[int, tuple[SecretKind, bytes]]  # by the neighbour whose secret it is

    def encode(self) -> bytes:
        """Encode for the wire."""
        parts = (
            packed(owner) + bytes([_KINDS.index(kind)]) + share for owner, (kind, share) in sorted(self.shares.items())
        )
        return packed(self.number) + packed(len(self.shares)) + b"".join(parts)

    @classmethod
    def decode(cls, content: bytes) -> Reveal:
        """Check and read a message."""
        reader = MessageReader(content)
        number = reader.count(_MOST_NUMBER)
        shares = _in_order((owner, _share(*told)) for owner, *told in reader.several(_SHARE, MOST_DEVICES))
        reader.end()
        return cls(number, shares)


def _share(kind: int, share: bytes) -> tuple[SecretKind, bytes]:
    if kind >= len(_KINDS):
        raise BadMessage(f"a share is of kind {kind}: there are seeds (0) and keys (1)")
    return _KINDS[kind], share


def _in_order(pairs: Iterable[tuple[int, Value]]) -> dict[int, Value]:
    """Map values by number; numbers have to rise, so that there is one encoding."""
    read: dict[int, Value] = {}
    last = -1
    for number, value in pairs:
        if number <= last:
            raise BadMessage(f"device {number} follows device {last}: devices are listed in order, each once")
        last, read[number] = number, value
    return read
