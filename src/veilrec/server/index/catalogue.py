"""Items that come and go, and the best of them for a query: what a server keeps of a release.

A query takes the state that it finds and works on that alone. Writers make the next state beside it and put it in its
place in one step: no query waits for a writer or sees half of a change. New items are written into room that no state
before has told of; what is taken out is marked in a copy of the marks.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf, isfinite

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec.errors import BadInput
from veilrec.server.index import merging, oracle
from veilrec.server.index.blocks import Blocks, Codes
from veilrec.server.index.filters import (
    LARGEST,
    LARGEST_CODE,
    Filter,
    checked_code,
    checked_count,
    checked_vector,
    checked_weights,
)
from veilrec.server.index.kernels import fits
from veilrec.server.index.reachable import reachable_rows
from veilrec.server.index.segments import Part, Segment
from veilrec.server.index.state import State, find, numbers_of, place, with_new_segment, with_room, without
from veilrec.server.index.vectors import Chunk, Vectors

__all__ = ["Catalogue", "Filter"]


class Catalogue:
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
    ) -> Catalogue:
        """A catalogue of these items, numbered from 0; interests are user vectors, [B, d]."""
        told = np.ascontiguousarray(vectors, np.float32)
        values = interest_values(told, interests)
        codes = None if category is None else _codes(category, len(told), categories)
        segment = Segment(Blocks.of(values, codes), None, 0)
        part = Part(segment, np.ones(len(told), np.uint8), len(told))
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
        best = oracle.best_of(scores, k)
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
            merged = merging.merged(old.parts[:-1], old.vectors)
            with self._lock:
                self._state = merging.swapped_in(self._state, old, merged)

    def merged_state(self) -> tuple[State, Floats | None, list[tuple[float, int]]]:
        """A state of one part, the interests, and when items expire: what is saved; writers wait for it."""
        with self._merging, self._lock:
            old = with_new_segment(self._state)
            state = self._state = merging.swapped_in(old, old, merging.merged(old.parts[:-1], old.vectors))
            alone = replace(state, parts=state.parts[:1], vectors=Vectors(state.vectors.chunks[:-1]))
            return alone, self._interests, list(self._expiries)

    def reachable(self, k: int) -> Offsets:
        """Numbers of all items that some weights on the simplex bring into their k best; perhaps a few more."""
        checked_count(k)
        if self._interests is None:
            raise BadInput("these items have no interests: all of them can be reached")
        numbers, values = merging.alive_values(self._state.parts)
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
