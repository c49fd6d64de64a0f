"""Reports on items: one bit each, and nothing else is taken for one."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilrec.wire import messages
from veilrec.wire.messages import BadMessage


@given(st.lists(st.booleans(), min_size=1, max_size=70), st.integers(0, 2**32 - 1))
def test_a_report_comes_back(flags: list[bool], round_number: int) -> None:
    content = messages.encode_report(np.array(flags), round_number)
    assert len(content) == messages.size(len(flags)) == 12 + -(-len(flags) // 8)
    assert messages.decode_report(content, len(flags), round_number).tolist() == flags


GOOD = messages.encode_report(np.array([True, False, True]), 4)
BAD = {
    "cut short": (GOOD[:-1], "has 12 bytes"),
    "too long": (GOOD + b"\0", "has 14 bytes"),
    "another start": (b"VRM1" + GOOD[4:], "does not start"),
    "another round": (messages.encode_report(np.array([True, False, True]), 5), "for round 5"),
    "other items": (messages.encode_report(np.array([True] * 5), 4), "on 5 items"),
    "items that do not exist": (GOOD[:-1] + b"\xff", "do not exist"),
}


@pytest.mark.parametrize("name", BAD)
def test_anything_odd_is_refused(name: str) -> None:
    content, problem = BAD[name]
    with pytest.raises(BadMessage, match=problem):
        messages.decode_report(content, 3, 4)


@given(st.binary(max_size=20))
def test_any_bytes_are_a_report_or_refused(content: bytes) -> None:
    with suppress(BadMessage):
        assert messages.decode_report(content, 3, 4).shape == (3,)
