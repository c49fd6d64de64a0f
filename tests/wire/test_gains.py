"""The message of a judge is one number."""

from __future__ import annotations

import math
import struct

import pytest

from veilrec.wire import messages
from veilrec.wire.messages import BadMessage, NotFinite


@pytest.mark.parametrize("gain", [0.0, 0.1, -0.1, 5e-324, 1.0 / 3.0])
def test_a_gain_comes_back_as_it_was(gain: float) -> None:
    assert len(messages.encode_gain(gain)) == messages.SIZE == 8
    assert messages.decode_gain(messages.encode_gain(gain)) == gain


def test_nothing_has_one_form() -> None:
    assert messages.encode_gain(-0.0) == messages.encode_gain(0.0)


@pytest.mark.parametrize("content", [b"", bytes(7), bytes(9)])
def test_other_lengths_are_refused(content: bytes) -> None:
    with pytest.raises(BadMessage, match="bytes"):
        messages.decode_gain(content)


@pytest.mark.parametrize("gain", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused(gain: float) -> None:
    with pytest.raises(NotFinite):
        messages.decode_gain(struct.pack("<d", gain))
