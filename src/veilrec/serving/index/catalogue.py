"""Items that come and go, and the best of them for a query: what a server keeps of a release.

A query takes the state that it finds and works on that alone. Writers make the next state beside it and put it in its
place in one step: no query waits for a writer or sees half of a change. New items are written into room that no state
before has told of; what is taken out is marked in a copy of the marks.

Merging makes one large segment of a large segment with gaps and the small ones behind it, while others write and ask.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite

import numpy as np

from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.errors import BadInput
from veilrec.serving.index.blocks import (
    LARGEST,
    LARGEST_CODE,
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
    numbers_of,
    place,
    with_new_segment,
    with_room,
    without,
)


def merge_segments(parts: tuple[SegmentView, ...], vectors: Vectors) -> tuple[SegmentView, tuple[Chunk, ...]]:
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
        return part, (given,)
    kept = numbers[np.searchsorted(numbers, later[0].first) :]
    if not len(kept):
        return part, (given,)
    inside, prior = vectors.take(kept)
    return part, (given, Chunk(inside, prior, kept, int(kept[0]), len(kept)))


def swapped_in(now: State, old: State, part: SegmentView, chunks: tuple[Chunk, ...]) -> State:
    """The state `now` with what was merged of `old`, its state when merging began; all that happened since is kept."""
    sealed = len(old.parts) - 1
    alive = part.alive
    for before, after in zip(old.parts[:sealed], now.parts[:sealed], strict=True):
        gone = np.flatnonzero(before.alive[: before.count] > after.alive[: after.count])
        if len(gone):
            alive[part.rows_of(before.segment.numbers_of(gone))] = 0
    return replace(
        now,
        parts=(part, *now.parts[sealed:]),
        vectors=Vectors((*chunks, *now.vectors.chunks[len(old.vectors.chunks) - 1 :])),
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

    def __init__(self, state: State, interests: Floats | None) -> None:
        self._state = state
        self._interests = interests
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
        """Numbers and scores of the k best for a user vector of any sign: every item that is wanted is scored."""
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
        self, vector: Floats, *, category: int = -1, region: int = -1, prior: float = 0.0, instead: int | None = None
    ) -> int:
        """Add an item that the next query sees; its number was never used before.

        The prior is added to its score, for weights that sum to 1. `instead` is the item that it takes the place of, in
        one step: no query sees both or neither.
        """
        told = checked_vector(vector, self._state.vectors.dim)
        checked_code("category", category)
        checked_code("region", region)
        if not isfinite(prior):
            raise BadInput(f"prior is {prior}: give a finite prior")
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

    def merge(self) -> None:
        """Bring new items and gaps into one segment; safe in a thread of its own, while others write and ask."""
        with self._merging:
            with self._lock:
                old = self._state = with_new_segment(self._state)
            part, chunks = merge_segments(old.parts[:-1], old.vectors)
            with self._lock:
                self._state = swapped_in(self._state, old, part, chunks)

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
