"""Scores that are a product of a user's and an item's vector."""

from __future__ import annotations

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._jit import jit


class FactorScores:
    """score(u, i) = users[u] . items[i]."""

    def __init__(self, users: Floats, items: Floats) -> None:
        self.users = users
        self.items = items
        self.n_items = len(items)

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        scores: Floats = self.users[users] @ self.items.T
        return scores

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""
        out = np.empty(items.shape, np.float32)
        _score_some(self.users, self.items, np.ascontiguousarray(users), np.ascontiguousarray(items), out)
        return out


@jit
def _score_some(user_rows: Floats, item_rows: Floats, users: Offsets, items: Indices, out: Floats) -> None:
    for case in range(items.shape[0]):
        user = user_rows[users[case]]
        for j in range(items.shape[1]):
            item = item_rows[items[case, j]]
            score = np.float32(0.0)
            for q in range(len(user)):
                score += user[q] * item[q]
            out[case, j] = score
