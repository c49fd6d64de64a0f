"""What everybody of a round has agreed to before the first message, and how a round can fail.

A session is the digest of all of it. Every key, every signature and every box of a round is bound to its session, so
that nothing of one round, one federation or one way of adding up can be used in another.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from veilrec.core.arrays import Offsets
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.wire.messages import BadMessage

FEDERATION_BYTES = 32
MOST_NUMBERS = 1 << 27  # of a vector
MOST_DEVICES = 1 << 20  # of a round
_TERMS = struct.Struct("<4s32sIIBI")
_MAGIC = b"VRS1"

Words: TypeAlias = NDArray[np.unsignedinteger[Any]]  # of 32 bits or of 64


class Void(VeilrecError):
    """A round is lost: no sum comes out of it, and nothing of anybody is revealed."""

    exit_code = 1


class TooFew(Void):
    """Fewer devices than the round needs are left."""


class BrokenSum(Void):
    """The sum is not that of the vectors that were sent: a participant deviated from the protocol."""


@dataclass(frozen=True)
class Terms:
    """A round of a federation: how many numbers are added up, how large, and of how many devices at least."""

    federation: bytes
    round_number: int
    length: int  # numbers in a vector
    width: int  # bits that hold every number of the sum, its sign included; up to 32 they travel as 32, else as 64
    least: int  # devices without which no sum is opened

    def __post_init__(self) -> None:
        if len(self.federation) != FEDERATION_BYTES:
            raise BadInput(f"the id of a federation has {FEDERATION_BYTES} bytes, and this one {len(self.federation)}")
        for name, value, low, high in (
            ("round_number", self.round_number, 0, 2**32 - 1),
            ("length", self.length, 1, MOST_NUMBERS),
            ("width", self.width, 2, 64),
            ("least", self.least, 2, MOST_DEVICES),
        ):
            if not low <= value <= high:
                raise BadInput(f"{name} of a secure sum is {value}: it lies from {low} to {high}")

    @property
    def words(self) -> np.dtype[np.unsignedinteger[Any]]:
        """Data type of a number on the wire."""
        return np.dtype("<u4") if self.width <= 32 else np.dtype("<u8")

    @property
    def vector_bytes(self) -> int:
        """Size of a vector in bytes."""
        return self.length * self.words.itemsize

    def encode(self) -> bytes:
        """Encode for the wire and for the session digest."""
        return _TERMS.pack(_MAGIC, self.federation, self.round_number, self.length, self.width, self.least)

    @classmethod
    def read(cls, reader: MessageReader) -> Terms:
        """Take what `encode` wrote."""
        magic, *fields = reader.unpack(_TERMS)
        if magic != _MAGIC:
            raise BadMessage("these bytes do not begin as the terms of a secure sum do")
        try:
            return cls(*fields)
        except BadInput as error:
            raise BadMessage(str(error)) from None

    def session(self, protocol: bytes, *details: bytes) -> bytes:
        """The digest that everything of the round is bound to."""
        return digest(b"veilrec secure sum", protocol, self.encode(), *details)

    def to_words(self, values: Offsets) -> Words:
        """Whole numbers as they travel; a copy."""
        if values.dtype != np.int64 or values.shape != (self.length,):
            raise BadInput(
                f"the vector has type {values.dtype} and shape {values.shape}: this round adds up {self.length} int64"
            )
        return values.astype(self.words, casting="unsafe")

    def from_words(self, total: Words) -> Offsets:
        """A sum with its sign; one that does not fit the width is refused."""
        signed = total.view("<i4" if self.words.itemsize == 4 else "<i8").astype(np.int64)
        limit = 1 << (self.width - 1)
        if self.width < 64 and (int(signed.max()) >= limit or int(signed.min()) < -limit):
            raise BrokenSum(
                f"the sum has a number beyond {self.width} bits: a device sent too much, a helper answered wrongly, or "
                "the width was chosen too small; nothing of the round is used"
            )
        return signed


def digest(*parts: bytes) -> bytes:
    """SHA-256 of some byte strings, each with its length, so that no two lists of them meet."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(len(part).to_bytes(8, "little"))
        sha.update(part)
    return sha.digest()


class MessageReader:
    """Reads a received message from the front; missing or trailing bytes raise `BadMessage`."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = memoryview(content), 0

    def _view(self, count: int) -> memoryview:
        if count < 0 or count > len(self._content) - self._at:
            raise BadMessage(f"the message ends after {len(self._content)} bytes, in the middle of something")
        self._at += count
        return self._content[self._at - count : self._at]

    def take(self, count: int) -> bytes:
        """The next so many bytes."""
        return bytes(self._view(count))

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        """Read the next fields."""
        return form.unpack(self._view(form.size))

    def several(self, form: struct.Struct, most: int) -> Iterator[tuple[Any, ...]]:
        """Read a count, and then as many groups of fields."""
        return form.iter_unpack(self._view(self.count(most) * form.size))

    def count(self, most: int) -> int:
        """A number of things that follow."""
        value = int.from_bytes(self._view(4), "little")
        if value > most:
            raise BadMessage(f"the message announces {value} parts: there can be {most} at most")
        return value

    def words(self, terms: Terms) -> Words:
        """A vector of the round."""
        return np.frombuffer(self._view(terms.vector_bytes), terms.words)

    def end(self) -> None:
        """Check that nothing follows."""
        if self._at != len(self._content):
            raise BadMessage(f"the message goes on for {len(self._content) - self._at} bytes behind its end")


def packed(count: int) -> bytes:
    """A number of things, or of a device, as `MessageReader.count` takes it."""
    return count.to_bytes(4, "little")
