"""What a judge sends after the last round: by how much the trained model ranks better for it, clipped; nothing else.

Layout: one f64, little-endian. There is no header: a judge is asked once, and nothing that it could tell beside the
number is charged for.
"""

from __future__ import annotations

import math
import struct

from veilrec.wire.codec import BadMessage, NotFinite

_GAIN = struct.Struct("<d")
SIZE = _GAIN.size  # bytes


def encode(gain: float) -> bytes:
    """The message of one judge; zero has one form only."""
    return _GAIN.pack(gain + 0.0)


def decode(content: bytes) -> float:
    """Check a message and unpack it; anything odd raises `BadMessage`."""
    if len(content) != SIZE:
        raise BadMessage(f"the message of a judge has {len(content)} bytes: one number has {SIZE}")
    gain: float = _GAIN.unpack(content)[0]
    if not math.isfinite(gain):
        raise NotFinite("the message of a judge is no finite number")
    return gain
