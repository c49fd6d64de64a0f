"""Messages survive the way through bytes, have the length foretold, and whatever else comes is refused, at no cost."""

import math
import struct
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.wire.raising import raises
from veilrec.core.schema import ClientUpdates, Factors, RoundSpec, Rows, Schema, Tensor, whole_model
from veilrec.wire import messages, rounds
from veilrec.wire.messages import CODINGS, BadMessage, NotFinite


@st.composite
def schemas(draw):
    tensors = []
    for number in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            shape = (draw(st.integers(1, 40)), draw(st.integers(1, 5)))
            tensors.append(Tensor(f"t{number}", shape, by_row=True))
        else:
            shape = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
            tensors.append(Tensor(f"t{number}", shape, by_row=False))
    return Schema(tuple(tensors))


def some_rows(generator, tensor, counts):
    height, width = tensor.shape
    index = [generator.choice(height, count, replace=False) for count in counts]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    values = generator.standard_normal((int(offsets[-1]), width)).astype(np.float32)
    return Rows(offsets, np.concatenate([*index, []]).astype(np.int32), values)


@st.composite
def drawn_updates(draw):
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


def assert_same(sent, client, got):
    assert (got.round_number, got.count) == (sent.round_number, 1)
    assert got.tables.keys() == sent.tables.keys()
    assert got.dense.keys() == sent.dense.keys()
    for name, rows in sent.tables.items():
        entries = slice(rows.offsets[client], rows.offsets[client + 1])
        order = np.argsort(rows.index[entries])
        assert np.array_equal(got.tables[name].index, rows.index[entries][order])
        assert np.array_equal(got.tables[name].values, rows.values[entries][order])
        assert got.tables[name].offsets.tolist() == [0, len(order)]
    for name, values in sent.dense.items():
        assert np.array_equal(got.dense[name], values[client : client + 1])
    if sent.examples is None:
        assert got.examples is None
    else:
        assert got.examples.tolist() == [sent.examples[client]]


@given(drawn_updates())
def test_what_is_encoded_comes_back_and_has_the_size_foretold(message):
    schema, updates = message
    sizes = messages.sizes(updates, schema)
    carried = [*(rows.values for rows in updates.tables.values()), *updates.dense.values()]
    assert messages.parameters(updates, schema) == sum(values.size for values in carried)
    for client in range(updates.count):
        content = messages.encode_update(updates, schema, client)
        assert len(content) == sizes[client]
        assert_same(updates, client, messages.decode_update(content, schema, updates.round_number))


