"""Random choices keyed by (seed, purpose, user): what one user gets does not depend on who else is there."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from veilrec._arrays import Bools, Indices, Offsets
from veilrec._csr import Csr
from veilrec._draws import below, stream, word
from veilrec._jit import jit


class Purpose(IntEnum):
    """What a choice is for: streams apart from each other and from those of `veilrec._draws`."""

    TEST_NEGATIVES = 101
    VALID_NEGATIVES = 102
    TEST_ITEMS = 103
    VALID_ITEMS = 104
    TEST_USERS = 105
    VALID_IMPRESSIONS = 106


def draw_unused(used: Csr, users: Offsets, n_items: int, count: int, seed: int, purpose: int) -> Indices:
    """For row i, `count` distinct items outside `used.row(i)`, uniformly; [len(used), count].

    The items of a row of `used` are distinct and leave at least `count`; `users[i]` keys the draws of row i.
    """
    drawn = np.empty((len(used), count), np.int32)
    _draw_unused(used.offsets, used.items, users, n_items, seed, purpose, drawn)
    return drawn


def mark_some(offsets: Offsets, counts: Offsets, seed: int, purpose: int) -> Bools:
    """Mark `counts[r]` entries of row r, chosen uniformly without replacement and keyed by r."""
    marked = np.zeros(offsets[-1], np.bool_)
    _mark_some(offsets, counts, seed, purpose, marked)
    return marked


@jit
def _draw_unused(
    offsets: Offsets, items: Indices, users: Offsets, n_items: int, seed: int, purpose: int, drawn: Indices
) -> None:
    count = drawn.shape[1]
    for r in range(len(users)):
        used = np.sort(items[offsets[r] : offsets[r + 1]])
        start = stream(seed, purpose, 0, users[r])
        # Floyd's sample of distinct ranks among the unused items.
        for i in range(count):
            last = n_items - len(used) - count + i
            rank = below(word(start, i), last + 1)
            for j in range(i):
                if drawn[r, j] == rank:
                    rank = last
                    break
            drawn[r, i] = rank
        # The unused item of rank q is q + (how many used items come before it).
        for i in range(count):
            low, high = 0, len(used)
            while low < high:
                middle = (low + high) // 2
                if used[middle] - middle > drawn[r, i]:
                    high = middle
                else:
                    low = middle + 1
            drawn[r, i] += low


@jit
def _mark_some(offsets: Offsets, counts: Offsets, seed: int, purpose: int, marked: Bools) -> None:
    for r in range(len(counts)):
        start = stream(seed, purpose, 0, r)
        wanted = counts[r]
        for entry in range(offsets[r], offsets[r + 1]):
            # Selection sampling (Knuth, TAOCP 2, 3.4.2, algorithm S).
            left = offsets[r + 1] - entry
            if below(word(start, entry - offsets[r]), left) < wanted:
                marked[entry] = True
                wanted -= 1
