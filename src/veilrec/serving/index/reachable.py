"""Which items can be among the k best for any weights: what a client needs to rank without a query.

Weights are points of a simplex. It is cut in halves again and again; in a cell, a score is a mean of the scores at the
cell's corners, so that an item is worse than another in the whole cell if it is worse at every corner. Items that are
worse than k others everywhere in a cell are none of its k best, and need not be looked at in its halves. What is found
among the k best at a corner or in the middle of a cell can be reached. A cell with nothing else left is done; where
cutting ends before, what is left is taken as well: the answer has every item that can be reached, and perhaps more.

Scores of the index are rounded. "Worse" is by a margin above twice the largest error of a rounded score, so that what
is left out is worse as computed, too. Of items with the very same values, only the k of the lowest numbers count.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from veilrec.core.arrays import Bools, Doubles, Floats, Offsets
from veilrec.core.jit import exact_jit
from veilrec.serving.index.blocks import best_of

_UNIT = 2.0**-24  # largest relative error of one float32 operation
_DEEPEST = 16  # halvings
_RIVALS = 256  # items, the best in the middle of a cell, that others are compared with
_FIRST = 8  # halvings that are not looked at: in so large cells hardly an item is worse than k others everywhere
_WORK = 1e8  # items compared, over all cells, after which what is left is taken: about a minute
_SCORED = 1 / 16  # what scoring an item costs beside comparing it


def reachable_rows(values: Floats, k: int, *, work: float = _WORK, deepest: int = _DEEPEST) -> Offsets:
    """Rows of `values`, [n, B], that some weights not below 0 bring into their k best, ties by the lowest row.

    After `work` items compared, over all cells, or `deepest` halvings, the answer is still safe, but larger.
    """
    kept = _first_of_equals(values, k)
    if len(kept) <= k or values.shape[1] == 0:
        return kept
    if values.shape[1] == 1:
        return np.sort(kept[best_of(values[kept, 0], k)])
    return kept[_Search(values[kept], k, work, deepest).run()]


def _first_of_equals(values: Floats, k: int) -> Offsets:
    """Rows without those that k rows before them equal in every value."""
    order = np.lexsort((np.arange(len(values)), *values.T))
    ranked = values[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (ranked[1:] != ranked[:-1]).any(axis=1)
    starts = np.flatnonzero(new)
    place = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    kept: Offsets = np.sort(order[place < k]).astype(np.int64)
    return kept


class _Search:
    """Cells of the simplex, the largest first."""

    def __init__(self, values: Floats, k: int, work: float, deepest: int) -> None:
        self._values = np.ascontiguousarray(values.T, np.float64)  # [B, items]
        self._k = k
        self._work = work
        self._deepest = deepest
        interests = len(self._values)
        # An error of at most B units of the largest value for each of two scores; twice that, to be sure.
        self._margin = 4.0 * (interests + 1) * _UNIT * float(np.abs(values).max(initial=0.0))
        self._reached: Bools = np.zeros(len(values), np.bool_)

    def run(self) -> Bools:
        """Which items are in the answer."""
        interests, count = self._values.shape
        everything = np.arange(count)
        depth = min(_FIRST, 2 * (interests - 1), self._deepest)
        cells = deque((corners, everything, depth) for corners in _cells(np.eye(interests), depth))
        while cells:
            corners, items, depth = cells.popleft()
            if self._reached[items].all():
                continue
            if self._work <= 0.0 or depth > self._deepest:
                self._reached[items] = True
                continue
            items = self._left(corners, items)
            cells += [(half, items, depth + 1) for half in _halves(corners)]
        return self._reached

    def _left(self, corners: Doubles, items: Offsets) -> Offsets:
        """The items that may be among the k best somewhere in a cell; the k best in its middle are noted as reached."""
        self._work -= _SCORED * items.size
        scores = corners @ self._values[:, items]  # [corners, items]
        if len(items) > self._k:
            limit = -np.partition(-scores.min(axis=0), self._k - 1)[self._k - 1]
            kept = scores.max(axis=0) >= limit - self._margin
            items, scores = items[kept], scores[:, kept]
        self._work -= items.size
        worse = -scores.mean(axis=0)
        rivals = _lowest(worse, _RIVALS)
        self._reached[items[_lowest(worse, self._k)]] = True
        beaten = np.zeros(len(items), np.bool_)
        better = np.ascontiguousarray(scores[:, rivals].T) - self._margin
        _mark_beaten(scores, better, self._reached[items], self._k, beaten)
        return items[~beaten]


def _lowest(values: Doubles, count: int) -> Offsets:
    """Where the `count` lowest values are, in their order."""
    some = np.argpartition(values, count - 1)[:count] if count < len(values) else np.arange(len(values))
    found: Offsets = some[np.argsort(values[some], kind="stable")]
    return found


def _cells(corners: Doubles, depth: int) -> list[Doubles]:
    """A cell cut so many times."""
    if depth == 0:
        return [corners]
    return [cell for half in _halves(corners) for cell in _cells(half, depth - 1)]


def _halves(corners: Doubles) -> tuple[Doubles, Doubles]:
    """A cell cut in the middle of its longest edge."""
    lengths = ((corners[:, np.newaxis] - corners) ** 2).sum(axis=2)
    one, other = np.unravel_index(int(np.argmax(lengths)), lengths.shape)
    first, second = corners.copy(), corners.copy()
    first[one] = second[other] = (corners[one] + corners[other]) / 2.0
    return first, second


@exact_jit
def _mark_beaten(scores: Doubles, rivals: Doubles, known: Bools, k: int, beaten: Bools) -> None:
    """Mark items that k rivals, [rivals, corners], are better than at every corner; not those that are known anyway."""
    corners, count = scores.shape
    for item in range(count):
        if known[item]:
            continue
        better = 0
        for rival in range(len(rivals)):
            wins = True
            for corner in range(corners):
                if rivals[rival, corner] <= scores[corner, item]:
                    wins = False
                    break
            if wins:
                better += 1
                if better == k:
                    beaten[item] = True
                    break
