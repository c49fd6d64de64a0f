"""Messages as bytes, and bytes as messages that have been checked.

Layout, little-endian: magic `VRM1`, round u32, example count u32 (0 = not sent), number of tensors u8; then
for each tensor its number in the schema u8, a coding u8, and its content:
- dense: the values;
- rows of a table, or single entries of any tensor (a table of one column): how many u32, the index, the
  values. The index is the cheapest of: nothing (all of them), a bitmap, a list of u16 or u32;
- factors of a table or of a matrix: the rank u32, the left factor, the scales, the right factor.
The lower half of the coding byte says which of these it is, the upper half how the values are written (see
`veilrec.wire.messages`); both sides know the latter from the schema.

Numbers as bytes: single or half precision, or small integers with one scale per row.

A row of integers is `scale * q` with q from -127 to 127 (int8) or -7 to 7 (int4, two in a byte). The scale is the
upper half of a float32, rounded up, so that no q overflows.

The report of DP-SUB on the wire: one bit per item, in a message of its own.

Layout, little-endian: magic `VRB1`, round u32, number of items u32, the bits, filled up with zeros to whole bytes.

What a validation client sends after the last round: its clipped gain by the trained model, and nothing else.

Layout: one f64, little-endian. There is no header: a validation client is asked once, and only
the number is charged for.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from veilrec.core.arrays import Bools, Bytes, Floats, Indices, Offsets
from veilrec.core.errors import VeilrecError, counted
from veilrec.core.schema import ClientUpdates, Factors, Rows, Schema, Tensor, ValueCoding

CODINGS: tuple[ValueCoding, ...] = ("float32", "float16", "int8", "int4")  # their numbers on the wire
_SCALE = 2  # bytes
_LARGEST = {"int8": 127, "int4": 7}
_MAX_HALF = np.float32(65504.0)


def row_size(coding: ValueCoding, width: int) -> int:
    """Bytes of one row."""
    if coding == "float32":
        return 4 * width
    if coding == "float16":
        return 2 * width
    return _SCALE + (width if coding == "int8" else (width + 1) // 2)


def rounded_values(values: Floats, coding: ValueCoding) -> Floats:
    """The rows `[..., width]` as the other side will read them; values that are not finite stay so."""
    if coding == "float32":
        return values
    if coding == "float16":
        return _to_half(values).astype(np.float32)
    rows = np.ascontiguousarray(values, dtype=np.float32).reshape(-1, values.shape[-1])
    if not rows.size:
        return rows.reshape(values.shape)
    units = _from_half_word(_scales(rows, _LARGEST[coding]))
    steps = _steps(rows, units)
    with np.errstate(over="ignore", invalid="ignore"):
        steps *= units[:, np.newaxis]
    return steps.reshape(values.shape)


def encode_values(values: Floats, coding: ValueCoding) -> bytes:
    """The rows `[rows, width]`, one after another; the scales of all rows come first."""
    if coding == "float32":
        return np.ascontiguousarray(values, dtype="<f4").tobytes()
    if coding == "float16":
        return _to_half(values).astype("<f2").tobytes()
    if not values.size:
        return b""
    scales = _scales(values, _LARGEST[coding])
    with np.errstate(invalid="ignore"):  # a row that is not finite has a scale that is not: it is refused when read
        steps = _steps(values, _from_half_word(scales)).astype(np.int8)
    packed = steps.tobytes() if coding == "int8" else _pack_nibbles(steps)
    return scales.astype("<u2").tobytes() + packed


def decode_values(content: memoryview, rows: int, width: int, coding: ValueCoding) -> Floats:
    """Decode what `encode_values` wrote; `content` has exactly `rows * row_size` bytes."""
    if coding == "float32":
        return np.frombuffer(content, "<f4").astype(np.float32).reshape(rows, width)
    if coding == "float16":
        return np.frombuffer(content, "<f2").astype(np.float32).reshape(rows, width)
    scales = np.frombuffer(content[: _SCALE * rows], "<u2").astype(np.uint16)
    packed = np.frombuffer(content[_SCALE * rows :], np.uint8)
    steps = packed.view(np.int8).reshape(rows, width) if coding == "int8" else _nibbles(packed, rows, width)
    with np.errstate(invalid="ignore"):  # a synthetic scale may be infinite: the caller checks for that
        return steps.astype(np.float32) * _from_half_word(scales)[:, np.newaxis]


def _to_half(values: Floats) -> NDArray[np.float16]:
    return np.clip(values, -_MAX_HALF, _MAX_HALF).astype(np.float16)


def _scales(values: Floats, largest: int) -> NDArray[np.uint16]:
    exact = (np.abs(values).max(axis=-1) / np.float32(largest)).astype(np.float32)
    upper: NDArray[np.uint32] = (exact.view(np.uint32) + np.uint32(0xFFFF)) >> np.uint32(16)
    return upper.astype(np.uint16)


def _from_half_word(scales: NDArray[np.uint16]) -> Floats:
    return (scales.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _steps(rows: Floats, units: Floats) -> Floats:
    """Quantise rows to units: by the inverse, in a simulation and in a message alike.

    A unit that is 0, or so small that it has no inverse, makes a row of zeros.
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.float32(1.0) / units
        steps: Floats = rows * inverse[:, np.newaxis]
    np.rint(steps, out=steps)
    steps[np.isinf(inverse)] = 0.0
    return steps


