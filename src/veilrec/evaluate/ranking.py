"""Places in a ranking: 1 + the items that score better + half of the other items that score the same."""

from __future__ import annotations

import numpy as np

from veilrec._arrays import Bytes, Doubles, Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec._jit import jit


def ranks_of_first(scores: Floats) -> Doubles:
    """The place of column 0 in every row of [T, C]."""
    first, others = scores[:, :1], scores[:, 1:]
    better = np.count_nonzero(others > first, axis=1)
    tied = np.count_nonzero(others == first, axis=1)
    ranks: Doubles = 1.0 + better + 0.5 * tied
    return ranks


def ranks_among_all(scores: Floats, positives: Csr, excluded: Csr, *, one_by_one: bool) -> Doubles:
    """The place of every positive among all items but the excluded ones, aligned with `positives.items`.

    `scores` is [T, items]; row r of `positives` and `excluded` (disjoint, distinct) belongs to row r of it.
    `one_by_one` ranks each positive without the other positives of its row.
    """
    ranks = np.empty(len(positives.items), np.float64)
    _rank_among_all(scores, positives.offsets, positives.items, excluded.offsets, excluded.items, one_by_one, ranks)
    return ranks


def ranks_in_lists(scores: Floats, offsets: Offsets, wanted: Bytes) -> Doubles:
    """The place of every wanted entry within its own list, in order; lists lie end to end in `scores`."""
    ranks = np.empty(np.count_nonzero(wanted), np.float64)
    _rank_in_lists(scores, offsets, wanted, ranks)
    return ranks


@jit
def _rank_among_all(
    scores: Floats,
    positive_offsets: Offsets,
    positives: Indices,
    excluded_offsets: Offsets,
    excluded: Indices,
    one_by_one: bool,
    ranks: Doubles,
) -> None:
    for r in range(len(scores)):
        row = scores[r]
        rivals_out = excluded[excluded_offsets[r] : excluded_offsets[r + 1]]
        own = positives[positive_offsets[r] : positive_offsets[r + 1]]
        for p in range(positive_offsets[r], positive_offsets[r + 1]):
            score = row[positives[p]]
            better, tied = 0, 0
            for item in range(len(row)):
                better += row[item] > score
                tied += row[item] == score
            for item in rivals_out:
                better -= row[item] > score
                tied -= row[item] == score
            if one_by_one:
                for item in own:
                    better -= row[item] > score
                    tied -= row[item] == score
            else:
                tied -= 1  # the positive itself
            ranks[p] = 1.0 + better + 0.5 * tied


@jit
def _rank_in_lists(scores: Floats, offsets: Offsets, wanted: Bytes, ranks: Doubles) -> None:
    found = 0
    for r in range(len(offsets) - 1):
        for entry in range(offsets[r], offsets[r + 1]):
            if wanted[entry]:
                better, tied = 0, -1  # the entry ties with itself
                for other in range(offsets[r], offsets[r + 1]):
                    better += scores[other] > scores[entry]
                    tied += scores[other] == scores[entry]
                ranks[found] = 1.0 + better + 0.5 * tied
                found += 1
