"""A round on its way to the clients: what it is about, and the model.

Layout, little-endian: magic `VRR1`, flags u8, then what the flags announce, in this order: the public seed u64, the
shares (how many u8; each the number of its tensor u8 and the share f64), the rank u32, the clip norm f64, the coding
u8, the tensors (how many u8; the number of each u8, ascending); then the model, as in `veilrec.wire.messages`.
The rows of the round are those of the model.
"""

from __future__ import annotations

import math
import struct

import numpy as np

from veilrec.core.arrays import Indices
from veilrec.core.schema import ClientUpdates, RoundSpec, Schema
from veilrec.wire import messages
from veilrec.wire.messages import CODINGS, BadMessage, BytesReader

_HEAD = struct.Struct("<4sB")
_MAGIC = b"VRR1"
_SEED, _SHARES, _RANK, _CLIP, _CODING, _TENSORS = (1 << bit for bit in range(6))
_U64, _F64, _U32, _U8, _SHARE = (struct.Struct(f"<{kind}") for kind in ("Q", "d", "I", "B", "Bd"))


def encode(spec: RoundSpec, model: ClientUpdates, schema: Schema) -> bytes:
    """Encode a round spec and its model for the clients."""
    return _encode_about(spec, schema) + messages.encode_update(model, schema)


def is_planned(spec: RoundSpec, planned: RoundSpec, schema: Schema) -> bool:
    """Whether a round that came asks for what the plan says, in everything but its rows."""
    return _encode_about(spec, schema) == _encode_about(planned, schema)


def size(spec: RoundSpec, schema: Schema) -> int:
    """Size of the encoded spec in bytes, without the model."""
    return len(_encode_about(spec, schema))


def _encode_about(spec: RoundSpec, schema: Schema) -> bytes:
    flags, parts = 0, []
    if spec.shares or spec.rank is not None:
        flags |= _SEED
        parts.append(_U64.pack(spec.public_seed))
    if spec.shares:
        flags |= _SHARES
        numbers = {tensor.name: number for number, tensor in enumerate(schema.tensors)}
        parts.append(_U8.pack(len(spec.shares)))
        parts += [_SHARE.pack(numbers[name], share) for name, share in spec.shares.items()]
    if spec.rank is not None:
        flags |= _RANK
        parts.append(_U32.pack(spec.rank))
    if spec.clip_norm is not None:
        flags |= _CLIP
        parts.append(_F64.pack(spec.clip_norm))
    if spec.coding is not None:
        flags |= _CODING
        parts.append(_U8.pack(CODINGS.index(spec.coding)))
    if spec.tensors is not None:
        flags |= _TENSORS
        chosen = [number for number, tensor in enumerate(schema.tensors) if tensor.name in spec.tensors]
        parts += [_U8.pack(number) for number in (len(chosen), *chosen)]
    return b"".join([_HEAD.pack(_MAGIC, flags), *parts])


def decode(content: bytes, schema: Schema, round_number: int) -> tuple[RoundSpec, ClientUpdates]:
    """Check a round and its model, and unpack them; anything odd raises `BadMessage`."""
    reader = BytesReader(content)
    magic, flags = reader.unpack(_HEAD)
    if magic != _MAGIC or flags >= _TENSORS << 1:
        raise BadMessage("the message does not start as a veilrec round does")
    seed = reader.unpack(_U64)[0] if flags & _SEED else 0
    shares = {}
    for _ in range(reader.unpack(_U8)[0] if flags & _SHARES else 0):
        number, share = reader.unpack(_SHARE)
        if number >= len(schema.tensors) or schema.tensors[number].by_row or not 0.0 < share <= 1.0:
            raise BadMessage(f"the round is about a share {share} of tensor {number}: neither is possible")
        shares[schema.tensors[number].name] = share
    rank = reader.unpack(_U32)[0] if flags & _RANK else None
    if rank is not None and not 1 <= rank <= min(min(table.shape) for table in schema.tables):
        raise BadMessage(f"the round is about {rank} directions, which no table has")
    clip_norm = reader.unpack(_F64)[0] if flags & _CLIP else None
    if clip_norm is not None and not 0.0 < clip_norm < math.inf:
        raise BadMessage(f"the round has clip norm {clip_norm}: it is a number above 0")
    coding = reader.unpack(_U8)[0] if flags & _CODING else None
    if coding is not None and coding >= len(CODINGS):
        raise BadMessage(f"the round asks for coding {coding}, which does not exist")
    tensors = _read_tensors(reader, schema) if flags & _TENSORS else None
    model = messages.decode_update(content[reader.position :], schema, round_number)
    spec = RoundSpec(
        round_number,
        sent_rows(model, schema),
        seed,
        shares,
        rank,
        clip_norm,
        None if coding is None else CODINGS[coding],
        tensors,
    )
    return spec, model


def _read_tensors(reader: BytesReader, schema: Schema) -> tuple[str, ...]:
    """The names of the tensors that answers are about: of those that are learnt, at least one, each once."""
    numbers = [reader.unpack(_U8)[0] for _ in range(reader.unpack(_U8)[0])]
    if not numbers or sorted(set(numbers)) != numbers or numbers[-1] >= len(schema.tensors):
        raise BadMessage(f"the round is about tensors {numbers}, which the model does not have so")
    chosen = [schema.tensors[number] for number in numbers]
    if not all(tensor.learnt for tensor in chosen):
        raise BadMessage("the round is about a tensor that no answer is about")
    return tuple(tensor.name for tensor in chosen)


def sent_rows(model: ClientUpdates, schema: Schema) -> Indices | None:
    """The rows of a sub-model, the same of every table; None for a whole model."""
    if not schema.tables:
        return None
    first = schema.tables[0]
    if first.name not in model.tables or len(model.tables[first.name].index) in (0, first.shape[0]):
        return None
    rows = model.tables[first.name].index
    for tensor in schema.tables:
        if tensor.name not in model.tables or not np.array_equal(model.tables[tensor.name].index, rows):
            raise BadMessage(f"the sub-model has other rows of {tensor.name} than of {first.name}")
    return rows