@pytest.mark.parametrize("height", [8, 300, 65_536, 65_537, 70_001])
def test_every_index_coding_has_the_size_foretold(height):
    """0 rows, short list, where bitmap and list cost the same, bitmap, all rows; u16 and u32 lists."""
    tensor = Tensor("items", (height, 3), by_row=True)
    width = 2 if height <= 65_536 else 4
    even = (height + 7) // 8 // width
    counts = [0, 1, even - 1 if even else 0, even, even + 1, height - 1, height]
    schema = Schema((tensor,))
    updates = ClientUpdates(1, len(counts), {"items": some_rows(np.random.default_rng(0), tensor, counts)})
    sizes = messages.sizes(updates, schema)
    for client, count in enumerate(counts):
        content = messages.encode_update(updates, schema, client)
        index = 0 if count == height else min(count * width, (height + 7) // 8)
        assert len(content) == sizes[client] == 13 + 2 + 4 + index + count * 3 * 4
        assert_same(updates, client, messages.decode_update(content, schema, 1))


def test_the_layout_is_the_documented_one():
    schema = Schema((Tensor("items", (20, 1), True), Tensor("bias", (2,), False)))
    rows = Rows(np.array([0, 1]), np.array([17], np.int32), np.array([[1.5]], np.float32))
    updates = ClientUpdates(3, 1, {"items": rows}, {"bias": np.array([[0.0, -2.0]], np.float32)}, np.array([9]))
    head = "56524d31 03000000 09000000 02"  # VRM1, round, examples, tensors
    items = "00 03 01000000 1100 0000c03f"  # tensor 0, list, one row: 17, 1.5
    bias = "01 00 00000000 000000c0"  # tensor 1, dense: 0.0, -2.0
    assert messages.encode_update(updates, schema) == bytes.fromhex(head + items + bias)


def test_a_matrix_of_low_rank_is_sent_as_its_factors():
    schema = Schema((Tensor("matrix", (30, 20), by_row=False), Tensor("vector", (30,), by_row=False)))
    generator = np.random.default_rng(1)
    left, scales, right = (generator.normal(size=s).astype(np.float32) for s in ((2, 30, 1), (2, 1), (2, 1, 20)))
    sent = ClientUpdates(0, 2, factors={"matrix": Factors(left, scales, right)})
    for client in range(2):
        content = messages.encode_update(sent, schema, client)
        assert len(content) == messages.sizes(sent, schema)[client] < 30 * 20
        came = messages.decode_update(content, schema, 0).factors["matrix"]
        assert np.array_equal(came.product()[0], sent.factors["matrix"].product()[client])
    other = bytearray(messages.encode_update(sent, schema))
    other[13] = 1  # the same as the vector
    raises(messages.BadMessage, "does not fit its kind", messages.decode_update, bytes(other), schema, 0)


SCHEMA = Schema((Tensor("items", (20, 2), True), Tensor("bias", (3,), False), Tensor("words", (70_000, 1), True)))
DENSE, ALL_ROWS, BITMAP, LIST = range(4)
ROUND = 7


def good():
    items = Rows(np.array([0, 2]), np.array([4, 11], np.int32), np.ones((2, 2), np.float32))
    words = Rows(np.array([0, 2]), np.array([0, 69_999], np.int32), np.ones((2, 1), np.float32))
    dense = {"bias": np.array([[1.0, 2.0, 3.0]], np.float32)}
    updates = ClientUpdates(ROUND, 1, {"items": items, "words": words}, dense, np.array([5]))
    return messages.encode_update(updates, SCHEMA)


def header(tensors, magic=b"VRM1", round_number=ROUND):
    return struct.pack("<4sIIB", magic, round_number, 0, tensors)


def table(number, coding, count, index, values):
    return struct.pack("<BBI", number, coding, count) + index + np.zeros(values, "<f4").tobytes()


def u16(*rows):
    return np.array(rows, "<u2").tobytes()


def u32(*rows):
    return np.array(rows, "<u4").tobytes()


def test_the_good_message_is_good_and_cut_at_any_byte_it_is_refused():
    assert set(messages.decode_update(good(), SCHEMA, ROUND).tables) == {"items", "words"}
    for length in range(len(good())):
        raises(BadMessage, "ends after", messages.decode_update, good()[:length], SCHEMA, ROUND)


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


def test_each_lie_is_named():
    for name, (content, problem) in BAD.items():
        with pytest.raises(BadMessage, match=problem):
            messages.decode_update(content, SCHEMA, ROUND)
            pytest.fail(name)


def test_values_have_to_be_finite():
    dense = header(1) + b"\1\0"
    row = header(1) + struct.pack("<BBI", 0, LIST, 1) + u16(3) + bytes(4)
    for head, tail in ((dense, bytes(8)), (row, b"")):
        messages.decode_update(head + np.array([1.0], "<f4").tobytes() + tail, SCHEMA, ROUND)
        for value in (np.nan, np.inf, -np.inf):
            with pytest.raises(BadMessage, match="not finite"):
                messages.decode_update(head + np.array([value], "<f4").tobytes() + tail, SCHEMA, ROUND)


def assert_sound_or_refused(content):
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
def test_random_bytes(content, behind_a_header):
    assert_sound_or_refused(header(2) + content if behind_a_header else content)


@settings(max_examples=600)
@given(st.lists(st.tuples(st.integers(0, len(good()) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes(changes):
    content = bytearray(good())
    for position, value in changes:
        content[position] = value
    assert_sound_or_refused(bytes(content))


def test_a_short_message_cannot_ask_for_much_memory():
    large = Schema((Tensor("words", (50_000_000, 8), True), Tensor("dense", (50_000_000,), False)))
    asking = [header(1) + table(0, coding, 50_000_000, b"", 0) for coding in (ALL_ROWS, BITMAP, LIST)]
    tracemalloc.start()
    try:
        for content in (*asking, header(1) + b"\1\0"):
            raises(BadMessage, None, messages.decode_update, content, large, ROUND)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


RELATIVE = {"float32": 0.0, "float16": 2.0**-11, "int8": 0.51 / 127, "int4": 0.51 / 7}  # of a row's largest


@given(
    st.sampled_from(CODINGS),
    st.integers(0, 5),
    st.integers(1, 9),
    st.integers(0, 99),
    st.sampled_from([1e-6, 1.0, 1e3]),
)
def test_the_other_side_reads_what_rounding_foretold(coding, rows, width, seed, size):
    given_values = size * np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    content = messages.encode_values(given_values, coding)
    assert len(content) == rows * messages.row_size(coding, width)
    read = messages.decode_values(memoryview(content), rows, width, coding)
    assert np.array_equal(read, messages.rounded_values(given_values, coding))
    largest = np.abs(given_values).max(axis=1, keepdims=True) if rows else np.zeros((0, 1))
    slack = 6e-8 if coding == "float16" else 0.0  # below it half precision has no more digits
    assert np.all(np.abs(read - given_values) <= (1.01 * RELATIVE[coding]) * largest + slack)


def test_half_way_between_two_steps_both_sides_round_alike():
    for coding, largest in (("int8", 127), ("int4", 7)):
        generator = np.random.default_rng(2)
        units = (generator.integers(128, 256, (400, 1)) / 256).astype(np.float32)  # exact as a scale
        halves = (generator.integers(-largest, largest, (400, 32)) + 0.5) * units
        near = np.nextafter(halves.astype(np.float32), np.float32(np.inf) * generator.choice([-1, 1], (400, 32)))
        through(np.hstack((largest * units, near)).astype(np.float32), coding)


@pytest.mark.parametrize("coding", CODINGS)
def test_a_coded_message_goes_through_and_is_as_long_as_foretold(coding):
    generator = np.random.default_rng(1)
    tensors = Tensor("items", (40, 5), True), Tensor("layer", (3, 4), False), Tensor("bias", (4,), False)
    schema, values = Schema(tensors).coded(coding), generator.standard_normal((3, 5)).astype(np.float32)
    rows = Rows(np.array([0, 3, 3]), np.array([1, 7, 30], np.int32), values)
    dense = {t.name: generator.standard_normal((2, *t.shape)).astype(np.float32) for t in schema.dense}
    sent = ClientUpdates(4, 2, {"items": rows}, dense)
    expected = messages.rounded_update(sent, schema)
    for client, size in enumerate(messages.sizes(sent, schema)):
        content = messages.encode_update(sent, schema, client)
        assert len(content) == size
        got = messages.decode_update(content, schema, 4)
        came = got.tables["items"]
        assert np.array_equal(came.values, expected.tables["items"].values[: len(came.index)])
        for name in dense:
            assert np.array_equal(got.dense[name][0], expected.dense[name][client])


def through(rows, coding):
    """Rows as the other side reads them, which has to be what rounding foretells."""
    read = messages.decode_values(memoryview(messages.encode_values(rows, coding)), *rows.shape, coding)
    np.testing.assert_array_equal(read, messages.rounded_values(rows, coding))
    return read


def test_zeros_tiny_large_and_infinite_values():
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


def test_another_coding_than_the_schemas_and_an_infinite_scale_are_refused():
    schema = Schema((Tensor("bias", (4,), False),))
    sent = ClientUpdates(0, 1, {}, {"bias": np.ones((1, 4), np.float32)})
    with pytest.raises(BadMessage, match="does not fit"):
        messages.decode_update(messages.encode_update(sent, schema.coded("float16")), schema, 0)
    content = bytearray(messages.encode_update(sent, schema.coded("int8")))
    content[-6:-4] = b"\x80\x7f"  # infinity
    raises(BadMessage, "not finite", messages.decode_update, bytes(content), schema.coded("int8"), 0)


REPORT = messages.encode_report(np.array([True, False, True]), 4)


@given(st.lists(st.booleans(), min_size=1, max_size=70), st.integers(0, 2**32 - 1))
def test_a_report_comes_back(flags, round_number):
    content = messages.encode_report(np.array(flags), round_number)
    assert len(content) == messages.size(len(flags)) == 12 + -(-len(flags) // 8)
    assert messages.decode_report(content, len(flags), round_number).tolist() == flags


def test_odd_reports_are_refused():
    for content, problem in (
        (REPORT[:-1], "has 12 bytes"),
        (REPORT + b"\0", "has 14 bytes"),
        (b"VRM1" + REPORT[4:], "does not start"),
        (messages.encode_report(np.array([True, False, True]), 5), "for round 5"),
        (messages.encode_report(np.array([True] * 5), 4), "on 5 items"),
        (REPORT[:-1] + b"\xff", "do not exist"),
    ):
        raises(BadMessage, problem, messages.decode_report, content, 3, 4)


@given(st.binary(max_size=20))
def test_any_bytes_are_a_report_or_refused(content):
    with suppress(BadMessage):
        assert messages.decode_report(content, 3, 4).shape == (3,)


def test_a_gain_comes_back_and_odd_ones_are_refused():
    for gain in (0.0, 0.1, -0.1, 5e-324, 1.0 / 3.0):
        assert len(messages.encode_gain(gain)) == messages.SIZE == 8
        assert messages.decode_gain(messages.encode_gain(gain)) == gain
    assert messages.encode_gain(-0.0) == messages.encode_gain(0.0)
    for content in (b"", bytes(7), bytes(9)):
        raises(BadMessage, "bytes", messages.decode_gain, content)
    for odd in (math.nan, math.inf, -math.inf):
        raises(NotFinite, None, messages.decode_gain, struct.pack("<d", odd))


PARTS = Schema(
    (
        Tensor("known", (2,), by_row=False, learnt=False),
        Tensor("first", (3,), by_row=False),
        Tensor("second", (2,), by_row=False),
    )
)
MODEL = whole_model(PARTS, {tensor.name: np.ones(tensor.shape, np.float32) for tensor in PARTS.tensors}, 4)


def test_a_round_about_some_tensors_comes_back():
    for tensors in (None, ("first",), ("first", "second")):
        spec = RoundSpec(4, clip_norm=0.5, tensors=tensors)
        sent = rounds.encode(spec, MODEL, PARTS)
        back, _ = rounds.decode(sent, PARTS, 4)
        assert (back.tensors, back.clip_norm, back.number) == (tensors, 0.5, 4)
        assert [tensor.name for tensor in back.view(PARTS).tensors] == list(tensors or ("first", "second"))
        assert rounds.size(spec, PARTS) < len(sent)


def test_rounds_about_impossible_tensors_and_rounds_that_end_early_are_refused():
    sent = rounds.encode(RoundSpec(4, tensors=("first",)), MODEL, PARTS)
    odd = [sent[:5] + bytes([len(n), *n]) + sent[7:] for n in ((), (0,), (2, 1), (1, 1), (3,), (0, 1))]
    for content in (*odd, *(sent[:length] for length in range(5, 8))):
        raises(BadMessage, None, rounds.decode, content, PARTS, 4)
