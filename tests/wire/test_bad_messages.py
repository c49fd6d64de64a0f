"""Whatever bytes come, the decoder gives a checked message or raises `BadMessage`, and stays small."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from veilrec.core.schema import ClientUpdates, Rows, Schema, Tensor
from veilrec.wire import messages
from veilrec.wire.messages import BadMessage

SCHEMA = Schema((Tensor("items", (20, 2), True), Tensor("bias", (3,), False), Tensor("words", (70_000, 1), True)))
DENSE, ALL_ROWS, BITMAP, LIST = range(4)
ROUND = 7


def good() -> bytes:
    items = Rows(np.array([0, 2]), np.array([4, 11], np.int32), np.ones((2, 2), np.float32))
    words = Rows(np.array([0, 2]), np.array([0, 69_999], np.int32), np.ones((2, 1), np.float32))
    dense = {"bias": np.array([[1.0, 2.0, 3.0]], np.float32)}
    return messages.encode_update(
        ClientUpdates(ROUND, 1, {"items": items, "words": words}, dense, np.array([5])), SCHEMA
    )


def header(tensors: int, magic: bytes = b"VRM1", round_number: int = ROUND) -> bytes:
    return struct.pack("<4sIIB", magic, round_number, 0, tensors)


def table(number: int, coding: int, count: int, index: bytes, values: int) -> bytes:
    return struct.pack("<BBI", number, coding, count) + index + np.zeros(values, "<f4").tobytes()


def u16(*rows: int) -> bytes:
    return np.array(rows, "<u2").tobytes()


def u32(*rows: int) -> bytes:
    return np.array(rows, "<u4").tobytes()


def test_the_good_message_is_good_and_cut_at_any_byte_it_is_refused() -> None:
    assert set(messages.decode_update(good(), SCHEMA, ROUND).tables) == {"items", "words"}
    for length in range(len(good())):
        with pytest.raises(BadMessage, match="ends after"):
            messages.decode_update(good()[:length], SCHEMA, ROUND)


BAD = {
    "empty": (b"", "ends after 0 bytes"),
    "trailing byte": (good() + b"\0", "goes on for 1 byte after"),
    "wrong magic": (b"VRM2" + good()[4:], "does not start"),
    "other round": (header(0, round_number=8), "round 8, expected round 7"),
    "more tensors announced": (header(3) + good()[13:46], "ends after"),
    "tensor outside the schema": (header(1) + table(3, LIST, 0, b"", 0), "tensor number 3 is out of place"),
    "same tensor twice": (header(2) + 2 * table(0, LIST, 0, b"", 0), "tensor number 0 is out of place"),
    "tensors out of order": (
        header(2) + table(2, LIST, 0, b"", 0) + table(0, LIST, 0, b"", 0),
        "tensor number 0 is out of place",
    ),
    "table sent as dense": (header(1) + b"\0\0" + bytes(160), "does not fit its kind"),
    "dense sent as table": (header(1) + table(1, LIST, 0, b"", 0), "does not fit its kind"),
    "unknown coding": (header(1) + table(0, 8, 0, b"", 0), "coding 8, which does not fit"),
    "more rows than the table has": (header(1) + table(0, LIST, 21, u16(*range(21)), 42), "21 rows announced"),
    "row past the end": (header(1) + table(0, LIST, 1, u16(20), 2), "stay below 20"),
    "row past the end, u32": (header(1) + table(2, LIST, 1, u32(70_000), 1), "stay below 70000"),
    "row that is negative as int32": (header(1) + table(2, LIST, 1, u32(2**32 - 1), 1), "stay below 70000"),
    "negative row hidden before": (header(1) + table(2, LIST, 2, u32(2**31, 5), 2), "must increase"),
    "row twice": (header(1) + table(0, LIST, 2, u16(4, 4), 4), "must increase"),
    "rows not in order": (header(1) + table(0, LIST, 2, u16(9, 4), 4), "must increase"),
    "all rows, count too small": (header(1) + table(0, ALL_ROWS, 19, b"", 38), "19 rows announced"),
    "bitmap marks more": (header(1) + table(0, BITMAP, 1, b"\xc0\0\0", 2), "1 rows announced for items, 2"),
    "bitmap marks fewer": (header(1) + table(0, BITMAP, 2, b"\x80\0\0", 4), "2 rows announced for items, 1"),
    "bitmap past the end": (header(1) + table(0, BITMAP, 1, b"\0\0\x08", 2), "rows that do not exist"),
}


def test_each_lie_is_named() -> None:
    for name, (content, problem) in BAD.items():
        with pytest.raises(BadMessage, match=problem):
            messages.decode_update(content, SCHEMA, ROUND)
            pytest.fail(name)


def test_values_have_to_be_finite() -> None:
    dense = header(1) + b"\1\0"
    row = header(1) + struct.pack("<BBI", 0, LIST, 1) + u16(3) + bytes(4)
    for head, tail in ((dense, bytes(8)), (row, b"")):
        messages.decode_update(head + np.array([1.0], "<f4").tobytes() + tail, SCHEMA, ROUND)
        for value in (np.nan, np.inf, -np.inf):
            with pytest.raises(BadMessage, match="not finite"):
                messages.decode_update(head + np.array([value], "<f4").tobytes() + tail, SCHEMA, ROUND)


def assert_sound_or_refused(content: bytes) -> None:
    try:
        message = messages.decode_update(content, SCHEMA, ROUND)
    except BadMessage:
        return
    for name, rows in message.tables.items():
        assert rows.values.shape == (len(rows.index), SCHEMA[name].shape[1])
        assert np.all(np.diff(rows.index) > 0)
        assert np.all((rows.index >= 0) & (rows.index < SCHEMA[name].shape[0]))
        assert np.isfinite(rows.values).all()
    for name, values in message.dense.items():
        assert values.shape == (1, *SCHEMA[name].shape)
        assert np.isfinite(values).all()
    assert messages.sizes(message, SCHEMA)[0] <= len(content)  # nobody can send less than the cheapest coding


@settings(max_examples=400)
@given(st.binary(max_size=200), st.booleans())
@example(b"", False)
def test_random_bytes(content: bytes, behind_a_header: bool) -> None:
    assert_sound_or_refused(header(2) + content if behind_a_header else content)


@settings(max_examples=600)
@given(st.lists(st.tuples(st.integers(0, len(good()) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes(changes: list[tuple[int, int]]) -> None:
    content = bytearray(good())
    for position, value in changes:
        content[position] = value
    assert_sound_or_refused(bytes(content))


def test_a_short_message_cannot_ask_for_much_memory() -> None:
    large = Schema((Tensor("words", (50_000_000, 8), True), Tensor("dense", (50_000_000,), False)))
    asking = [header(1) + table(0, coding, 50_000_000, b"", 0) for coding in (ALL_ROWS, BITMAP, LIST)]
    tracemalloc.start()
    try:
        for content in (*asking, header(1) + b"\1\0"):
            with pytest.raises(BadMessage):
                messages.decode_update(content, large, ROUND)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
