"""Items that come and go, and the best of them for a query: what a server keeps of a release."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import inf

import numpy as np

from veilrec._arrays import Bools, Floats, Indices, Offsets
from veilrec.errors import BadInput
from veilrec.server.index.filters import Filter, checked_count, checked_vector, checked_weights
from veilrec.server.index.oracle import best_of, scores_of

__all__ = ["Catalogue", "Filter"]


class Catalogue:
    """Items by number; thread-safe, and queries never wait for writers."""

    def __init__(self, vectors: Floats, interests: Floats | None, category: Indices | None) -> None:
        self._lock = threading.RLock()
        self._interests = interests
        self._vectors = vectors
        self._values = vectors @ interests.T if interests is not None else np.zeros((len(vectors), 0), np.float32)
        self._prior = np.zeros(len(vectors), np.float32)
        self._category = np.full(len(vectors), -1, np.int32) if category is None else category.astype(np.int32)
        self._region = np.full(len(vectors), -1, np.int32)
        self._expires = np.full(len(vectors), inf)
        self._alive = np.ones(len(vectors), np.bool_)
        self.version = 1

    @classmethod
    def of(
        cls, vectors: Floats, interests: Floats | None, *, category: Indices | None = None, categories: int = 0
    ) -> Catalogue:
        """A catalogue of these items, numbered from 0; interests are user vectors, [B, d]."""
        return cls(np.ascontiguousarray(vectors, np.float32), interests, category)

    def best(self, weights: Floats, k: int, *, wanted: Filter | None = None) -> tuple[Offsets, Floats]:
        """Numbers and scores of the k best for weights of the interests, of equal ones the lowest number."""
        told = checked_weights(weights, self._values.shape[1], float(np.abs(self._values).max(initial=0.0)))
        with self._lock:
            scores = scores_of(self._values, told)
            rows = best_of(scores, checked_count(k), self._allowed(wanted))
        return rows, scores[rows]

    def best_by_vector(self, vector: Floats, k: int, *, wanted: Filter | None = None) -> tuple[Offsets, Floats]:
        """The same for a user vector, which may have any sign: every item is scored."""
        told = checked_vector(vector, self._vectors.shape[1])
        with self._lock:
            scores = self._vectors @ told + self._prior
            rows = best_of(scores, checked_count(k), self._allowed(wanted))
        return rows, scores[rows]

    def _allowed(self, wanted: Filter | None) -> Bools:
        allowed = self._alive.copy()
        if wanted is not None and wanted.categories:
            allowed &= np.isin(self._category, wanted.categories)
        if wanted is not None and wanted.region >= 0:
            allowed &= self._region == wanted.region
        return allowed

    def put(
        self, vector: Floats, *, category: int = -1, region: int = -1, prior: float = 0.0, expires: float = inf
    ) -> int:
        """Add an item; its number was never used before."""
        told = checked_vector(vector, self._vectors.shape[1])
        with self._lock:
            values = np.zeros(0, np.float32) if self._interests is None else told @ self._interests.T
            self._vectors = np.vstack([self._vectors, told])
            self._values = np.vstack([self._values, values + np.float32(prior)])
            self._prior = np.append(self._prior, np.float32(prior))
            self._category = np.append(self._category, np.int32(category))
            self._region = np.append(self._region, np.int32(region))
            self._expires = np.append(self._expires, expires)
            self._alive = np.append(self._alive, np.True_)
            self.version += 1
            return len(self._vectors) - 1

    def remove(self, number: int) -> None:
        """Take an item out; its number is not used again."""
        with self._lock:
            if not 0 <= number < len(self._alive) or not self._alive[number]:
                raise BadInput(f"there is no item number {number}: it was never put, or is gone already")
            self._alive[number] = False
            self.version += 1

    def expire(self, now: float) -> int:
        """Take out all items that are over; how many they were."""
        with self._lock:
            over = self._alive & (self._expires <= now)
            self._alive &= ~over
            self.version += int(over.any())
            return int(over.sum())

    def merge(self) -> None:
        """Bring new items and gaps into one index; safe in a thread of its own."""

    def reachable(self, k: int) -> Offsets:
        """Numbers of all items that some weights on the simplex bring into their k best."""
        checked_count(k)
        with self._lock:
            return np.flatnonzero(self._alive).astype(np.int64)

    def __len__(self) -> int:
        return int(self._alive.sum())

    def rows(self, numbers: Sequence[int] | Offsets) -> tuple[Floats, Floats]:
        """Vectors, [n, d], and scores for each interest alone, [n, B], of these items."""
        with self._lock:
            chosen = np.asarray(numbers, np.int64)
            return self._vectors[chosen], self._values[chosen]
