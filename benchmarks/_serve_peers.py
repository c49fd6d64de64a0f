"""Others who find the best items: scans of everything, by ourselves, numpy and faiss, and a graph, by hnswlib."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from veilrec.core.arrays import Floats, Offsets
from veilrec.core.jit import exact_jit
from veilrec.serving.index.blocks import best_of, insert, scores_of

Ask = Callable[[Floats], Any]  # weights of the interests -> rows of the best items
PEERS = {"faiss": "faiss-cpu", "hnswlib": "hnswlib"}  # modules, and the packages that they come in
EF = (16, 64, 256, 1024)  # of hnswlib: how many items it keeps in sight
_LINKS, _EF_WHEN_BUILT = 16, 80
_AT_ONCE = 512  # items of a flat scan whose scores are held at a time


def missing() -> list[str]:
    """How to get the peers that are not here."""
    return [
        f"{package} is not installed, and left out: pip install -c constraints-bench.txt {package}"
        for module, package in PEERS.items()
        if find_spec(module) is None
    ]


def flat_scan(values: Floats, k: int) -> Ask:
    """All scores in one pass over columns, the best kept on the way; compiled."""
    columns = np.ascontiguousarray(values.T)

    def ask(weights: Floats) -> Offsets:
        scores, rows = np.empty(k, np.float32), np.empty(k, np.int64)
        return rows[: _scan(weights, columns, scores, rows)]

    return ask


@exact_jit
def _scan(weights: Floats, columns: Floats, best_scores: Floats, best_rows: Offsets) -> int:
    interests, count = columns.shape
    scores = np.empty(_AT_ONCE, np.float32)
    found, k = 0, len(best_scores)
    limit = np.float32(-np.inf)
    for begin in range(0, count, _AT_ONCE):
        some = min(_AT_ONCE, count - begin)
        for i in range(some):
            scores[i] = weights[0] * columns[0, begin + i]
        for b in range(1, interests):
            for i in range(some):
                scores[i] = scores[i] + weights[b] * columns[b, begin + i]
        hits = 0
        for i in range(some):
            hits += 1 if scores[i] >= limit else 0
        if hits == 0:
            continue
        for i in range(some):
            if scores[i] >= limit:
                found = insert(scores[i], begin + i, best_scores, best_rows, found)
                if found == k:
                    limit = best_scores[k - 1]
    return found


def numpy_scan(values: Floats, k: int) -> Ask:
    """The oracle: all scores, then the best of them."""
    return lambda weights: best_of(scores_of(values, weights), k)


def faiss_flat(vectors: Floats, interests: Floats, k: int) -> Ask:
    """IndexFlatIP on whole vectors."""
    import faiss

    faiss.omp_set_num_threads(1)
    index: Any = faiss.IndexFlatIP(vectors.shape[1])
    for begin in range(0, len(vectors), 100_000):
        index.add(vectors[begin : begin + 100_000])
    return lambda weights: index.search((weights @ interests)[np.newaxis], k)[1][0]


class Graph:
    """hnswlib on whole vectors, by inner product."""

    def __init__(self, vectors: Floats, interests: Floats, k: int) -> None:
        import hnswlib

        self._interests, self._k = interests, k
        self._index: Any = hnswlib.Index(space="ip", dim=vectors.shape[1])
        self._index.init_index(len(vectors), M=_LINKS, ef_construction=_EF_WHEN_BUILT)
        self._index.add_items(vectors, num_threads=os.cpu_count() or 1)
        self._index.set_num_threads(1)

    def ask(self, ef: int) -> Ask:
        """With so many items in sight."""

        def ask(weights: Floats) -> Any:
            self._index.set_ef(ef)
            return self._index.knn_query((weights @ self._interests)[np.newaxis], self._k)[0][0]

        return ask
