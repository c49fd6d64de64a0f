"""A catalogue at one moment, and how the next moment is made of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from veilrec._arrays import Offsets
from veilrec.errors import BadInput
from veilrec.server.index.blocks import GROUP, WIDTH
from veilrec.server.index.segments import Part, Segment
from veilrec.server.index.vectors import Chunk, Vectors

_ROOM = WIDTH * GROUP  # of the first segment of new items; each that follows has twice as much
_MOST_ROOM = 8 * _ROOM


@dataclass(frozen=True)
class State:
    """All that a query needs; never changed once it is told of."""

    parts: tuple[Part, ...]
    vectors: Vectors
    alive: int  # items
    next_number: int
    largest: float  # no value of an item for an interest is further from 0
    version: int


def numbers_of(parts: tuple[Part, ...], rows: Offsets) -> Offsets:
    """From rows over all parts to numbers."""
    if len(parts) == 1:
        return parts[0].segment.numbers_of(rows)
    numbers, base = np.empty(len(rows), np.int64), 0
    for part in parts:
        here = (rows >= base) & (rows < base + part.count)
        numbers[here] = part.segment.numbers_of(rows[here] - base)
        base += part.count
    return numbers


def find(state: State, numbers: Offsets) -> tuple[Offsets, Offsets]:
    """The part and the row of each number; row -1 where there is none, or it is gone."""
    firsts = [part.segment.first for part in state.parts[1:]]
    which: Offsets = np.searchsorted(firsts, numbers, side="right").astype(np.int64)
    rows = np.full(len(numbers), -1, np.int64)
    for index in np.unique(which).tolist():
        here = which == index
        rows[here] = state.parts[index].rows_of(numbers[here])
    return which, rows


def place(state: State, numbers: Offsets) -> tuple[Offsets, Offsets]:
    """The same; refused where one is not there."""
    which, rows = find(state, numbers)
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
    """The state with room for an item in its last part."""
    last = state.parts[-1]
    return state if len(state.parts) > 1 and last.count < len(last.alive) else with_new_segment(state)


def with_new_segment(state: State) -> State:
    """The state with an empty segment behind the others, twice as large as the one before it."""
    room = min(_MOST_ROOM, 2 * len(state.parts[-1].alive)) if len(state.parts) > 1 else _ROOM
    interests, dim, first = state.parts[0].segment.blocks.interests, state.vectors.dim, state.next_number
    part = Part(Segment.empty(interests, room, first), np.ones(room, np.uint8), 0)
    chunk = Chunk(np.zeros((room, dim), np.float32), np.zeros(room, np.float32), None, first, 0)
    return replace(state, parts=(*state.parts, part), vectors=Vectors((*state.vectors.chunks, chunk)))
