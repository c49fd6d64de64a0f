"""Ragged rows (compressed sparse row layout): rows of different lengths in two flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from veilrec.core.arrays import Indices, Offsets
from veilrec.core.jit import jit


@dataclass(frozen=True)
class Csr:
    """Row r holds `items[offsets[r]:offsets[r + 1]]`."""

    offsets: Offsets
    items: Indices

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> Indices:
        """The items of one row, as a view."""
        return self.items[self.offsets[index] : self.offsets[index + 1]]

    def lengths(self) -> Offsets:
        """The length of every row."""
        return np.diff(self.offsets)

    def take(self, rows: Offsets) -> Csr:
        """The chosen rows, packed; costs only their own length, whatever the size of the whole."""
        chosen = np.ascontiguousarray(rows, dtype=np.int64)
        offsets = offsets_of(self.offsets[chosen + 1] - self.offsets[chosen])
        items = np.empty(offsets[-1], np.int32)
        _gather(self.offsets, self.items, chosen, offsets, items)
        return Csr(offsets, items)

    def row_numbers(self) -> Offsets:
        """For every entry, the row that it belongs to."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.lengths())


def offsets_of(lengths: ArrayLike) -> Offsets:
    """Where rows of these lengths begin when they lie end to end, and where the last one ends."""
    counts = np.asarray(lengths)
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def packed(rows: Sequence[ArrayLike]) -> Csr:
    """Pack rows that are given one by one, each in its order."""
    items = np.concatenate([np.zeros(0, np.int32), *map(np.asarray, rows)])
    return Csr(offsets_of([np.size(row) for row in rows]), items.astype(np.int32))


def without_repeats(rows: Csr, n_items: int) -> Csr:
    """Every item of a row once, in increasing order."""
    pairs = np.unique(rows.row_numbers() * n_items + rows.items)
    lengths = np.bincount(pairs // n_items, minlength=len(rows))
    return Csr(offsets_of(lengths), (pairs % n_items).astype(np.int32))


def csr_from_pairs(rows: Offsets, items: Indices, n_rows: int) -> Csr:
    """Pack (row, item) pairs by row; the order within a row is the order given."""
    order = np.argsort(rows, kind="stable")
    return Csr(offsets_of(np.bincount(rows, minlength=n_rows)), np.ascontiguousarray(items[order], dtype=np.int32))


@jit
def _gather(source: Offsets, items: Indices, rows: Offsets, target: Offsets, out: Indices) -> None:
    for i in range(len(rows)):
        start = source[rows[i]]
        for j in range(target[i + 1] - target[i]):
            out[target[i] + j] = items[start + j]
