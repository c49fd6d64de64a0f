"""The vectors of items by number, in chunks: those of a release, as they lie in its file, and those that came later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veilrec._arrays import Floats, Offsets


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
        """Of these numbers; few are looked up, many are taken from the scores of all."""
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
        """Of these numbers, which rise."""
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
