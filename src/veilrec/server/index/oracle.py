"""What the right answer is, in numpy: the definition that every faster way is tested against."""

from __future__ import annotations

import numpy as np

from veilrec._arrays import Bools, Floats, Offsets


def scores_of(values: Floats, weights: Floats) -> Floats:
    """[items, B] -> [items]: products added up in the order of the interests, every step rounded to float32."""
    total: Floats = values[:, 0] * weights[0]
    for b in range(1, len(weights)):
        total = total + values[:, b] * weights[b]
    return total


def best_of(scores: Floats, k: int, allowed: Bools | None = None) -> Offsets:
    """The rows of the k highest scores, best first, of equal ones the lowest row; fewer where fewer are allowed."""
    rows = np.arange(len(scores)) if allowed is None else np.flatnonzero(allowed)
    worse = -scores[rows]
    if k < len(rows):
        last = np.partition(worse, k - 1)[k - 1]
        kept = worse <= last  # at least k: those that tie with the last one, too
        rows, worse = rows[kept], worse[kept]
    best: Offsets = rows[np.argsort(worse, kind="stable")[:k]].astype(np.int64)
    return best
