"""From a large segment with gaps and small ones behind it to one large segment, while others write and ask."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from veilrec._arrays import Floats, Offsets
from veilrec.server.index.blocks import Blocks, Codes, Labels
from veilrec.server.index.segments import Part, Segment
from veilrec.server.index.state import State
from veilrec.server.index.vectors import Chunk, Vectors


@dataclass(frozen=True)
class Merged:
    """What takes the place of the parts and chunks that were there when merging began."""

    part: Part
    chunks: tuple[Chunk, ...]


def merged(parts: tuple[Part, ...], vectors: Vectors) -> Merged:
    """One part of all that is alive in `parts`; the chunks of `vectors` but the last, which is being written, as two.

    The first chunk stays as it is: it may be a file of gigabytes.
    """
    numbers, values = alive_values(parts)
    category, region = (_codes(parts, kind) for kind in ("category", "region"))
    first = int(numbers[0]) if len(numbers) else 0
    gapless = not len(numbers) or int(numbers[-1]) - first + 1 == len(numbers)
    segment = Segment(Blocks.of(values, category, region), None if gapless else numbers.astype(np.uint32), first)
    part = Part(segment, np.ones(len(numbers), np.uint8), len(numbers))
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


def alive_values(parts: tuple[Part, ...]) -> tuple[Offsets, Floats]:
    """Numbers, rising, and values, [n, B], of all that is alive."""
    rows = [np.flatnonzero(part.alive[: part.count]) for part in parts]
    numbers = [part.segment.numbers_of(some) for part, some in zip(parts, rows, strict=True)]
    values = [part.segment.blocks.values_of(some) for part, some in zip(parts, rows, strict=True)]
    return np.concatenate(numbers), np.concatenate(values)


def _codes(parts: tuple[Part, ...], kind: str) -> Codes:
    """Codes of all that is alive."""
    found = []
    for part in parts:
        rows = np.flatnonzero(part.alive[: part.count])
        labels: Labels | None = getattr(part.segment.blocks, kind)
        places = part.segment.blocks.places[rows]
        found.append(np.full(len(rows), -1, np.int16) if labels is None else labels.codes[places])
    return np.concatenate(found)
