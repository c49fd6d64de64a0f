"""SASRec without torch: the forward pass that a device ranks with (see `veilrec.methods.references.sasrec`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec.core.arrays import Csr, Floats, Indices, Offsets
from veilrec.models.scores import FactorScores

NORM_EPSILON = 1e-8  # the authors' code
ITEMS, POSITIONS = "items", "positions"
Weights = Mapping[str, NDArray[Any]]


def user_vector(weights: Weights, history: Indices) -> Floats:
    """The vector after the last item of a history, [d]; an empty one is the bias of the last norm."""
    items, positions = weights[ITEMS], weights[POSITIONS]
    latest = history[-len(positions) :]
    if not len(latest):
        empty: Floats = weights["norm.bias"]
        return empty
    width = items.shape[1]
    state = items[latest] * np.float32(math.sqrt(width)) + positions[-len(latest) :]  # [l, d]
    later = np.triu(np.full((len(latest), len(latest)), -np.inf, np.float32), 1)
    for number in range(blocks_of(weights)):
        state = _block(weights, f"blocks.{number}.", state, later)
    result: Floats = _norm(weights, "norm", state[-1:])[0]
    return result


def blocks_of(weights: Weights) -> int:
    """How many blocks these weights have."""
    return sum(name.startswith("blocks.") and name.endswith(".queries.weight") for name in weights)


def _block(weights: Weights, name: str, state: Floats, later: Floats) -> Floats:
    queries = _norm(weights, f"{name}attention_norm", state)
    q = _linear(weights, f"{name}queries", queries)
    scores = q @ _linear(weights, f"{name}keys", state).T * np.float32(1.0 / math.sqrt(state.shape[1])) + later
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    attended = scores @ _linear(weights, f"{name}values", state) / scores.sum(axis=1, keepdims=True) + queries
    normed = _norm(weights, f"{name}forward_norm", attended)
    inner = np.maximum(_linear(weights, f"{name}inner", normed), np.float32(0.0))
    result: Floats = _linear(weights, f"{name}outer", inner) + normed
    return result


def _linear(weights: Weights, name: str, values: Floats) -> Floats:
    result: Floats = values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return result


def _norm(weights: Weights, name: str, values: Floats) -> Floats:
    centred = values - values.mean(axis=1, keepdims=True)
    spread = np.sqrt((centred * centred).mean(axis=1, keepdims=True) + np.float32(NORM_EPSILON))
    result: Floats = centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return result


class SasRecScorer:
    """score(u, i) = the vector of u after the last item, times that of i; a user is a history in the order of time."""

    def __init__(self, weights: Weights, histories: Csr) -> None:
        self.weights, self.histories = weights, histories
        self.n_items = len(weights[ITEMS])

    def _scores(self, users: Offsets) -> FactorScores:
        vectors = np.empty((len(users), self.weights[ITEMS].shape[1]), np.float32)
        for place, user in enumerate(users):
            vectors[place] = user_vector(self.weights, self.histories.row(int(user)))
        return FactorScores(vectors, self.weights[ITEMS])

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        return self._scores(users).score_all(np.arange(len(users)))

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""
        return self._scores(users).score_some(np.arange(len(users)), items)

    def fold_in(self, histories: Csr) -> SasRecScorer:
        """New users: the same weights, their own histories."""
        return SasRecScorer(self.weights, histories)
