"""Reports, gains, and rounds about some tensors: read back as they were sent, and nothing else is taken for one."""

from __future__ import annotations

import math
import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilrec.core.schema import RoundSpec, Schema, Tensor, whole_model
from veilrec.wire import messages, rounds
from veilrec.wire.messages import BadMessage, NotFinite

REPORT = messages.encode_report(np.array([True, False, True]), 4)


@given(st.lists(st.booleans(), min_size=1, max_size=70), st.integers(0, 2**32 - 1))
def test_a_report_comes_back(flags: list[bool], round_number: int) -> None:
    content = messages.encode_report(np.array(flags), round_number)
    assert len(content) == messages.size(len(flags)) == 12 + -(-len(flags) // 8)
    assert messages.decode_report(content, len(flags), round_number).tolist() == flags


def test_odd_reports_are_refused() -> None:
    for content, problem in (
        (REPORT[:-1], "has 12 bytes"),
        (REPORT + b"\0", "has 14 bytes"),
        (b"VRM1" + REPORT[4:], "does not start"),
        (messages.encode_report(np.array([True, False, True]), 5), "for round 5"),
        (messages.encode_report(np.array([True] * 5), 4), "on 5 items"),
        (REPORT[:-1] + b"\xff", "do not exist"),
    ):
        with pytest.raises(BadMessage, match=problem):
            messages.decode_report(content, 3, 4)


@given(st.binary(max_size=20))
def test_any_bytes_are_a_report_or_refused(content: bytes) -> None:
    with suppress(BadMessage):
        assert messages.decode_report(content, 3, 4).shape == (3,)


def test_a_gain_comes_back_and_odd_ones_are_refused() -> None:
    for gain in (0.0, 0.1, -0.1, 5e-324, 1.0 / 3.0):
        assert len(messages.encode_gain(gain)) == messages.SIZE == 8
        assert messages.decode_gain(messages.encode_gain(gain)) == gain
    assert messages.encode_gain(-0.0) == messages.encode_gain(0.0)
    for content in (b"", bytes(7), bytes(9)):
        with pytest.raises(BadMessage, match="bytes"):
            messages.decode_gain(content)
    for odd in (math.nan, math.inf, -math.inf):
        with pytest.raises(NotFinite):
            messages.decode_gain(struct.pack("<d", odd))


SCHEMA = Schema(
    (
        Tensor("known", (2,), by_row=False, learnt=False),
        Tensor("first", (3,), by_row=False),
        Tensor("second", (2,), by_row=False),
    )
)
MODEL = whole_model(SCHEMA, {tensor.name: np.ones(tensor.shape, np.float32) for tensor in SCHEMA.tensors}, 4)


def test_a_round_about_some_tensors_comes_back() -> None:
    for tensors in (None, ("first",), ("first", "second")):
        about = RoundSpec(4, clip_norm=0.5, tensors=tensors)
        sent = rounds.encode(about, MODEL, SCHEMA)
        back, _ = rounds.decode(sent, SCHEMA, 4)
        assert (back.tensors, back.clip_norm, back.number) == (tensors, 0.5, 4)
        assert [tensor.name for tensor in back.view(SCHEMA).tensors] == list(tensors or ("first", "second"))
        assert rounds.size(about, SCHEMA) < len(sent)


def test_rounds_about_impossible_tensors_and_rounds_that_end_early_are_refused() -> None:
    sent = rounds.encode(RoundSpec(4, tensors=("first",)), MODEL, SCHEMA)
    odd = [sent[:5] + bytes([len(n), *n]) + sent[7:] for n in ((), (0,), (2, 1), (1, 1), (3,), (0, 1))]
    for content in (*odd, *(sent[:length] for length in range(5, 8))):
        with pytest.raises(BadMessage):
            rounds.decode(content, SCHEMA, 4)
