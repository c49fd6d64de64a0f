from __future__ import annotations

import struct

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.wire.messages import BadMessage, NotFinite
from veilrec.wire.queries import KINDS, QueryShape, decode, encode


def test_numbers_come_back_and_nothing_else_travels() -> None:
    told = np.array([0.5, -1.25, 0.0, 3e8, -0.0], np.float32)
    for kind in KINDS:
        question = QueryShape(kind, 300 if kind == "interest" else 5)
        for values in ([0.0], [299.0]) if kind == "interest" else (told,):
            sent = encode(np.asarray(values, np.float32), question)
            assert len(sent) == question.bytes == (9 if kind == "interest" else 7 + 20)
            np.testing.assert_array_equal(decode(sent, question), values)


def test_what_is_no_number_interest_or_size_is_not_sent_and_not_read() -> None:
    for bad in (np.nan, np.inf, -np.inf, 1e39):
        with pytest.raises(BadInput, match="not finite"):
            encode(np.array([0.0, bad]), QueryShape("pooled", 2))  # type: ignore[arg-type]
    for interest in (-1.0, 5.0, 1.5, np.nan):
        with pytest.raises(BadInput, match="no interest"):
            encode(np.array([interest], np.float32), QueryShape("interest", 5))
    for size in (0, -1, 1 << 16):
        with pytest.raises(BadInput, match="size"):
            QueryShape("vector", size)
    with pytest.raises(NotFinite, match="finite"):
        decode(struct.pack("<4sBHff", b"VRQ1", KINDS.index("pooled"), 2, 0.0, np.nan), QueryShape("pooled", 2))


def test_anything_odd_is_refused() -> None:
    question = QueryShape("attention", 3)
    good = encode(np.zeros(3, np.float32), question)
    others = [
        b"",
        good[:-1],
        good + b"\0",
        b"VRM1" + good[4:],
        good[:4] + b"\x03" + good[5:],
        good[:4] + b"\xff" + good[5:],
    ]
    for content in (*others, good[:5] + b"\x04" + good[6:]):
        with pytest.raises(BadMessage):
            decode(content, question)
    with pytest.raises(BadMessage, match="interest 7"):
        decode(encode(np.array([7], np.float32), QueryShape("interest", 8)), QueryShape("interest", 5))
