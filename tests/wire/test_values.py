"""Numbers with fewer digits: the size foretold, the error bounded, and the same on both sides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilrec.core.schema import ClientUpdates, Rows, Schema, Tensor
from veilrec.wire import messages
from veilrec.wire.messages import CODINGS, BadMessage, ValueCoding

RELATIVE = {"float32": 0.0, "float16": 2.0**-11, "int8": 0.51 / 127, "int4": 0.51 / 7}  # of a row's largest


@given(
    st.sampled_from(CODINGS),
    st.integers(0, 5),
    st.integers(1, 9),
    st.integers(0, 99),
    st.sampled_from([1e-6, 1.0, 1e3]),
)
def test_the_other_side_reads_what_rounding_foretold(
    coding: ValueCoding, rows: int, width: int, seed: int, size: float
) -> None:
    given_values = size * np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    content = messages.encode_values(given_values, coding)
    assert len(content) == rows * messages.row_size(coding, width)
    read = messages.decode_values(memoryview(content), rows, width, coding)
    assert np.array_equal(read, messages.rounded_values(given_values, coding))
    largest = np.abs(given_values).max(axis=1, keepdims=True) if rows else np.zeros((0, 1))
    slack = 6e-8 if coding == "float16" else 0.0  # below it half precision has no more digits
    assert np.all(np.abs(read - given_values) <= (1.01 * RELATIVE[coding]) * largest + slack)


def test_half_way_between_two_steps_both_sides_round_alike() -> None:
    for coding, largest in (("int8", 127), ("int4", 7)):
        generator = np.random.default_rng(2)
        units = (generator.integers(128, 256, (400, 1)) / 256).astype(np.float32)  # exact as a scale
        halves = (generator.integers(-largest, largest, (400, 32)) + 0.5) * units
        near = np.nextafter(halves.astype(np.float32), np.float32(np.inf) * generator.choice([-1, 1], (400, 32)))
        through(np.hstack((largest * units, near)).astype(np.float32), coding)


@pytest.mark.parametrize("coding", CODINGS)
def test_a_coded_message_goes_through_and_is_as_long_as_foretold(coding: ValueCoding) -> None:
    generator = np.random.default_rng(1)
    schema = Schema(
        (Tensor("items", (40, 5), True), Tensor("layer", (3, 4), False), Tensor("bias", (4,), False))
    ).coded(coding)
    rows = Rows(
        np.array([0, 3, 3]), np.array([1, 7, 30], np.int32), generator.standard_normal((3, 5)).astype(np.float32)
    )
    dense = {t.name: generator.standard_normal((2, *t.shape)).astype(np.float32) for t in schema.dense}
    sent = ClientUpdates(4, 2, {"items": rows}, dense)
    expected = messages.rounded_update(sent, schema)
    for device, size in enumerate(messages.sizes(sent, schema)):
        content = messages.encode_update(sent, schema, device)
        assert len(content) == size
        got = messages.decode_update(content, schema, 4)
        assert np.array_equal(
            got.tables["items"].values, expected.tables["items"].values[: len(got.tables["items"].index)]
        )
        for name in dense:
            assert np.array_equal(got.dense[name][0], expected.dense[name][device])


def through(rows: np.ndarray, coding: ValueCoding) -> np.ndarray:
    """Rows as the other side reads them, which has to be what rounding foretells."""
    read = messages.decode_values(memoryview(messages.encode_values(rows, coding)), *rows.shape, coding)
    np.testing.assert_array_equal(read, messages.rounded_values(rows, coding))
    return read


def test_zeros_tiny_large_and_infinite_values() -> None:
    for coding in CODINGS:
        read = through(np.array([[0.0, 0.0], [1e30, -1e30]], np.float32), coding)
        assert np.array_equal(read[0], [0.0, 0.0])
        assert np.isfinite(read).all()
    for coding in ("int8", "int4"):
        for size in (1e-38, 1e-40, 1e-45):  # whose unit has no inverse
            rows = np.array([[size, -size, 0.0]], np.float32)
            assert np.abs(through(rows, coding) - rows).max() <= 1e-37
        for odd in (np.nan, np.inf, -np.inf):
            assert not np.isfinite(through(np.array([[1.0, odd, 0.0]], np.float32), coding)).any()


def test_another_coding_than_the_schemas_and_an_infinite_scale_are_refused() -> None:
    schema = Schema((Tensor("bias", (4,), False),))
    sent = ClientUpdates(0, 1, {}, {"bias": np.ones((1, 4), np.float32)})
    with pytest.raises(BadMessage, match="does not fit"):
        messages.decode_update(messages.encode_update(sent, schema.coded("float16")), schema, 0)
    content = bytearray(messages.encode_update(sent, schema.coded("int8")))
    content[-6:-4] = b"\x80\x7f"  # infinity
    with pytest.raises(BadMessage, match="not finite"):
        messages.decode_update(bytes(content), schema.coded("int8"), 0)
