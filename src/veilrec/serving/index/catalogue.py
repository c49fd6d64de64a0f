"""Items that come and go, and the best of them for a query: what a server keeps of a release.

A query takes the state that it finds and works on that alone. Writers make the next state beside it and put it in its
place in one step: no query waits for a writer or sees half of a change. New items are written into room that no state
before has told of; what is taken out is marked in a copy of the marks.

From a large segment with gaps and small ones behind it to one large segment, while others write and ask.

A catalogue as a file, and back.

Named arrays in one file that is mapped into memory: it opens in the time that its header takes.

The file: 8 bytes `VRINDEX1`, the SHA-256 of the header, the header's length as 8 bytes, the header as JSON, then the
arrays, each from a multiple of 64 bytes on. The header says names, types, shapes, where each begins, its SHA-256, and
how long the file is. Opening checks the header and the length; `check` also reads every array.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import mmap
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.errors import BadInput, file_trouble
from veilrec.core.files import replacing
from veilrec.serving.index.blocks import (
    GROUP,
    LARGEST,
    LARGEST_CODE,
    WIDTH,
    Blocks,
    Codes,
    Filter,
    ItemLabels,
    best_of,
    checked_code,
    checked_count,
    checked_vector,
    checked_weights,
    fits,
)
from veilrec.serving.index.reachable import reachable_rows
from veilrec.serving.index.segments import (
    Chunk,
    Segment,
    SegmentView,
    State,
    Vectors,
    find,
    numbers_of,
    place,
    with_new_segment,
    with_room,
    without,
)


@dataclass(frozen=True)
class Merged:
    """What takes the place of the parts and chunks that were there when merging began."""

    part: SegmentView
    chunks: tuple[Chunk, ...]


def merge_segments(parts: tuple[SegmentView, ...], vectors: Vectors) -> Merged:
    """One part of all that is alive in `parts`; the chunks of `vectors` but the last, which is being written, as two.

    The first chunk stays as it is: it may be a file of gigabytes.
    """
    numbers, values = alive_values(parts)
    category, region = (_merging_codes(parts, kind) for kind in ("category", "region"))
    first = int(numbers[0]) if len(numbers) else 0
    gapless = not len(numbers) or int(numbers[-1]) - first + 1 == len(numbers)
    segment = Segment(Blocks.of(values, category, region), None if gapless else numbers.astype(np.uint32), first)
    part = SegmentView(segment, np.ones(len(numbers), np.uint8), len(numbers))
    given, *later = vectors.chunks[:-1]
    if not later:
        return Merged(part, (given,))
    kept = numbers[np.searchsorted(numbers, later[0].first) :]
    if not len(kept):
        return Merged(part, (given,))
    inside, prior = vectors.take(kept)
    return Merged(part, (given, Chunk(inside, prior, kept, int(kept[0]), len(kept))))


def swapped_in(now: State, old: State, new: Merged) -> State:
    """The state `now` with what was merged of `old`, its state when merging began; all that happened since is kept."""
    sealed = len(old.parts) - 1
    alive = new.part.alive
    for before, after in zip(old.parts[:sealed], now.parts[:sealed], strict=True):
        gone = np.flatnonzero(before.alive[: before.count] > after.alive[: after.count])
        if len(gone):
            alive[new.part.rows_of(before.segment.numbers_of(gone))] = 0
    return replace(
        now,
        parts=(new.part, *now.parts[sealed:]),
        vectors=Vectors((*new.chunks, *now.vectors.chunks[len(old.vectors.chunks) - 1 :])),
    )


def alive_values(parts: tuple[SegmentView, ...]) -> tuple[Offsets, Floats]:
    """Numbers, rising, and values, [n, B], of all that is alive."""
    rows = [np.flatnonzero(part.alive[: part.count]) for part in parts]
    numbers = [part.segment.numbers_of(some) for part, some in zip(parts, rows, strict=True)]
    values = [part.segment.blocks.values_of(some) for part, some in zip(parts, rows, strict=True)]
    return np.concatenate(numbers), np.concatenate(values)


def _merging_codes(parts: tuple[SegmentView, ...], kind: str) -> Codes:
    """Codes of all that is alive."""
    found = []
    for part in parts:
        rows = np.flatnonzero(part.alive[: part.count])
        labels: ItemLabels | None = getattr(part.segment.blocks, kind)
        places = part.segment.blocks.places[rows]
        found.append(np.full(len(rows), -1, np.int16) if labels is None else labels.codes[places])
    return np.concatenate(found)


__all__ = ["Filter", "ItemIndex"]


class ItemIndex:
    """Items by number; thread-safe, and queries never wait for writers."""

    def __init__(self, state: State, interests: Floats | None, expiries: Iterable[tuple[float, int]] = ()) -> None:
        self._state = state
        self._interests = interests
        self._expiries = list(expiries)  # a heap of (time, number)
        heapq.heapify(self._expiries)
        self._lock = threading.RLock()  # of writers
        self._merging = threading.Lock()

    @classmethod
    def of(
        cls, vectors: Floats, interests: Floats | None, *, category: Indices | None = None, categories: int = 0
    ) -> ItemIndex:
        """A catalogue of these items, numbered from 0; interests are user vectors, [B, d]."""
        told = np.ascontiguousarray(vectors, np.float32)
        values = interest_values(told, interests)
        codes = None if category is None else _codes(category, len(told), categories)
        segment = Segment(Blocks.of(values, codes), None, 0)
        part = SegmentView(segment, np.ones(len(told), np.uint8), len(told))
        known = Vectors((Chunk(told, None, None, 0, len(told)),))
        largest = float(np.abs(values).max(initial=0.0))
        return cls(State((part,), known, len(told), len(told), largest, 1), interests)

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self._state.version

    @property
    def nbytes(self) -> int:
        """Bytes of the index, without the vectors."""
        return sum(part.segment.nbytes + part.alive.nbytes for part in self._state.parts)

    def __len__(self) -> int:
        return self._state.alive

    def best(self, weights: Floats, k: int, *, wanted: Filter | None = None) -> tuple[Offsets, Floats]:
        """Numbers and scores of the k best for weights of the interests, of equal ones the lowest number."""
        state = self._state
        told = np.ascontiguousarray(weights, np.float32)
        if self._interests is None:
            raise BadInput("these items have no interests: ask by vector")
        if told.shape != (len(self._interests),) or not fits(told, state.largest, LARGEST):
            checked_weights(told, len(self._interests), state.largest)
        room = min(checked_count(k), max(1, state.alive))
        scores, rows = np.empty(room, np.float32), np.empty(room, np.int64)
        found = base = 0
        for part in state.parts:
            if part.count:
                found = part.search(told, wanted, base, state.largest, scores, rows, found)
            base += part.count
        return numbers_of(state.parts, rows[:found]), scores[:found]

    def best_by_vector(self, vector: Floats, k: int, *, wanted: Filter | None = None) -> tuple[Offsets, Floats]:
        """The same for a user vector, which may have any sign: every item that is wanted is scored."""
        state = self._state
        told = checked_vector(vector, state.vectors.dim)
        checked_count(k)
        found = [part.segment.numbers_of(np.flatnonzero(part.allowed(wanted))) for part in state.parts]
        numbers = np.concatenate(found)
        with np.errstate(over="ignore", invalid="ignore"):
            scores = state.vectors.scores(told, numbers)
        if not np.isfinite(scores).all():
            raise BadInput("the vector is too long for float32 scores: scale it down")
        best = best_of(scores, k)
        return numbers[best], scores[best]

    def rows(self, numbers: Sequence[int] | Offsets) -> tuple[Floats, Floats]:
        """Vectors, [n, d], and scores for each interest alone, [n, B], of these items, which are alive."""
        state = self._state
        chosen = np.asarray(numbers, np.int64).reshape(-1)
        values = np.empty((len(chosen), 0 if self._interests is None else len(self._interests)), np.float32)
        which, rows = place(state, chosen)
        for index in np.unique(which).tolist():
            here = which == index
            values[here] = state.parts[index].segment.blocks.values_of(rows[here])
        return state.vectors.take(chosen)[0], values

    def put(
        self, vector: Floats, *, category: int = -1, region: int = -1, prior: float = 0.0, expires: float = inf
    ) -> int:
        """Add an item that the next query sees; its number was never used before.

        The prior is added to its score, for weights that sum to 1.
        """
        return self._put(None, vector, category, region, prior, expires)

    def replace(
        self,
        number: int,
        vector: Floats,
        *,
        category: int = -1,
        region: int = -1,
        prior: float = 0.0,
        expires: float = inf,
    ) -> int:
        """Put an item in the place of another, in one step: no query sees both or neither."""
        return self._put(number, vector, category, region, prior, expires)

    def _put(
        self, instead: int | None, vector: Floats, category: int, region: int, prior: float, expires: float
    ) -> int:
        told = checked_vector(vector, self._state.vectors.dim)
        checked_code("category", category)
        checked_code("region", region)
        if not isfinite(prior) or expires != expires:  # noqa: PLR0124  (not a number)
            raise BadInput(f"prior is {prior} and expires {expires}: give a finite prior, and a time or infinity")
        values = interest_values(told[np.newaxis], self._interests, prior)[0]
        with self._lock:
            state = self._state if instead is None else without(self._state, [instead])
            state = with_room(state)
            part, chunk, number = state.parts[-1], state.vectors.chunks[-1], state.next_number
            part.segment.write(part.count, values, category, region)
            chunk.vectors[chunk.count] = told
            if chunk.prior is not None:
                chunk.prior[chunk.count] = prior
            chunks = (*state.vectors.chunks[:-1], replace(chunk, count=chunk.count + 1))
            if expires < inf:
                heapq.heappush(self._expiries, (expires, number))
            self._state = replace(
                state,
                parts=(*state.parts[:-1], replace(part, count=part.count + 1)),
                vectors=Vectors(chunks),
                alive=state.alive + 1,
                next_number=number + 1,
                largest=max(state.largest, float(np.abs(values).max(initial=0.0))),
                version=state.version + 1,
            )
        return number

    def remove(self, number: int) -> None:
        """Take an item out; its number is not used again."""
        with self._lock:
            self._state = without(self._state, [number])

    def expire(self, now: float) -> int:
        """Take out all items whose time is over; how many they were."""
        with self._lock:
            over = []
            while self._expiries and self._expiries[0][0] <= now:
                over.append(heapq.heappop(self._expiries)[1])
            ended = np.array(over, np.int64)
            there = ended[find(self._state, ended)[1] >= 0]
            if len(there):
                self._state = without(self._state, there)
            return len(there)

    def merge(self) -> None:
        """Bring new items and gaps into one segment; safe in a thread of its own, while others write and ask."""
        with self._merging:
            with self._lock:
                old = self._state = with_new_segment(self._state)
            merged = merge_segments(old.parts[:-1], old.vectors)
            with self._lock:
                self._state = swapped_in(self._state, old, merged)

    def merged_state(self) -> tuple[State, Floats | None, list[tuple[float, int]]]:
        """A state of one part, the interests, and when items expire: what is saved; writers wait for it."""
        with self._merging, self._lock:
            old = with_new_segment(self._state)
            state = self._state = swapped_in(old, old, merge_segments(old.parts[:-1], old.vectors))
            alone = replace(state, parts=state.parts[:1], vectors=Vectors(state.vectors.chunks[:-1]))
            return alone, self._interests, list(self._expiries)

    def reachable(self, k: int) -> Offsets:
        """Numbers of all items that some weights on the simplex bring into their k best; perhaps a few more."""
        checked_count(k)
        if self._interests is None:
            raise BadInput("these items have no interests: all of them can be reached")
        numbers, values = alive_values(self._state.parts)
        return numbers[reachable_rows(values, k)]


def interest_values(vectors: Floats, interests: Floats | None, prior: float = 0.0) -> Floats:
    """P: the score of each item for each interest alone, [n, B]; refused where one is not finite."""
    if interests is None:
        return np.zeros((len(vectors), 0), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        values: Floats = vectors @ interests.astype(np.float32).T + np.float32(prior)
    if not np.isfinite(values).all():
        raise BadInput("a vector gives scores that are not finite: give finite vectors, interests and priors")
    return values


def _codes(category: Indices, items: int, categories: int) -> Codes:
    largest = int(category.max(initial=-1))
    if len(category) != items or category.min(initial=0) < -1 or largest > min(categories or inf, LARGEST_CODE + 1) - 1:
        raise BadInput(
            f"{len(category)} categories up to {largest} for {items} items: give a code per item, -1 to"
            f" {(categories or LARGEST_CODE + 1) - 1}"
        )
    return category.astype(np.int16)


_MAGIC = b"VRINDEX1"
_START = len(_MAGIC) + 32 + 8
_ALIGNED = 64
_LONGEST_HEADER = 1 << 20
_TYPES = ("float32", "float64", "int16", "int32", "int64", "uint8", "uint32", "uint64")

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Stored:
    """What a file holds; arrays are read from disk when they are looked at, and changes to them are never written."""

    facts: Mapping[str, Any]
    arrays: Arrays


def write_arrays(path: Path, arrays: Arrays, facts: Mapping[str, Any]) -> None:
    """Write a file that is either whole or not there."""
    listed, offset = {}, 0
    for name, array in arrays.items():
        content = np.ascontiguousarray(array)
        digest = hashlib.sha256(content.reshape(-1).view(np.uint8).data).hexdigest()
        listed[name] = {"type": str(array.dtype), "shape": array.shape, "begin": offset, "sha256": digest}
        offset = _aligned(offset + content.nbytes)
    header = json.dumps({"facts": dict(facts), "arrays": listed, "bytes": offset}, sort_keys=True).encode()
    header += b" " * (_aligned(_START + len(header)) - _START - len(header))
    with replacing(path) as part, part.open("wb") as out:
        out.write(_MAGIC + hashlib.sha256(header).digest() + len(header).to_bytes(8, "little") + header)
        for array in arrays.values():
            np.ascontiguousarray(array).tofile(out)
            out.write(bytes(_aligned(array.nbytes) - array.nbytes))


def open_arrays(path: Path, *, check: bool = False) -> Stored:
    """Map a file into memory; refused if its header or length is not what was written, with `check` any byte of it."""
    try:
        with path.open("rb") as source:
            header = _header(source.read(_START), source.read(_LONGEST_HEADER))
            size = path.stat().st_size
            begin = _START + header["length"]
            if size != begin + header["bytes"]:
                raise _damaged(path, f"{size} bytes long, {begin + header['bytes']} were written")
            memory = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_COPY)
        found = {name: _array(memory, begin, about) for name, about in header["arrays"].items()}
    except OSError as error:
        raise BadInput(file_trouble(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(path, "its header is not what was written") from None
    for name, about in header["arrays"].items() if check else ():
        if hashlib.sha256(found[name].reshape(-1).view(np.uint8).data).hexdigest() != about["sha256"]:
            raise _damaged(path, f"{name} is not what was written")
    return Stored(header["facts"], found)


def _header(start: bytes, following: bytes) -> dict[str, Any]:
    length = int.from_bytes(start[-8:], "little")
    text = following[:length]
    digest = start[len(_MAGIC) : len(_MAGIC) + 32]
    if start[: len(_MAGIC)] != _MAGIC or len(text) != length or hashlib.sha256(text).digest() != digest:
        raise ValueError
    return {**json.loads(text), "length": length}


def _array(memory: mmap.mmap, begin: int, about: Mapping[str, Any]) -> NDArray[Any]:
    if about["type"] not in _TYPES:
        raise ValueError
    shape = tuple(about["shape"])
    return np.frombuffer(memory, about["type"], prod(shape), begin + about["begin"]).reshape(shape)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _damaged(path: Path, what: str) -> BadInput:
    return BadInput(f"{path} is damaged ({what}): remove it, and it is built again from the release")


_FORMAT = 1
_BLOCKS = ("values", "maxima", "group_maxima", "rows", "places")
_LABELS = ("codes", "present", "offsets", "places")


def save(catalogue: ItemIndex, path: Path, *, vectors: bool = True) -> None:
    """Write a catalogue, merged; without `vectors`, those that it was made of are not written and are given again."""
    state, interests, expiries = catalogue.merged_state()
    part, (given, *later) = state.parts[0], state.vectors.chunks
    arrays: dict[str, NDArray[Any]] = {"alive": part.alive}
    blocks = part.segment.blocks
    arrays |= {f"blocks.{name}": getattr(blocks, name) for name in _BLOCKS}
    for kind, labels in (("category", blocks.category), ("region", blocks.region)):
        if labels is not None:
            arrays |= {f"{kind}.{name}": getattr(labels, name) for name in _LABELS}
    if part.segment.numbers is not None:
        arrays["numbers"] = part.segment.numbers
    if interests is not None:
        arrays["interests"] = interests
    if vectors:
        arrays["vectors"] = given.vectors
    for chunk in later:
        if chunk.count and chunk.prior is not None and chunk.numbers is not None:
            arrays |= {"later.vectors": chunk.vectors, "later.prior": chunk.prior, "later.numbers": chunk.numbers}
    arrays["expiries.times"] = np.array([time for time, _ in expiries], np.float64)
    arrays["expiries.numbers"] = np.array([number for _, number in expiries], np.int64)
    facts = {
        "format": _FORMAT,
        "block": [WIDTH, GROUP],
        "first": part.segment.first,
        "alive": state.alive,
        "next_number": state.next_number,
        "largest": state.largest,
        "version": state.version,
        "given": list(given.vectors.shape),
    }
    write_arrays(path, arrays, facts)


def open_catalogue(path: Path, vectors: Floats | None = None, *, check: bool = False) -> ItemIndex:
    """Open what `save` wrote, mapped into memory; `vectors` are those that the catalogue was made of."""
    stored = open_arrays(path, check=check)
    arrays, facts = stored.arrays, stored.facts
    if facts.get("format") != _FORMAT or facts.get("block") != [WIDTH, GROUP]:
        raise BadInput(f"{path} is of another version of veilrec: remove it, and it is built again from the release")
    given = vectors if vectors is not None else arrays.get("vectors")
    if given is None or list(given.shape) != facts["given"]:
        what = "none" if given is None else f"those of shape {given.shape}"
        raise BadInput(f"{path} needs the vectors that it was made of, {facts['given']}, and got {what}: give those")
    values, maxima, group_maxima, rows, places = (arrays[f"blocks.{name}"] for name in _BLOCKS)
    labels = (_labels(arrays, "category"), _labels(arrays, "region"))
    blocks = Blocks(values, maxima, group_maxima, rows, places, *labels)
    alive = arrays["alive"]
    part = SegmentView(Segment(blocks, arrays.get("numbers"), facts["first"]), alive, len(alive))
    chunks = [Chunk(given, None, None, 0, len(given))]
    if "later.vectors" in arrays:
        numbers = arrays["later.numbers"]
        chunks.append(Chunk(arrays["later.vectors"], arrays["later.prior"], numbers, int(numbers[0]), len(numbers)))
    state = State(
        (part,), Vectors(tuple(chunks)), facts["alive"], facts["next_number"], facts["largest"], facts["version"]
    )
    times, expiring = arrays["expiries.times"].tolist(), arrays["expiries.numbers"].tolist()
    return ItemIndex(state, arrays.get("interests"), zip(times, expiring, strict=True))


def _labels(arrays: Mapping[str, NDArray[Any]], kind: str) -> ItemLabels | None:
    return ItemLabels(*(arrays[f"{kind}.{name}"] for name in _LABELS)) if f"{kind}.codes" in arrays else None
