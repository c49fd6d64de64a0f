"""The report of DP-SUB on the wire: one bit per item, in a message of its own.

Layout, little-endian: magic `VRB1`, round u32, number of items u32, the bits, filled up with zeros to whole bytes.
"""

from __future__ import annotations

import struct

import numpy as np

from veilrec._arrays import Bools
from veilrec.wire.codec import BadMessage, WrongRound

_HEADER = struct.Struct("<4sII")
_MAGIC = b"VRB1"


def size(n_items: int) -> int:
    """The length of a report in bytes."""
    return _HEADER.size + (n_items + 7) // 8


def encode(bits: Bools, round_number: int) -> bytes:
    """The report of one device."""
    return _HEADER.pack(_MAGIC, round_number, len(bits)) + np.packbits(bits).tobytes()


def decode(content: bytes, n_items: int, round_number: int) -> Bools:
    """Check a report and unpack it; anything odd raises `BadMessage`."""
    if len(content) != size(n_items):
        raise BadMessage(f"the report has {len(content)} bytes: one on {n_items} items has {size(n_items)}")
    magic, sent_round, announced = _HEADER.unpack(content[: _HEADER.size])
    if magic != _MAGIC:
        raise BadMessage("the report does not start as a veilrec report does")
    if sent_round != round_number:
        raise WrongRound(f"the report is for round {sent_round}, expected round {round_number}")
    if announced != n_items:
        raise BadMessage(f"the report is on {announced} items, expected {n_items}")
    bits = np.unpackbits(np.frombuffer(content[_HEADER.size :], np.uint8))
    if bits[n_items:].any():
        raise BadMessage("the report marks items that do not exist")
    return bits[:n_items].astype(np.bool_)
