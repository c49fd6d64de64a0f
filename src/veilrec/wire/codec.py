"""Messages as bytes, and bytes as messages that have been checked.

Layout, little-endian: magic `VRM1`, round u32, example count u32 (0 = not sent), number of tensors u8; then
for each tensor its number in the schema u8 and its index coding u8, for a table the number of rows u32 and
the index, and the float32 values. The index of a table is the cheapest of: nothing (all rows), a bitmap, a
list of u16 or u32.
"""

from __future__ import annotations

import struct

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec.errors import VeilrecError
from veilrec.wire.messages import Rows, Schema, Tensor, Uploads

_HEADER = struct.Struct("<4sIIB")
_TENSOR = struct.Struct("<BB")
_COUNT = struct.Struct("<I")
_MAGIC = b"VRM1"
_DENSE, _ALL_ROWS, _BITMAP, _LIST = range(4)
_FLOAT = 4
_MOST_U16 = 1 << 16


class BadMessage(VeilrecError):
    """Bytes that are not a message of this round's schema; nothing of them may reach the model."""


def _list_type(tensor: Tensor) -> np.dtype[np.unsignedinteger]:
    return np.dtype("<u2") if tensor.shape[0] <= _MOST_U16 else np.dtype("<u4")


def _index_sizes(tensor: Tensor, rows: Offsets) -> Offsets:
    """Bytes of the cheapest index for each number of rows."""
    as_list = rows * _list_type(tensor).itemsize
    bitmap = (tensor.shape[0] + 7) // 8
    return np.where(rows == tensor.shape[0], 0, np.minimum(as_list, bitmap))


def sizes(uploads: Uploads, schema: Schema) -> Offsets:
    """The encoded length of every device's message, without encoding it."""
    total = np.full(uploads.count, _HEADER.size, np.int64)
    for name, part in uploads.tables.items():
        tensor = schema[name]
        rows = np.diff(part.offsets)
        width = tensor.size // tensor.shape[0]
        total += _TENSOR.size + _COUNT.size + _index_sizes(tensor, rows) + rows * width * _FLOAT
    for name in uploads.dense:
        total += _TENSOR.size + schema[name].size * _FLOAT
    return total


def parameters(uploads: Uploads, schema: Schema) -> int:
    """How many model parameters all the messages carry."""
    total = 0
    for name, part in uploads.tables.items():
        total += len(part.index) * (schema[name].size // schema[name].shape[0])
    return total + sum(uploads.count * schema[name].size for name in uploads.dense)


def encode(uploads: Uploads, schema: Schema, device: int = 0) -> bytes:
    """The message of one of the devices."""
    examples = 0 if uploads.examples is None else int(uploads.examples[device])
    parts = [_HEADER.pack(_MAGIC, uploads.round_number, examples, len(uploads.tables) + len(uploads.dense))]
    for number, tensor in enumerate(schema.tensors):
        if tensor.name in uploads.tables:
            parts += _encode_rows(number, tensor, uploads.tables[tensor.name], device)
        elif tensor.name in uploads.dense:
            values = np.ascontiguousarray(uploads.dense[tensor.name][device], dtype="<f4")
            parts += [_TENSOR.pack(number, _DENSE), values.tobytes()]
    return b"".join(parts)


def _encode_rows(number: int, tensor: Tensor, rows: Rows, device: int) -> list[bytes]:
    start, end = rows.offsets[device], rows.offsets[device + 1]
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
    body = np.ascontiguousarray(values, dtype="<f4").tobytes()
    return [_TENSOR.pack(number, coding), _COUNT.pack(len(index)), encoded, body]


class _Reader:
    """A position in the bytes of a message that never runs past their end."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.position = 0

    def expect(self, length: int) -> None:
        if self.position + length > len(self.content):
            raise BadMessage(f"the message ends after {len(self.content)} bytes, before its announced end")

    def take(self, length: int) -> memoryview:
        self.expect(length)
        self.position += length
        return memoryview(self.content)[self.position - length : self.position]


def decode(content: bytes, schema: Schema, round_number: int) -> Uploads:
    """Check a message against the round and the schema, and unpack it; anything odd raises `BadMessage`."""
    reader = _Reader(content)
    magic, sent_round, examples, tensors = _HEADER.unpack(reader.take(_HEADER.size))
    if magic != _MAGIC:
        raise BadMessage("the message does not start as a veilrec message does")
    if sent_round != round_number:
        raise BadMessage(f"the message is for round {sent_round}, expected round {round_number}")
    tables: dict[str, Rows] = {}
    dense = {}
    last = -1
    for _ in range(tensors):
        number, coding = _TENSOR.unpack(reader.take(_TENSOR.size))
        if not last < number < len(schema.tensors):
            raise BadMessage(f"tensor number {number} is out of place among {len(schema.tensors)} tensors")
        last = number
        tensor = schema.tensors[number]
        if tensor.by_row != (coding != _DENSE):
            raise BadMessage(f"tensor {tensor.name} has index coding {coding}, which does not fit its kind")
        if tensor.by_row:
            tables[tensor.name] = _decode_rows(reader, tensor, coding)
        else:
            values = np.frombuffer(reader.take(tensor.size * _FLOAT), "<f4").astype(np.float32)
            dense[tensor.name] = _finite(values, tensor).reshape(1, *tensor.shape)
    if reader.position != len(content):
        raise BadMessage(f"{len(content) - reader.position} bytes follow the end of the message")
    return Uploads(round_number, 1, tables, dense, np.array([examples]) if examples else None)


def _decode_rows(reader: _Reader, tensor: Tensor, coding: int) -> Rows:
    (count,) = _COUNT.unpack(reader.take(_COUNT.size))
    height = tensor.shape[0]
    if count > height:
        raise BadMessage(f"{count} rows announced for {tensor.name}, which has {height}")
    width = tensor.size // height
    reader.expect(count * width * _FLOAT)  # before anything as long as the announced count is made
    index = _decode_index(reader, tensor, coding, count)
    values = np.frombuffer(reader.take(count * width * _FLOAT), "<f4").astype(np.float32)
    return Rows(np.array([0, count]), index, _finite(values, tensor).reshape(count, width))


def _decode_index(reader: _Reader, tensor: Tensor, coding: int, count: int) -> Indices:
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
    elif coding == _LIST:
        kind = _list_type(tensor)
        listed = np.frombuffer(reader.take(count * kind.itemsize), kind)
        if count and (listed[-1] >= height or np.any(listed[1:] <= listed[:-1])):
            raise BadMessage(f"the row numbers of {tensor.name} must increase and stay below {height}")
        index = listed.astype(np.int32)  # only now: a number above 2^31 would have become a negative one
        marked = count
    else:
        raise BadMessage(f"unknown index coding {coding} for {tensor.name}")
    if marked != count:
        raise BadMessage(f"{count} rows announced for {tensor.name}, {marked} marked")
    return index


def _finite(values: Floats, tensor: Tensor) -> Floats:
    if not np.isfinite(values).all():
        raise BadMessage(f"tensor {tensor.name} carries a value that is not finite")
    return values
