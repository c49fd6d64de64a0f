"""Scores for each interest alone, in blocks of like items, with the largest of every block: the index itself.

Why it is exact: a score is a sum of products that are added up in the order of the interests, each step rounded to
float32 (`oracle.scores_of`). The bound of a block is the same sum with the block's largest values in the place of an
item's. Rounding is monotone, a larger number never rounds to a smaller one, and weights are not negative: step by step
the bound is at least the score of every item in the block, as computed, not only in theory. So a block whose bound is
below the k-th best score found so far holds nothing better, and no margin is needed. Kernels of this file are compiled
without reordering (`exact_jit`), so that both sums are what is written.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veilrec._arrays import Floats, Indices, Offsets
from veilrec.server.index.order import kd_order

WIDTH = 128  # items of a block
GROUP = 16  # blocks of a group
NO_ROW = np.iinfo(np.int32).max  # what fills the last block
Codes = NDArray[np.int16]
Bits = NDArray[np.uint64]


@dataclass(frozen=True)
class Labels:
    """A code per item, such as its category, and where each is to be found; -1: none."""

    codes: Codes  # [places], in the order of the blocks
    present: Bits  # [blocks]: bit (code mod 64) of every code in the block
    offsets: Offsets  # [codes + 1] into `places`; empty where items are added one by one
    places: Indices  # sorted by code

    @classmethod
    def of(cls, codes: Codes) -> Labels:
        """Of codes in the order of the blocks."""
        n_codes = int(codes.max(initial=-1)) + 1
        by_code = np.argsort(codes, kind="stable").astype(np.int32)
        offsets = np.searchsorted(codes[by_code], np.arange(n_codes + 1)).astype(np.int64)
        return cls(codes, _present(codes), offsets, by_code)

    @classmethod
    def empty(cls, places: int) -> Labels:
        """Room for items that come one by one."""
        blocks = places // WIDTH
        none = np.zeros(0, np.int64)
        return cls(np.full(places, -1, np.int16), np.zeros(blocks, np.uint64), none, none.astype(np.int32))

    def count(self, codes: tuple[int, ...]) -> int:
        """How many places have one of these codes."""
        known = [code for code in set(codes) if 0 <= code < len(self.offsets) - 1]
        return sum(int(self.offsets[code + 1] - self.offsets[code]) for code in known)

    def places_of(self, codes: tuple[int, ...]) -> Indices:
        """All places with one of these codes."""
        known = [code for code in sorted(set(codes)) if 0 <= code < len(self.offsets) - 1]
        parts = [self.places[self.offsets[code] : self.offsets[code + 1]] for code in known]
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def _present(codes: Codes) -> Bits:
    bits = np.where(codes < 0, 0, np.uint64(1) << (codes.astype(np.int64) & 63).astype(np.uint64))
    found: Bits = np.bitwise_or.reduce(bits.reshape(-1, WIDTH).astype(np.uint64), axis=1)
    return found


@dataclass(frozen=True)
class Blocks:
    """Items in the order of a kd-tree, which keeps like ones together; nothing of it changes once it is built."""

    values: Floats  # [blocks, B, WIDTH]
    maxima: Floats  # [groups, B, GROUP]: the largest value of each block; -inf where a group has none
    group_maxima: Floats  # [B, groups]
    rows: Indices  # [places]: the item in each place; NO_ROW in the rest of the last block
    first_rows: Indices  # [blocks]: the lowest of each, which is all that may win a tie
    places: Indices  # [items]: where each is
    category: Labels | None
    region: Labels | None

    @property
    def interests(self) -> int:
        """B."""
        return int(self.values.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        arrays = [self.values, self.maxima, self.group_maxima, self.rows, self.first_rows, self.places]
        for labels in (self.category, self.region):
            if labels is not None:
                arrays += [labels.codes, labels.present, labels.offsets, labels.places]
        return sum(array.nbytes for array in arrays)

    def values_of(self, rows: Offsets) -> Floats:
        """[items, B] of these rows."""
        places = self.places[rows]
        found: Floats = self.values[places // WIDTH, :, places % WIDTH]
        return found

    @classmethod
    def of(cls, values: Floats, category: Codes | None = None, region: Codes | None = None) -> Blocks:
        """From [items, B]; codes are int16, one per item."""
        n_items, width = values.shape
        order = kd_order(values, WIDTH, GROUP)
        blocks = -(-n_items // WIDTH)
        rows = np.full(blocks * WIDTH, NO_ROW, np.int32)
        rows[:n_items] = order
        filled = np.concatenate([order, np.repeat(order[-1:], blocks * WIDTH - n_items)])
        inside = np.empty((blocks, width, WIDTH), np.float32)
        for b in range(width):
            inside[:, b, :] = values[filled, b].reshape(blocks, WIDTH)
        places = np.empty(n_items, np.int32)
        places[order] = np.arange(n_items, dtype=np.int32)
        maxima, group_maxima = maxima_of(inside)
        first = rows.reshape(blocks, WIDTH).min(axis=1) if blocks else np.zeros(0, np.int32)
        return cls(
            inside, maxima, group_maxima, rows, first, places, _labels(category, filled), _labels(region, filled)
        )


def _labels(codes: Codes | None, order: Indices) -> Labels | None:
    return None if codes is None or not len(codes) or codes.max() < 0 else Labels.of(codes[order])


def maxima_of(values: Floats) -> tuple[Floats, Floats]:
    """The largest values of each block and of each group of blocks: [groups, B, GROUP] and [B, groups]."""
    blocks, width = values.shape[:2]
    groups = -(-blocks // GROUP)
    largest = np.full((groups * GROUP, width), -np.inf, np.float32)
    largest[:blocks] = values.max(axis=2) if blocks else 0.0
    by_group = largest.reshape(groups, GROUP, width)
    maxima = np.ascontiguousarray(by_group.transpose(0, 2, 1))
    return maxima, np.ascontiguousarray(by_group.max(axis=1).T) if groups else np.zeros((width, 0), np.float32)
