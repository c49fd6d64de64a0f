"""Messages survive the way through bytes, and `sizes` knows their length beforehand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilrec.core.schema import ClientUpdates, Factors, Rows, Schema, Tensor
from veilrec.wire import messages as codec


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    tensors = []
    for number in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            shape = (draw(st.integers(1, 40)), draw(st.integers(1, 5)))
            tensors.append(Tensor(f"t{number}", shape, by_row=True))
        else:
            shape = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
            tensors.append(Tensor(f"t{number}", shape, by_row=False))
    return Schema(tuple(tensors))


def some_rows(generator: np.random.Generator, tensor: Tensor, counts: list[int]) -> Rows:
    height, width = tensor.shape
    index = [generator.choice(height, count, replace=False) for count in counts]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    values = generator.standard_normal((int(offsets[-1]), width)).astype(np.float32)
    return Rows(offsets, np.concatenate([*index, []]).astype(np.int32), values)


@st.composite
def messages(draw: st.DrawFn) -> tuple[Schema, ClientUpdates]:
    schema = draw(schemas())
    generator = np.random.default_rng(draw(st.integers(0, 999)))
    n = draw(st.integers(1, 3))
    tables, dense = {}, {}
    for tensor in schema.tensors:
        if not draw(st.booleans()):
            continue  # a message need not carry every tensor
        if tensor.by_row:
            counts = [draw(st.integers(0, tensor.shape[0])) for _ in range(n)]
            tables[tensor.name] = some_rows(generator, tensor, counts)
        else:
            dense[tensor.name] = generator.standard_normal((n, *tensor.shape)).astype(np.float32)
    examples = draw(st.none() | st.lists(st.integers(1, 2**32 - 1), min_size=n, max_size=n))
    packed = None if examples is None else np.array(examples, np.int64)
    return schema, ClientUpdates(draw(st.integers(0, 2**32 - 1)), n, tables, dense, packed)


def assert_same(sent: ClientUpdates, device: int, got: ClientUpdates) -> None:
    assert (got.round_number, got.count) == (sent.round_number, 1)
    assert got.tables.keys() == sent.tables.keys()
    assert got.dense.keys() == sent.dense.keys()
    for name, rows in sent.tables.items():
        entries = slice(rows.offsets[device], rows.offsets[device + 1])
        order = np.argsort(rows.index[entries])
        assert np.array_equal(got.tables[name].index, rows.index[entries][order])
        assert np.array_equal(got.tables[name].values, rows.values[entries][order])
        assert got.tables[name].offsets.tolist() == [0, len(order)]
    for name, values in sent.dense.items():
        assert np.array_equal(got.dense[name], values[device : device + 1])
    if sent.examples is None:
        assert got.examples is None
    else:
        assert got.examples is not None
        assert got.examples.tolist() == [sent.examples[device]]


@given(messages())
def test_what_is_encoded_comes_back_and_has_the_size_foretold(message: tuple[Schema, ClientUpdates]) -> None:
    schema, uploads = message
    sizes = codec.sizes(uploads, schema)
    carried = [*(rows.values for rows in uploads.tables.values()), *uploads.dense.values()]
    assert codec.parameters(uploads, schema) == sum(values.size for values in carried)
    for device in range(uploads.count):
        content = codec.encode_update(uploads, schema, device)
        assert len(content) == sizes[device]
        assert_same(uploads, device, codec.decode_update(content, schema, uploads.round_number))


@pytest.mark.parametrize("height", [8, 300, 65_536, 65_537, 70_001])
def test_every_index_coding_has_the_size_foretold(height: int) -> None:
    """0 rows, short list, where bitmap and list cost the same, bitmap, all rows; u16 and u32 lists."""
    tensor = Tensor("items", (height, 3), by_row=True)
    width = 2 if height <= 65_536 else 4
    even = (height + 7) // 8 // width
    counts = [0, 1, even - 1 if even else 0, even, even + 1, height - 1, height]
    schema = Schema((tensor,))
    uploads = ClientUpdates(1, len(counts), {"items": some_rows(np.random.default_rng(0), tensor, counts)})
    sizes = codec.sizes(uploads, schema)
    for device, count in enumerate(counts):
        content = codec.encode_update(uploads, schema, device)
        index = 0 if count == height else min(count * width, (height + 7) // 8)
        assert len(content) == sizes[device] == 13 + 2 + 4 + index + count * 3 * 4
        assert_same(uploads, device, codec.decode_update(content, schema, 1))


def test_the_layout_is_the_documented_one() -> None:
    schema = Schema((Tensor("items", (20, 1), True), Tensor("bias", (2,), False)))
    rows = Rows(np.array([0, 1]), np.array([17], np.int32), np.array([[1.5]], np.float32))
    uploads = ClientUpdates(3, 1, {"items": rows}, {"bias": np.array([[0.0, -2.0]], np.float32)}, np.array([9]))
    head = "56524d31 03000000 09000000 02"  # VRM1, round, examples, tensors
    items = "00 03 01000000 1100 0000c03f"  # tensor 0, list, one row: 17, 1.5
    bias = "01 00 00000000 000000c0"  # tensor 1, dense: 0.0, -2.0
    assert codec.encode_update(uploads, schema) == bytes.fromhex(head + items + bias)


def test_a_matrix_of_low_rank_is_sent_as_its_factors() -> None:
    schema = Schema((Tensor("matrix", (30, 20), by_row=False), Tensor("vector", (30,), by_row=False)))
    generator = np.random.default_rng(1)
    left, scales, right = (generator.normal(size=s).astype(np.float32) for s in ((2, 30, 1), (2, 1), (2, 1, 20)))
    sent = ClientUpdates(0, 2, factors={"matrix": Factors(left, scales, right)})
    for device in range(2):
        content = codec.encode_update(sent, schema, device)
        assert len(content) == codec.sizes(sent, schema)[device] < 30 * 20
        came = codec.decode_update(content, schema, 0).factors["matrix"]
        assert np.array_equal(came.product()[0], sent.factors["matrix"].product()[device])
    other = bytearray(codec.encode_update(sent, schema))
    other[13] = 1  # the same as the vector
    with pytest.raises(codec.BadMessage, match="does not fit its kind"):
        codec.decode_update(bytes(other), schema, 0)