def _pack_nibbles(steps: NDArray[np.int8]) -> bytes:
    nibbles = (steps + np.int8(8)).view(np.uint8)
    if nibbles.shape[1] % 2:
        nibbles = np.pad(nibbles, ((0, 0), (0, 1)), constant_values=8)
    return (nibbles[:, ::2] << 4 | nibbles[:, 1::2]).tobytes()


def _nibbles(packed: Bytes, rows: int, width: int) -> NDArray[np.int8]:
    both = np.stack((packed >> 4, packed & 15), axis=-1).reshape(rows, 2 * ((width + 1) // 2))[:, :width]
    return both.astype(np.int8) - np.int8(8)


_HEADER = struct.Struct("<4sIIB")
_TENSOR = struct.Struct("<BB")
_COUNT = struct.Struct("<I")
_MAGIC = b"VRM1"
_DENSE, _ALL_ROWS, _BITMAP, _LIST, _ALL_ENTRIES, _ENTRY_BITMAP, _ENTRY_LIST, _FACTORS = range(8)
_FOR_TABLES = range(_ALL_ROWS, _FACTORS + 1)
_FOR_DENSE = (_DENSE, _ALL_ENTRIES, _ENTRY_BITMAP, _ENTRY_LIST)
_FOR_MATRICES = (*_FOR_DENSE, _FACTORS)
_ENTRIES = _ALL_ENTRIES - _ALL_ROWS  # from the coding of rows to that of entries
_MAX_U16 = 1 << 16


class BadMessage(VeilrecError):
    """Bytes that are not a message of this round's schema; nothing of them may reach the model."""


class WrongRound(BadMessage):
    """A message for another round than the one that is open."""


class NotFinite(BadMessage):
    """A message with a value that is not a finite number."""


class OtherDigest(BadMessage):
    """A message that is rightly signed by its client, for something else than what the others acted on."""


DeclineReason = Literal["not finite", "beyond the bound", "another digest", "another plan"]
DECLINE_REASONS: tuple[DeclineReason, ...] = get_args(DeclineReason)


class Declined(BadMessage):
    """Why a client takes no part, before it has looked at any data: it says so, and names one of few reasons."""

    def __init__(self, reason: DeclineReason, words: str) -> None:
        self.reason: DeclineReason = reason
        super().__init__(f"{words}: nothing is learnt from it")


def flat(tensor: Tensor) -> Tensor:
    """A tensor as a table of one column."""
    return Tensor(tensor.name, (tensor.size, 1), by_row=True, values=tensor.values)


def _width(tensor: Tensor) -> int:
    return tensor.size // tensor.shape[0]


def _block(tensor: Tensor) -> tuple[int, int]:
    """A dense tensor as rows and columns: what shares a scale where values have one."""
    return (1, tensor.size) if len(tensor.shape) < 2 else (tensor.shape[0], _width(tensor))


def _values_size(tensor: Tensor, rows: int, width: int) -> int:
    return rows * row_size(tensor.values, width)


def _entry_sizes(tensor: Tensor, counts: Offsets) -> Offsets:
    """Single entries are one row of values: they share a scale."""
    sizes = [_values_size(tensor, 1, count) if count else 0 for count in counts.tolist()]
    return np.array(sizes, np.int64)


def _list_type(tensor: Tensor) -> np.dtype[np.unsignedinteger]:
    return np.dtype("<u2") if tensor.shape[0] <= _MAX_U16 else np.dtype("<u4")


def _row_sizes(offsets: Offsets, height: int, number_size: int, row_size: int) -> Offsets:
    """Every client's rows and the cheapest index of them."""
    rows = np.diff(offsets)
    index = np.minimum(rows * number_size, (height + 7) // 8)
    index[rows == height] = 0
    return np.asarray(index + rows * row_size)


def sizes(updates: ClientUpdates, schema: Schema, *, all_rows: bool = False) -> Offsets:
    """The encoded length of every client's message, without encoding it.

    `all_rows`: as if every row of every table were in it, because noise will fill them.
    """
    total = np.zeros(updates.count, np.int64)
    same = _HEADER.size  # in every message
    for name, part in updates.tables.items():
        tensor = schema[name]
        height, row = tensor.shape[0], row_size(tensor.values, _width(tensor))
        same += _TENSOR.size + _COUNT.size
        if all_rows:
            same += height * row
        else:
            total += _row_sizes(part.offsets, height, _list_type(tensor).itemsize, row)
    for name, part in updates.entries.items():
        tensor = flat(schema[name])
        same += _TENSOR.size + _COUNT.size
        total += _row_sizes(part.offsets, tensor.shape[0], _list_type(tensor).itemsize, 0)
        total += _entry_sizes(tensor, np.diff(part.offsets))
    for name, factors in updates.factors.items():
        rank = factors.scales.shape[1]
        numbers = sum(_values_size(schema[name], *shape) for shape in _factor_shapes(schema[name], rank))
        same += _TENSOR.size + _COUNT.size + numbers
    for name in updates.dense:
        same += _TENSOR.size + _values_size(schema[name], *_block(schema[name]))
    total += same
    return total


def parameters(updates: ClientUpdates, schema: Schema, *, all_rows: bool = False) -> int:
    """Count the model parameters in all messages; `all_rows`: as if every row of every table were in them."""
    if all_rows:
        total = sum(updates.count * schema[name].size for name in updates.tables)
    else:
        total = sum(len(part.index) * _width(schema[name]) for name, part in updates.tables.items())
    total += sum(len(part.index) for part in updates.entries.values())
    total += sum(f.left.size + f.scales.size + f.right.size for f in updates.factors.values())
    return total + sum(updates.count * schema[name].size for name in updates.dense)


def rounded_update(updates: ClientUpdates, schema: Schema) -> ClientUpdates:
    """The messages as the other side will read them, where their values are written with fewer digits."""
    if all(tensor.values == "float32" for tensor in schema.tensors):
        return updates
    tables = {
        name: Rows(part.offsets, part.index, rounded_values(part.values, schema[name].values))
        for name, part in updates.tables.items()
    }
    dense = {}
    for name, values in updates.dense.items():
        blocks = values.reshape(updates.count, *_block(schema[name]))
        dense[name] = rounded_values(blocks, schema[name].values).reshape(values.shape)
    if updates.entries or updates.factors:
        raise ValueError("entries and factors are sent in float32 only")
    return replace(updates, tables=tables, dense=dense)


def encode_update(updates: ClientUpdates, schema: Schema, client: int = 0) -> bytes:
    """The message of one of the clients."""
    examples = 0 if updates.examples is None else int(updates.examples[client])
    carried = sum(len(m) for m in (updates.tables, updates.dense, updates.entries, updates.factors))
    parts = [_HEADER.pack(_MAGIC, updates.round_number, examples, carried)]
    for number, tensor in enumerate(schema.tensors):
        if tensor.name in updates.tables:
            parts += _encode_rows(number, tensor, updates.tables[tensor.name], client, 0)
        elif tensor.name in updates.entries:
            parts += _encode_rows(number, flat(tensor), updates.entries[tensor.name], client, _ENTRIES)
        elif tensor.name in updates.factors:
            parts += _encode_factors(number, tensor, updates.factors[tensor.name], client)
        elif tensor.name in updates.dense:
            values = updates.dense[tensor.name][client].reshape(_block(tensor))
            parts += [_TENSOR.pack(number, _DENSE | _nibble(tensor)), encode_values(values, tensor.values)]
    return b"".join(parts)


def _nibble(tensor: Tensor) -> int:
    return CODINGS.index(tensor.values) << 4


def _encode_rows(number: int, tensor: Tensor, rows: Rows, client: int, kind: int) -> list[bytes]:
    start, end = rows.offsets[client], rows.offsets[client + 1]
    order = np.argsort(rows.index[start:end])
    index, values = rows.index[start:end][order], rows.values[start:end][order]
    height = tensor.shape[0]
    if len(index) == height:
        coding, encoded = _ALL_ROWS, b""
    elif (height + 7) // 8 < len(index) * _list_type(tensor).itemsize:
        present = np.zeros(height, np.bool_)
        present[index] = True
        coding, encoded = _BITMAP, np.packbits(present).tobytes()
    else:
        coding, encoded = _LIST, index.astype(_list_type(tensor)).tobytes()
    body = encode_values(values.reshape(1, -1) if kind else values, tensor.values)
    head = _TENSOR.pack(number, coding + kind | _nibble(tensor))
    return [head, _COUNT.pack(len(index)), encoded, body]


def _factor_shapes(tensor: Tensor, rank: int) -> tuple[tuple[int, int], ...]:
    height, width = tensor.shape
    return (height, rank), (1, rank), (rank, width)


def _encode_factors(number: int, tensor: Tensor, factors: Factors, client: int) -> list[bytes]:
    rank = factors.scales.shape[1]
    parts = (factors.left[client], factors.scales[client : client + 1], factors.right[client])
    head = [_TENSOR.pack(number, _FACTORS | _nibble(tensor)), _COUNT.pack(rank)]
    return head + [encode_values(part, tensor.values) for part in parts]


class BytesReader:
    """A position in the bytes of a message that never runs past their end."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.position = 0

    def expect(self, length: int) -> None:
        """Refuse a message that has fewer bytes left."""
        if self.position + length > len(self.content):
            raise BadMessage(f"the message ends after {len(self.content)} bytes, before its announced end")

    def take(self, length: int) -> memoryview:
        """Take the next bytes."""
        self.expect(length)
        self.position += length
        return memoryview(self.content)[self.position - length : self.position]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Take the next fields."""
        return layout.unpack(self.take(layout.size))

    def values(self, tensor: Tensor, rows: int, width: int) -> Floats:
        """Take the next rows of a tensor, which have to be finite."""
        content = self.take(_values_size(tensor, rows, width))
        return _finite(decode_values(content, rows, width, tensor.values), tensor)


def decode_update(content: bytes, schema: Schema, round_number: int) -> ClientUpdates:
    """Check a message against the round and the schema, and unpack it; anything odd raises `BadMessage`."""
    reader = BytesReader(content)
    magic, sent_round, examples, tensors = reader.unpack(_HEADER)
    if magic != _MAGIC:
        raise BadMessage("the message does not start as a veilrec message does")
    if sent_round != round_number:
        raise WrongRound(f"the message is for round {sent_round}, expected round {round_number}")
    tables: dict[str, Rows] = {}
    entries: dict[str, Rows] = {}
    factors: dict[str, Factors] = {}
    dense = {}
    last = -1
    for _ in range(tensors):
        number, coding = reader.unpack(_TENSOR)
        if not last < number < len(schema.tensors):
            raise BadMessage(f"tensor number {number} is out of place among {len(schema.tensors)} tensors")
        last = number
        tensor = schema.tensors[number]
        kind = coding ^ _nibble(tensor)
        if kind not in _kinds(tensor):
            raise BadMessage(f"tensor {tensor.name} has coding {coding}, which does not fit its kind")
        if kind == _FACTORS:
            factors[tensor.name] = _decode_factors(reader, tensor)
        elif kind >= _ALL_ENTRIES:
            entries[tensor.name] = _decode_rows(reader, flat(tensor), kind - _ENTRIES, entries=True)
        elif tensor.by_row:
            tables[tensor.name] = _decode_rows(reader, tensor, kind, entries=False)
        else:
            dense[tensor.name] = reader.values(tensor, *_block(tensor)).reshape(1, *tensor.shape)
    if reader.position != len(content):
        raise BadMessage(f"the message goes on for {counted(len(content) - reader.position, 'byte')} after its end")
    told = np.array([examples]) if examples else None
    return ClientUpdates(round_number, 1, tables, dense, told, entries, factors)


def _kinds(tensor: Tensor) -> Sequence[int]:
    """The contents that a message may have of a tensor."""
    if tensor.by_row:
        return _FOR_TABLES
    return _FOR_MATRICES if len(tensor.shape) == 2 else _FOR_DENSE


def _decode_rows(reader: BytesReader, tensor: Tensor, coding: int, *, entries: bool) -> Rows:
    (count,) = reader.unpack(_COUNT)
    height, width = tensor.shape[0], _width(tensor)
    if count > height:
        raise BadMessage(f"{count} rows announced for {tensor.name}, which has {height}")
    shape = (min(count, 1), count) if entries else (count, width)
    reader.expect(_values_size(tensor, *shape))  # before anything as long as the announced count is made
    index = _decode_index(reader, tensor, coding, count)
    return Rows(np.array([0, count]), index, reader.values(tensor, *shape).reshape(count, width))


def _decode_factors(reader: BytesReader, tensor: Tensor) -> Factors:
    (rank,) = reader.unpack(_COUNT)
    if not 1 <= rank <= min(tensor.shape):
        raise BadMessage(f"rank {rank} announced for {tensor.name}, which has shape {tensor.shape}")
    left, scales, right = (reader.values(tensor, *shape) for shape in _factor_shapes(tensor, rank))
    return Factors(left[np.newaxis], scales, right[np.newaxis])


def _decode_index(reader: BytesReader, tensor: Tensor, coding: int, count: int) -> Indices:
    height = tensor.shape[0]
    if coding == _ALL_ROWS:
        index = np.arange(count, dtype=np.int32)
        marked = height
    elif coding == _BITMAP:
        bits = np.unpackbits(np.frombuffer(reader.take((height + 7) // 8), np.uint8))
        if bits[height:].any():
            raise BadMessage(f"the bitmap of {tensor.name} marks rows that do not exist")
        index = np.flatnonzero(bits).astype(np.int32)
        marked = len(index)
    else:
        kind = _list_type(tensor)
        listed = np.frombuffer(reader.take(count * kind.itemsize), kind)
        if count and (listed[-1] >= height or np.any(listed[1:] <= listed[:-1])):
            raise BadMessage(f"the row numbers of {tensor.name} must increase and stay below {height}")
        index = listed.astype(np.int32)  # only now: a number above 2^31 would have become a negative one
        marked = count
    if marked != count:
        raise BadMessage(f"{count} rows announced for {tensor.name}, {marked} marked")
    return index


def _finite(values: Floats, tensor: Tensor) -> Floats:
    if not np.isfinite(values).all():
        raise NotFinite(f"tensor {tensor.name} carries a value that is not finite")
    return values


_BITS_HEADER = struct.Struct("<4sII")
_BITS_MAGIC = b"VRB1"


def size(n_items: int) -> int:
    """The length of a report in bytes."""
    return _BITS_HEADER.size + (n_items + 7) // 8


def encode_report(bits: Bools, round_number: int) -> bytes:
    """The report of one client."""
    return _BITS_HEADER.pack(_BITS_MAGIC, round_number, len(bits)) + np.packbits(bits).tobytes()


def decode_report(content: bytes, n_items: int, round_number: int) -> Bools:
    """Check a report and unpack it; anything odd raises `BadMessage`."""
    if len(content) != size(n_items):
        raise BadMessage(f"the report has {len(content)} bytes: one on {n_items} items has {size(n_items)}")
    magic, sent_round, announced = _BITS_HEADER.unpack(content[: _BITS_HEADER.size])
    if magic != _BITS_MAGIC:
        raise BadMessage("the report does not start as a veilrec report does")
    if sent_round != round_number:
        raise WrongRound(f"the report is for round {sent_round}, expected round {round_number}")
    if announced != n_items:
        raise BadMessage(f"the report is on {announced} items, expected {n_items}")
    bits = np.unpackbits(np.frombuffer(content[_BITS_HEADER.size :], np.uint8))
    if bits[n_items:].any():
        raise BadMessage("the report marks items that do not exist")
    return bits[:n_items].astype(np.bool_)


_GAIN = struct.Struct("<d")
SIZE = _GAIN.size  # bytes


def encode_gain(gain: float) -> bytes:
    """The message of one validation client; zero has one form only."""
    return _GAIN.pack(gain + 0.0)


def decode_gain(content: bytes) -> float:
    """Check a message and unpack it; anything odd raises `BadMessage`."""
    if len(content) != SIZE:
        raise BadMessage(f"the message of a validation client has {len(content)} bytes: one number has {SIZE}")
    gain: float = _GAIN.unpack(content)[0]
    if not math.isfinite(gain):
        raise NotFinite("the message of a validation client is no finite number")
    return gain
