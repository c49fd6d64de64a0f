"""Answer private queries: reconstruct user vectors, score news, select the best.

All of it is post-processing: it uses the query and the model and news, which are public, and no user's data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from veilrec.core.arrays import Bools, Doubles, Floats, Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.jit import jit
from veilrec.models.scores import best_first
from veilrec.privacy.mechanisms.attention import Normalisation, normalise

_SCORES_AT_ONCE = 1 << 22  # 16 MB of float32


class Reconstruction(Protocol):
    """From the numbers of queries to vectors that score news."""

    def users(self, told: Floats) -> Floats:
        """[queries, numbers] -> [queries, dim]."""


@dataclass(frozen=True)
class AsTold:
    """The query is a user vector."""

    def users(self, told: Floats) -> Floats:
        """The vectors themselves."""
        return told


@dataclass(frozen=True)
class FromAttention:
    """PrivateRec's reconstructor: noisy attention back on the simplex, then the sum of basis vectors (Algorithm 1)."""

    interests: Floats  # [B, dim], the user vector of each interest alone
    how: Normalisation

    def users(self, told: Floats) -> Floats:
        """[queries, B] -> [queries, dim]; uniform attention where noise left nothing above 0."""
        return (normalise(told.astype(np.float64), self.how) @ self.interests.astype(np.float64)).astype(np.float32)


@dataclass(frozen=True)
class FromPooled:
    """The user vector that is expected of a pooled vector: a linear function, known from news alone."""

    slope: Doubles  # [k, dim]
    mean: Doubles  # [dim]: expected user vector without a query
    told_mean: Doubles  # [k]

    def users(self, told: Floats) -> Floats:
        """[queries, k] or, with plaintext clicks appended, [queries, 2 k] -> [queries, dim]."""
        width = len(self.told_mean)
        all_told = told.astype(np.float64).reshape(len(told), -1, width).sum(axis=1)
        expected: Doubles = (all_told - self.told_mean) @ self.slope + self.mean
        return expected.astype(np.float32)


@dataclass(frozen=True)
class FromInterest:
    """The mean of the interests, weighed by how likely each is the true one after one was told."""

    interests: Floats  # [B, dim]
    keep: float  # probability that the told interest is the true one

    @property
    def chances(self) -> Doubles:
        """How likely each interest is the true one after one was told: [told, true]."""
        count = len(self.interests)
        lie = (1.0 - self.keep) / max(1, count - 1)
        return np.full((count, count), lie) + (self.keep - lie) * np.eye(count)

    def users(self, told: Floats) -> Floats:
        """[queries, 1] -> [queries, dim]."""
        expected = self.chances @ self.interests.astype(np.float64)
        found: Floats = expected.astype(np.float32)[told[:, 0].astype(np.int64)]
        return found


def best_of(users: Floats, news: Floats, k: int) -> Indices:
    """The k news of the highest scores, best first, of equal ones the first: [users, k]."""
    if not 1 <= k <= len(news):
        raise BadInput(f"{k} of {len(news)} news: ask for 1 to {len(news)}")
    best = np.empty((len(users), k), np.int32)
    for part in _parts(len(users), len(news)):
        best[part] = best_first(-(users[part] @ news.T), k)
    return best


def marked(best: Indices, n_items: int) -> Bools:
    """Mark the items of each list: [lists, items]."""
    marks = np.zeros((len(best), n_items), np.bool_)
    np.put_along_axis(marks, best.astype(np.int64), True, axis=1)
    return marks


def scores_in_lists(users: Floats, news: Floats, row_of: Offsets, lists: Csr) -> Floats:
    """Scores of what each list shows, for the user `row_of` the list; they lie end to end like the lists."""
    scores = np.empty(len(lists.items), np.float32)
    _dot(users, news, row_of, lists.offsets, lists.items, scores)
    return scores


def _parts(rows: int, width: int) -> Iterator[slice]:
    size = max(1, _SCORES_AT_ONCE // width)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


@jit
def _dot(users: Floats, news: Floats, row_of: Offsets, offsets: Offsets, items: Indices, scores: Floats) -> None:
    dim = users.shape[1]
    for row in range(len(row_of)):
        user = users[row_of[row]]
        for entry in range(offsets[row], offsets[row + 1]):
            vector = news[items[entry]]
            total = np.float32(0.0)
            for q in range(dim):
                total += user[q] * vector[q]
            scores[entry] = total
