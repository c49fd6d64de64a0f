"""A query on its way to the server: what a device tells of its user to be recommended something, and nothing else.

Layout, little-endian: magic `VRQ1`, kind u8, how many numbers u16, the numbers as float32 (an interest: one u16). There
is no room for anything more: no user, no device, no time, no length of a history. Two devices that ask the same kind of
question send the same number of bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from veilrec._arrays import Floats
from veilrec.errors import BadInput
from veilrec.wire.codec import BadMessage, NotFinite

Kind = Literal["vector", "attention", "pooled", "pooled-and-clear", "interest"]
"""A user vector; attention over basis vectors; a pooled vector; one beside that of clicks in the clear; an interest."""
KINDS: tuple[Kind, ...] = get_args(Kind)  # their numbers on the wire
_HEADER = struct.Struct("<4sBH")
_MAGIC = b"VRQ1"
_INTEREST = struct.Struct("<H")
MOST = (1 << 16) - 1  # numbers of a query, and interests


@dataclass(frozen=True)
class Question:
    """What both sides know of a query before it is sent: its kind, and how many numbers or interests there are."""

    kind: Kind
    size: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadInput(f"a query of kind {self.kind!r}: known are {', '.join(KINDS)}")
        if not 1 <= self.size <= MOST:
            raise BadInput(f"a query of size {self.size}: give 1 to {MOST}")

    @property
    def bytes(self) -> int:
        """The length of every query of this kind."""
        return _HEADER.size + (_INTEREST.size if self.kind == "interest" else 4 * self.size)


def encode(values: Floats, question: Question) -> bytes:
    """The query of one device: its numbers, [size], or the number of an interest, [1]."""
    if question.kind == "interest":
        if values.shape != (1,) or not 0 <= values[0] < question.size or values[0] != int(values[0]):
            raise BadInput(f"no interest of {question.size}: {values}")
        return _HEADER.pack(_MAGIC, KINDS.index(question.kind), 1) + _INTEREST.pack(int(values[0]))
    if values.shape != (question.size,):
        raise BadInput(f"a query has shape {values.shape}: give {question.size} numbers")
    with np.errstate(over="ignore"):
        numbers = values.astype("<f4")
    if not np.isfinite(numbers).all():
        raise BadInput("a query has numbers that are not finite: nothing is sent")
    return _HEADER.pack(_MAGIC, KINDS.index(question.kind), question.size) + numbers.tobytes()


def decode(content: bytes, question: Question) -> Floats:
    """Check a query and unpack it: its numbers, or [1] with an interest; anything odd raises `BadMessage`."""
    if len(content) != question.bytes:
        raise BadMessage(f"the query has {len(content)} bytes and not {question.bytes}")
    magic, kind, count = _HEADER.unpack_from(content)
    expected = 1 if question.kind == "interest" else question.size
    if magic != _MAGIC or kind != KINDS.index(question.kind) or count != expected:
        raise BadMessage(f"the message does not start as a veilrec query of kind {question.kind} does")
    if question.kind == "interest":
        (interest,) = _INTEREST.unpack_from(content, _HEADER.size)
        if interest >= question.size:
            raise BadMessage(f"the query is about interest {interest}, and there are {question.size}")
        return np.array([interest], np.float32)
    numbers = np.frombuffer(content, "<f4", offset=_HEADER.size).astype(np.float32)
    if not np.isfinite(numbers).all():
        raise NotFinite("the query has numbers that are not finite")
    return numbers
