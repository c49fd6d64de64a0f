"""Parts of a catalogue: a large one in kd-order, and small ones that new items are written into.

A catalogue at one moment, and how the next moment is made of it.

The vectors of items by number, in chunks: those of a release, as they lie in its file, and those that came later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from veilrec.core.arrays import Bools, Bytes, Floats, Indices, Offsets
from veilrec.core.errors import BadInput
from veilrec.serving.index.blocks import (
    CATEGORY,
    GROUP,
    LARGEST_CODE,
    REGION,
    WIDTH,
    Blocks,
    Filter,
    ItemLabels,
    search,
    search_places,
    sets_of,
)

_FEW = 256  # a filter that leaves less than one item in so many is answered from the list of its items
_NO_CODES, _NO_MARKS, _NO_BITS = np.zeros(1, np.int16), np.zeros(1, np.uint8), np.zeros(1, np.uint64)


@dataclass(frozen=True)
class Segment:
    """Blocks and the numbers of their rows, which rise; all that a reader needs but which items are alive."""

    blocks: Blocks
    numbers: NDArray[np.uint32] | None  # [items]; None: `first` and those that follow it
    first: int

    @classmethod
    def empty(cls, interests: int, room: int, first: int) -> Segment:
        """Room for new items; written in place, so that a reader sees a row only when it is told of it."""
        blocks = room // WIDTH
        rows: Indices = np.arange(room, dtype=np.int32)
        sets = len(sets_of(interests))
        inside = Blocks(
            np.zeros((blocks, interests, WIDTH), np.float32),
            np.full((blocks // GROUP, sets, GROUP), -np.inf, np.float32),
            np.full((sets, blocks // GROUP), -np.inf, np.float32),
            rows,
            rows,
            ItemLabels.empty(room),
            ItemLabels.empty(room),
        )
        return cls(inside, None, first)

    def write(self, row: int, values: Floats, category: int, region: int) -> None:
        """Write a row that no reader sees yet; bounds only grow, and stay right for older readers."""
        blocks, block = self.blocks, row // WIDTH
        group, inner = block // GROUP, block % GROUP
        sums = (sets_of(len(values)) @ values.astype(np.float64)).astype(np.float32)
        np.maximum(blocks.group_maxima[:, group], sums, out=blocks.group_maxima[:, group])
        np.maximum(blocks.maxima[group, :, inner], sums, out=blocks.maxima[group, :, inner])
        blocks.values[block, :, row % WIDTH] = values
        for labels, code in ((blocks.category, category), (blocks.region, region)):
            if labels is not None:
                labels.present[block] |= np.uint64(1 << (code & 63)) if code >= 0 else np.uint64(0)
                labels.codes[row] = code

    def numbers_of(self, rows: Offsets) -> Offsets:
        """The numbers of these rows."""
        return rows + self.first if self.numbers is None else self.numbers[rows].astype(np.int64)


@dataclass(frozen=True)
class SegmentView:
    """A segment as a query sees it: nothing here ever changes."""

    segment: Segment
    alive: Bytes  # [room]: 0 for what was taken out
    count: int  # rows that are there

    def rows_of(self, numbers: Offsets) -> Offsets:
        """The rows of these numbers; -1 for what is not here, or gone."""
        segment = self.segment
        rows = numbers - segment.first
        if segment.numbers is not None:
            small = np.clip(numbers, 0, np.iinfo(np.uint32).max).astype(
                np.uint32
            )  # or all were made int64 to be compared
            rows = np.searchsorted(segment.numbers, small)
            found = segment.numbers[np.minimum(rows, self.count - 1)] == numbers
            rows = np.where(found, rows, -1)
        there = (rows >= 0) & (rows < self.count)
        there[there] = self.alive[rows[there]] == 1
        return np.where(there, rows, -1)

    def allowed(self, wanted: Filter | None) -> Bools:
        """[rows]: what a query may answer with."""
        blocks = self.segment.blocks
        allowed: Bools = self.alive[: self.count] == 1
        if wanted is None:
            return allowed
        for labels, codes in ((blocks.category, wanted.categories), (blocks.region, _region(wanted))):
            if codes and labels is None:
                return np.zeros_like(allowed)
            if codes and labels is not None:
                allowed &= _marks(codes)[labels.codes[blocks.places[: self.count]]] == 1
        return allowed

    def search(
        self,
        weights: Floats,
        wanted: Filter | None,
        base: int,
        largest: float,
        best_scores: Floats,
        best_rows: Offsets,
        found: int,
    ) -> int:
        """Bring this part's items among the best of the parts before it; how many those are then.

        Rows count from `base`; no value is further from 0 than `largest`.
        """
        blocks = self.segment.blocks
        chosen = _ALL if wanted is None else _Chosen.of(blocks, wanted)
        if chosen is None:
            return found
        if chosen.places is not None:
            codes = (chosen.filters, *chosen.category[::2], *chosen.region[::2])
            answer = (self.alive, self.count, base, best_scores, best_rows, found)
            told: int = search_places(weights, blocks.values, chosen.places, blocks.rows, *answer, *codes)
            return told
        return search(
            weights,
            blocks.values,
            blocks.maxima,
            blocks.group_maxima,
            blocks.rows,
            self.alive,
            self.count,
            base,
            largest,
            best_scores,
            best_rows,
            found,
            chosen.filters,
            *chosen.category,
            *chosen.region,
        )


_Arrays = tuple[NDArray[np.int16], NDArray[np.uint64], Bytes, NDArray[np.uint64]]
_NOTHING: _Arrays = (_NO_CODES, _NO_BITS, _NO_MARKS, _NO_BITS)


@dataclass(frozen=True)
class _Chosen:
    """What kernels need of a filter."""

    filters: int
    category: _Arrays  # codes, their bits by block, marks of the wanted ones, the bits of these
    region: _Arrays
    places: Indices | None  # all that can be wanted, where they are few

    @classmethod
    def of(cls, blocks: Blocks, wanted: Filter) -> _Chosen | None:
        """None: nothing here is wanted."""
        filters, few, arrays = 0, len(blocks.rows) // _FEW, [_NOTHING, _NOTHING]
        places: Indices | None = None
        both = ((CATEGORY, blocks.category, wanted.categories), (REGION, blocks.region, _region(wanted)))
        for index, (bit, labels, codes) in enumerate(both):
            if not codes:
                continue
            if labels is None:
                return None
            filters |= bit
            arrays[index] = (labels.codes, labels.present, _marks(codes), _bits(codes))
            if len(labels.offsets) and labels.count(codes) <= few:
                few = labels.count(codes)
                places = labels.places_of(codes)
        return cls(filters, arrays[0], arrays[1], places)


_ALL = _Chosen(0, _NOTHING, _NOTHING, None)


def _region(wanted: Filter) -> tuple[int, ...]:
    return () if wanted.region < 0 else (wanted.region,)


@lru_cache(maxsize=256)
def _marks(codes: tuple[int, ...]) -> Bytes:
    """1 at the wanted codes; the last is the mark of code -1, none."""
    marks = np.zeros(LARGEST_CODE + 2, np.uint8)
    marks[list(codes)] = 1
    return marks


@lru_cache(maxsize=256)
def _bits(codes: tuple[int, ...]) -> NDArray[np.uint64]:
    bits = 0
    for code in codes:
        bits |= 1 << (code & 63)
    return np.array([bits], np.uint64)


@dataclass(frozen=True)
class Chunk:
    """Vectors of items whose numbers rise; of a chunk that is being filled, only the first `count` are there."""

    vectors: Floats  # [room, d]
    prior: Floats | None  # [room], added to the scores; None: nothing is
    numbers: Offsets | None  # [room]; None: `first` and those that follow it
    first: int
    count: int

    def rows_of(self, numbers: Offsets) -> Offsets:
        """Where these numbers, which are all here, are."""
        if self.numbers is None:
            return numbers - self.first
        found: Offsets = np.searchsorted(self.numbers[: self.count], numbers)
        return found

    def scores(self, vector: Floats, numbers: Offsets) -> Floats:
        """Score these numbers: few are looked up, many are taken from the scores of all."""
        rows = self.rows_of(numbers)
        if 4 * len(rows) > self.count:
            found: Floats = (self.vectors[: self.count] @ vector)[rows]
        else:
            found = self.vectors[rows] @ vector
        return found if self.prior is None else found + self.prior[rows]


@dataclass(frozen=True)
class Vectors:
    """All chunks, by rising numbers."""

    chunks: tuple[Chunk, ...]

    @property
    def dim(self) -> int:
        """d."""
        return int(self.chunks[0].vectors.shape[1])

    def scores(self, vector: Floats, numbers: Offsets) -> Floats:
        """Score these numbers, which rise."""
        cuts = np.searchsorted(numbers, [chunk.first for chunk in self.chunks[1:]])
        parts = [chunk.scores(vector, some) for chunk, some in zip(self.chunks, np.split(numbers, cuts), strict=True)]
        return np.concatenate(parts)

    def take(self, numbers: Offsets) -> tuple[Floats, Floats]:
        """Vectors and priors of these numbers, in their order."""
        found, prior = np.empty((len(numbers), self.dim), np.float32), np.zeros(len(numbers), np.float32)
        which = np.searchsorted([chunk.first for chunk in self.chunks[1:]], numbers, side="right")
        for index, chunk in enumerate(self.chunks):
            here = which == index
            rows = chunk.rows_of(numbers[here])
            found[here] = chunk.vectors[rows]
            if chunk.prior is not None:
                prior[here] = chunk.prior[rows]
        return found, prior


_ROOM = WIDTH * GROUP  # of the first segment of new items; each that follows has twice as much
_MAX_ROOM = 8 * _ROOM


@dataclass(frozen=True)
class State:
    """All that a query needs; never changed once it is told of."""

    parts: tuple[SegmentView, ...]
    vectors: Vectors
    alive: int  # items
    next_number: int
    largest: float  # no value of an item for an interest is further from 0
    version: int


def numbers_of(parts: tuple[SegmentView, ...], rows: Offsets) -> Offsets:
    """From rows over all parts to numbers."""
    if len(parts) == 1:
        return parts[0].segment.numbers_of(rows)
    numbers, base = np.empty(len(rows), np.int64), 0
    for part in parts:
        here = (rows >= base) & (rows < base + part.count)
        numbers[here] = part.segment.numbers_of(rows[here] - base)
        base += part.count
    return numbers


def place(state: State, numbers: Offsets) -> tuple[Offsets, Offsets]:
    """Return the part and the row of each number; raise BadInput where one is not there."""
    firsts = [part.segment.first for part in state.parts[1:]]
    which: Offsets = np.searchsorted(firsts, numbers, side="right").astype(np.int64)
    rows = np.full(len(numbers), -1, np.int64)
    for index in np.unique(which).tolist():
        here = which == index
        rows[here] = state.parts[index].rows_of(numbers[here])
    if (rows < 0).any():
        raise BadInput(f"there is no item number {numbers[rows < 0][0]}: it was never put, or is gone already")
    return which, rows


def without(state: State, numbers: Iterable[int]) -> State:
    """The state with these items marked as gone, in copies of the marks."""
    gone = np.unique(np.fromiter(numbers, np.int64))
    which, rows = place(state, gone)
    parts = list(state.parts)
    for index in np.unique(which).tolist():
        alive = parts[index].alive.copy()
        alive[rows[which == index]] = 0
        parts[index] = replace(parts[index], alive=alive)
    return replace(state, parts=tuple(parts), alive=state.alive - len(gone), version=state.version + 1)


def with_room(state: State) -> State:
    """Return a state whose last segment has room for an item."""
    last = state.parts[-1]
    return state if len(state.parts) > 1 and last.count < len(last.alive) else with_new_segment(state)


def with_new_segment(state: State) -> State:
    """The state with an empty segment behind the others, twice as large as the one before it."""
    room = min(_MAX_ROOM, 2 * len(state.parts[-1].alive)) if len(state.parts) > 1 else _ROOM
    interests, dim, first = state.parts[0].segment.blocks.interests, state.vectors.dim, state.next_number
    part = SegmentView(Segment.empty(interests, room, first), np.ones(room, np.uint8), 0)
    chunk = Chunk(np.zeros((room, dim), np.float32), np.zeros(room, np.float32), None, first, 0)
    return replace(state, parts=(*state.parts, part), vectors=Vectors((*state.vectors.chunks, chunk)))
