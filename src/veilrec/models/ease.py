"""EASE: a linear model of the history with a closed form.

H. Steck, Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019: with the Gram matrix G = X^T X of the
used items and P = (G + ridge I)^-1, the weights are B_ij = -P_ij / P_jj and B_jj = 0.
"""

from __future__ import annotations

import numpy as np

from veilrec._arrays import Doubles, Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec._jit import jit
from veilrec.errors import BadInput


def ease_weights(histories: Csr, n_items: int, ridge: float) -> Floats:
    """B, [items, items]; holds one matrix of float64 and one of float32 at most."""
    from scipy.linalg import lapack  # a quarter of a second that ranking does without

    gram = np.zeros((n_items, n_items), order="F")
    _add_gram(histories.offsets, histories.items, gram)
    np.einsum("ii->i", gram)[:] += ridge
    # In place, and only the lower triangle: a third of the work of a general inverse.
    factor, failed = lapack.dpotrf(gram, lower=1, overwrite_a=1, clean=0)
    if failed:
        raise BadInput(f"ridge is {ridge:g}, too small for this data: the item matrix is singular; try 100 or more")
    inverse, _ = lapack.dpotri(factor, lower=1, overwrite_c=1)
    weights = np.empty((n_items, n_items), np.float32)
    _normalise(inverse, weights)
    return weights


class EaseScorer:
    """score(u, i) = sum over the items j of the history of u of B_ji."""

    def __init__(self, weights: Floats, histories: Csr) -> None:
        self.weights = weights
        self.histories = histories
        self.n_items = len(weights)

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        chosen = self.histories.take(users)
        out = np.zeros((len(users), self.n_items), np.float32)
        _score_all(self.weights, chosen.offsets, chosen.items, out)
        return out

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""
        chosen = self.histories.take(users)
        out = np.zeros(items.shape, np.float32)
        _score_some(self.weights, chosen.offsets, chosen.items, np.ascontiguousarray(items), out)
        return out

    def fold_in(self, histories: Csr) -> EaseScorer:
        """New users: the same weights, their own histories."""
        return EaseScorer(self.weights, histories)


@jit
def _add_gram(offsets: Offsets, items: Indices, gram: Doubles) -> None:
    """Count, for every pair of items, the users who have both; the lower triangle only."""
    for user in range(len(offsets) - 1):
        own = np.sort(items[offsets[user] : offsets[user + 1]])
        for j in range(len(own)):
            for i in range(j, len(own)):
                gram[own[i], own[j]] += 1.0


@jit
def _normalise(inverse: Doubles, weights: Floats) -> None:
    n_items = len(weights)
    for j in range(n_items):
        for i in range(j, n_items):
            weights[i, j] = -inverse[i, j] / inverse[j, j]
            weights[j, i] = -inverse[i, j] / inverse[i, i]
        weights[j, j] = 0.0


@jit
def _score_all(weights: Floats, offsets: Offsets, items: Indices, out: Floats) -> None:
    for case in range(len(out)):
        for entry in range(offsets[case], offsets[case + 1]):
            row = weights[items[entry]]
            for i in range(len(row)):
                out[case, i] += row[i]


@jit
def _score_some(weights: Floats, offsets: Offsets, own: Indices, items: Indices, out: Floats) -> None:
    for case in range(items.shape[0]):
        for entry in range(offsets[case], offsets[case + 1]):
            row = weights[own[entry]]
            for j in range(items.shape[1]):
                out[case, j] += row[items[case, j]]
