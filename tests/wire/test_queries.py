from __future__ import annotations

import struct

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.wire.messages import BadMessage, NotFinite
from veilrec.wire.queries import KINDS, QueryShape, decode, encode


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "interest"])
def test_numbers_come_back_and_nothing_else_travels(kind: str) -> None:
    question = QueryShape(kind, 5)  # type: ignore[arg-type]
    told = np.array([0.5, -1.25, 0.0, 3e8, -0.0], np.float32)
    sent = encode(told, question)
    assert len(sent) == question.bytes == 7 + 20
    np.testing.assert_array_equal(decode(sent, question), told)


def test_an_interest_takes_nine_bytes() -> None:
    question = QueryShape("interest", 300)
    for interest in (0, 299):
        sent = encode(np.array([interest], np.float32), question)
        assert len(sent) == question.bytes == 9
        assert decode(sent, question)[0] == interest


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_what_is_not_finite_is_not_sent(bad: float) -> None:
    with pytest.raises(BadInput, match="not finite"):
        encode(np.array([0.0, bad]), QueryShape("pooled", 2))  # type: ignore[arg-type]


def test_what_is_not_finite_is_not_read() -> None:
    sent = struct.pack("<4sBHff", b"VRQ1", KINDS.index("pooled"), 2, 0.0, np.nan)
    with pytest.raises(NotFinite, match="finite"):
        decode(sent, QueryShape("pooled", 2))


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


@pytest.mark.parametrize("interest", [-1.0, 5.0, 1.5, np.nan])
def test_an_interest_that_does_not_exist_is_not_sent(interest: float) -> None:
    with pytest.raises(BadInput, match="no interest"):
        encode(np.array([interest], np.float32), QueryShape("interest", 5))


@pytest.mark.parametrize("size", [0, -1, 1 << 16])
def test_a_question_of_a_size_that_does_not_exist_is_refused(size: int) -> None:
    with pytest.raises(BadInput, match="size"):
        QueryShape("vector", size)
