"""Parts of a catalogue: a large one in kd-order, and small ones that new items are written into."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from veilrec._arrays import Bools, Bytes, Floats, Indices, Offsets
from veilrec.server.index.blocks import GROUP, WIDTH, Blocks, Labels, sets_of
from veilrec.server.index.filters import LARGEST_CODE, Filter
from veilrec.server.index.kernels import CATEGORY, REGION, search, search_places

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
            Labels.empty(room),
            Labels.empty(room),
        )
        return cls(inside, None, first)

    def write(self, row: int, values: Floats, category: int, region: int) -> None:
        """Write a row that nobody has been told of; bounds only grow, and are right for older readers, too."""
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

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.blocks.nbytes + (0 if self.numbers is None else self.numbers.nbytes)

    def numbers_of(self, rows: Offsets) -> Offsets:
        """The numbers of these rows."""
        return rows + self.first if self.numbers is None else self.numbers[rows].astype(np.int64)


@dataclass(frozen=True)
class Part:
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
