"""Which items can be among the k best for any weights at all: what a device needs to rank without asking.

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

from veilrec._arrays import Bools, Doubles, Floats, Indices, Offsets
from veilrec._jit import exact_jit

_UNIT = 2.0**-24  # largest relative error of one float32 operation
_DEEPEST = 14  # halvings
_WORK = 4e9  # scores at corners, after which what is left is taken


def reachable_rows(values: Floats, k: int, *, work: float = _WORK, deepest: int = _DEEPEST) -> Offsets:
    """Rows of `values`, [n, B], that some weights not below 0 bring into their k best, ties by the lowest row.

    After `work` scores at corners of cells, or `deepest` halvings, the answer is still safe, but larger.
    """
    kept = _first_of_equals(values, k)
    if len(kept) <= k or values.shape[1] == 0:
        return kept
    inside = values[kept].astype(np.float64)
    return kept[np.flatnonzero(_Search(inside, k, work, deepest).run())]


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

    def __init__(self, values: Doubles, k: int, work: float, deepest: int) -> None:
        self._values = values
        self._k = k
        self._work = work
        self._deepest = deepest
        interests = values.shape[1]
        # An error of at most (B + 1) units of the largest value for each of two scores; twice that, to be sure.
        self._margin = 4.0 * (interests + 1) * _UNIT * float(np.abs(values).max(initial=0.0))
        self._reached: Bools = np.zeros(len(values), np.bool_)

    def run(self) -> Bools:
        """Which items are in the answer."""
        interests = self._values.shape[1]
        cells = deque([(np.eye(interests), np.arange(len(self._values), dtype=np.int32), 0)])
        while cells:
            corners, items, depth = cells.popleft()
            if self._reached[items].all():
                continue
            if self._work <= 0.0 or depth >= self._deepest:
                self._reached[items] = True
                continue
            items = self._left(corners, items)
            if interests > 1 and not self._reached[items].all():
                cells += [(half, items, depth + 1) for half in _halves(corners)]
        return self._reached

    def _left(self, corners: Doubles, items: Indices) -> Indices:
        """The items that may be among the k best somewhere in a cell; those that are, at its corners, are noted."""
        self._work -= items.size * len(corners)
        scores = self._values[items] @ corners.T  # [items, corners]
        k = self._k
        if len(items) > k:
            lowest, highest = scores.min(axis=1), scores.max(axis=1)
            limit = np.partition(lowest, len(items) - k)[len(items) - k] - self._margin
            kept = highest >= limit
            items, scores, lowest = items[kept], scores[kept], lowest[kept]
        middle = scores.mean(axis=1)
        self._note(items, middle)
        if len(items) <= k:
            self._reached[items] = True
            return items
        order = np.argsort(-middle, kind="stable")
        items, scores = items[order], np.ascontiguousarray(scores[order])
        beaten = np.zeros(len(items), np.bool_)
        _mark_beaten(scores, self._reached[items], k, self._margin, beaten)
        left: Indices = items[~beaten]
        return left

    def _note(self, items: Indices, scores: Doubles) -> None:
        best = np.argpartition(-scores, self._k - 1)[: self._k] if len(items) > self._k else np.arange(len(items))
        self._reached[items[best]] = True


def _halves(corners: Doubles) -> tuple[Doubles, Doubles]:
    """A cell cut in the middle of its longest edge."""
    lengths = ((corners[:, np.newaxis] - corners) ** 2).sum(axis=2)
    one, other = np.unravel_index(int(np.argmax(lengths)), lengths.shape)
    first, second = corners.copy(), corners.copy()
    first[one] = second[other] = (corners[one] + corners[other]) / 2.0
    return first, second


@exact_jit
def _mark_beaten(scores: Doubles, known: Bools, k: int, margin: float, beaten: Bools) -> None:
    """Mark items, best in the middle first, that k others are better than at every corner, by a margin.

    An item that is reached anyway is not looked at; one that is beaten has k before it that beat whatever it beats.
    """
    count, corners = scores.shape
    for item in range(k, count):
        if known[item]:
            continue
        better = 0
        for other in range(item):
            if beaten[other]:
                continue
            wins = True
            for corner in range(corners):
                if scores[other, corner] <= scores[item, corner] + margin:
                    wins = False
                    break
            if wins:
                better += 1
                if better == k:
                    beaten[item] = True
                    break
