"""A query on its way to the server: what a client tells of its user to be recommended something, and nothing else.

Layout, little-endian: magic `VRQ1`, kind u8, how many numbers u16, the numbers as float32 (an interest: one u16). There
is no room for anything more: no user, no client, no time, no length of a history. Two clients that ask the same kind of
question send the same number of bytes.

A pool on its way to a client: items with their vectors and titles, for the client to rank by itself.

A file of safetensors. What it holds does not depend on who asks where it is the reachable set of a release; where it
answers a private query, it depends on the query and on nothing else.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from veilrec.core.arrays import Floats, Indices
from veilrec.core.errors import BadInput
from veilrec.wire.messages import BadMessage, NotFinite

Kind = Literal["vector", "attention", "pooled", "pooled-and-clear", "interest"]
"""A user vector; attention over basis vectors; a pooled vector; one beside that of clicks in plaintext; an interest."""
KINDS: tuple[Kind, ...] = get_args(Kind)  # their numbers on the wire
_HEADER = struct.Struct("<4sBH")
_MAGIC = b"VRQ1"
_INTEREST = struct.Struct("<H")
MOST = (1 << 16) - 1  # numbers of a query, and interests


@dataclass(frozen=True)
class QueryShape:
    """Kind and size of a query, which both sides know before it is sent."""

    kind: Kind
    size: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadInput(f"a query of kind {self.kind!r}: known are {', '.join(KINDS)}")
        if not 1 <= self.size <= MOST:
            raise BadInput(f"a query of size {self.size}: give 1 to {MOST}")

    @property
    def bytes(self) -> int:
        """The length of every query of this kind."""
        return _HEADER.size + (_INTEREST.size if self.kind == "interest" else 4 * self.size)


def encode(values: Floats, question: QueryShape) -> bytes:
    """The query of one client: its numbers, [size], or the number of an interest, [1]."""
    if question.kind == "interest":
        if values.shape != (1,) or not 0 <= values[0] < question.size or values[0] != int(values[0]):
            raise BadInput(f"no interest of {question.size}: {values}")
        return _HEADER.pack(_MAGIC, KINDS.index(question.kind), 1) + _INTEREST.pack(int(values[0]))
    if values.shape != (question.size,):
        raise BadInput(f"a query has shape {values.shape}: give {question.size} numbers")
    with np.errstate(over="ignore"):
        numbers = values.astype("<f4")
    if not np.isfinite(numbers).all():
        raise BadInput("a query has numbers that are not finite: nothing is sent")
    return _HEADER.pack(_MAGIC, KINDS.index(question.kind), question.size) + numbers.tobytes()


def decode(content: bytes, question: QueryShape) -> Floats:
    """Check a query and unpack it: its numbers, or [1] with an interest; anything odd raises `BadMessage`."""
    if len(content) != question.bytes:
        raise BadMessage(f"the query has {len(content)} bytes and not {question.bytes}")
    magic, kind, count = _HEADER.unpack_from(content)
    expected = 1 if question.kind == "interest" else question.size
    if magic != _MAGIC or kind != KINDS.index(question.kind) or count != expected:
        raise BadMessage(f"the message does not start as a veilrec query of kind {question.kind} does")
    if question.kind == "interest":
        (interest,) = _INTEREST.unpack_from(content, _HEADER.size)
        if interest >= question.size:
            raise BadMessage(f"the query is about interest {interest}, and there are {question.size}")
        return np.array([interest], np.float32)
    numbers = np.frombuffer(content, "<f4", offset=_HEADER.size).astype(np.float32)
    if not np.isfinite(numbers).all():
        raise NotFinite("the query has numbers that are not finite")
    return numbers


LARGEST = 256 << 20  # bytes of a pool that are read
_LARGEST_HEADER = 4_000_000  # bytes, with what fills a pool up to its size
_TEXTS = ("ids", "titles", "categories")
_KINDS = {f"{name}.{part}": kind for name in _TEXTS for part, kind in (("offsets", "<i4"), ("data", "|u1"))} | {
    "category": "<i4",
    "vectors": "|i1",
    "scales": "<f4",
}
_NAMES = {"<i4": "I32", "|u1": "U8", "|i1": "I8", "<f4": "F32"}  # as safetensors calls them
_FACTS = {"release", "k", "whole", "exact"}


@dataclass(frozen=True)
class PoolInfo:
    """Release and completeness of a pool."""

    release: str  # name and version
    k: int  # how many of the best were asked for
    whole: bool  # whether all items of the release are in it
    exact: bool  # whether the k best of everybody are in it


@dataclass(frozen=True)
class Pool:
    """Items for a client to rank by itself."""

    about: PoolInfo
    ids: list[str]
    titles: list[str]
    categories: list[str]  # of every item; empty where unknown
    scores: Floats | None  # [items, B]: of every interest alone
    vectors: Floats  # [items, dim], of 8 bits a number

    def __len__(self) -> int:
        return len(self.ids)


def pool_file(
    ids: Sequence[str],
    titles: Sequence[str],
    categories: Sequence[str],
    scores: Floats | None,
    vectors: Floats,
    about: PoolInfo,
    *,
    size: int = 0,
) -> bytes:
    """The file of some items: `scores` is P [items, B], where there are interests, `vectors` R [items, dim].

    A shorter file is filled up to about `size` bytes, with spaces behind its header.
    """
    names = sorted({name for name in categories if name})
    number = {name: code for code, name in enumerate(names)}
    scales = (np.abs(vectors).max(axis=0, initial=0.0) / 127.0).astype("<f4")
    steps = np.divide(vectors, scales, out=np.zeros_like(vectors, np.float32), where=scales > 0)
    arrays: dict[str, NDArray[Any]] = {
        **_packed("ids", ids),
        **_packed("titles", titles),
        **_packed("categories", names),
        "category": np.array([number.get(name, -1) for name in categories], "<i4"),
        "vectors": np.rint(np.clip(steps, -127, 127)).astype("|i1"),
        "scales": scales,
    }
    if scores is not None:
        arrays["scores"] = np.ascontiguousarray(scores, "<f4")
    facts = {"release": about.release, "k": str(about.k)}
    facts |= {"whole": str(int(about.whole)), "exact": str(int(about.exact))}
    return _saved(arrays, facts, size)


def _saved(arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, str], size: int) -> bytes:
    """As the library writes it, but always in the same order: the same pool has the same bytes."""
    header: dict[str, Any] = {"__metadata__": dict(facts)}
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))  # so that all lie aligned
    end = 0
    for name in order:
        start, end = end, end + arrays[name].nbytes
        kind = _NAMES[arrays[name].dtype.str]
        header[name] = {"dtype": kind, "shape": list(arrays[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    text = text.ljust(min(_LARGEST_HEADER, size - end - 8))
    return len(text).to_bytes(8, "little") + text + b"".join(arrays[name].tobytes() for name in order)


def read_pool(content: bytes) -> Pool:
    """Check a pool and unpack it; anything odd raises `BadMessage`."""
    about = _about(_facts(content))
    try:
        arrays = load(content)
    except (SafetensorError, KeyError, ValueError, TypeError):
        raise BadMessage("the pool is no file of safetensors") from None
    scores = arrays.pop("scores", None)
    if {name: array.dtype.str for name, array in arrays.items()} != _KINDS:
        raise BadMessage("the pool does not have the arrays that a pool has")
    ids, titles, names = (_unpacked(name, arrays) for name in _TEXTS)
    category, vectors, scales = arrays["category"], arrays["vectors"], arrays["scales"]
    count = len(ids)
    if len(titles) != count or category.shape != (count,) or vectors.ndim != 2 or len(vectors) != count:
        raise BadMessage("the arrays of the pool are not of one length")
    if scales.shape != vectors.shape[1:] or len(set(ids)) != count:
        raise BadMessage("the pool has the wrong number of scales, or an item twice")
    if count and not (category.min() >= -1 and category.max() < len(names)):
        raise BadMessage("the pool has a category without a name")
    if scores is not None and (scores.dtype.str != "<f4" or scores.ndim != 2 or len(scores) != count):
        raise BadMessage("the pool has scores of another shape than its items")
    if not np.isfinite(scales).all() or (scores is not None and not np.isfinite(scores).all()):
        raise BadMessage("the pool has numbers that are not finite")
    labels = [names[code] if code >= 0 else "" for code in category.tolist()]
    return Pool(about, ids, titles, labels, scores, vectors.astype(np.float32) * scales)


def _facts(content: bytes) -> Mapping[str, Any]:
    """Read the metadata in the header."""
    if len(content) > LARGEST:
        raise BadMessage(f"the pool has {len(content):,} bytes: at most {LARGEST:,} are read")
    length = int.from_bytes(content[:8], "little")
    if not 2 <= length <= min(_LARGEST_HEADER, len(content) - 8):
        raise BadMessage("the pool does not start as a file of safetensors does")
    try:
        header = json.loads(content[8 : 8 + length].decode())
    except (ValueError, RecursionError):
        raise BadMessage("the pool has a header that is no JSON") from None
    facts = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(facts, dict) or set(facts) != _FACTS:
        raise BadMessage("the pool does not say what it is of")
    return facts


def _about(facts: Mapping[str, Any]) -> PoolInfo:
    flags, k = (facts["whole"], facts["exact"]), facts["k"]
    if not isinstance(facts["release"], str) or not isinstance(k, str) or not {*flags} <= {"0", "1"}:
        raise BadMessage("the pool does not say what it is of")
    if not (k.isascii() and k.isdigit() and len(k) < 10):
        raise BadMessage("the pool does not say how many are asked for")
    return PoolInfo(facts["release"], int(k), flags[0] == "1", flags[1] == "1")


def _packed(name: str, texts: Sequence[str]) -> dict[str, NDArray[Any]]:
    pieces = [text.encode() for text in texts]
    offsets = np.zeros(len(pieces) + 1, "<i4")
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    return {f"{name}.offsets": offsets, f"{name}.data": np.frombuffer(b"".join(pieces), "|u1")}


def _unpacked(name: str, arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    offsets: Indices = arrays[f"{name}.offsets"]
    data = arrays[f"{name}.data"]
    whole = offsets.ndim == data.ndim == 1 and len(offsets) and offsets[0] == 0 and offsets[-1] == len(data)
    if not whole or (np.diff(offsets) < 0).any():
        raise BadMessage(f"the {name} of the pool do not lie end to end")
    content, places = data.tobytes(), offsets.tolist()
    try:
        return [content[start:end].decode() for start, end in pairwise(places)]
    except UnicodeDecodeError:
        raise BadMessage(f"the {name} of the pool are no text") from None
