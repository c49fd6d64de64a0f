"""From places to metrics.

A place (ranking.py) is a half-integer where scores tie. An item is within the first k if its place is at most
k, and its gain there is 1 / log2(1 + place), fractions included. A model that gives every item the same score
puts all in the middle and so hits nothing unless the list is shorter than 2k.
"""

from __future__ import annotations

import numpy as np

from veilrec._arrays import Bools, Doubles, Offsets

CUTOFFS = (5, 10, 20, 30)  # k of hr@k and ndcg@k
IMPRESSION_CUTOFFS = (5, 10)  # MIND's ndcg@5 and ndcg@10


def list_metrics(ranks: Doubles, offsets: Offsets) -> dict[str, float]:
    """A case is one list with all its positives.

    hr@k: at least one of them is within k. ndcg@k: their gains, over those of the best order.
    """
    metrics = {}
    for k in CUTOFFS:
        metrics[f"hr@{k}"] = float(np.mean(_sums(ranks <= k, offsets) > 0))
        metrics[f"ndcg@{k}"] = float(np.mean(_ndcg(ranks, offsets, k)))
    return metrics


def one_by_one_metrics(ranks: Doubles, offsets: Offsets) -> dict[str, float]:
    """Every positive has a list of its own: the mean within a case, then over cases (PrivRec, eq. 10, 11)."""
    sizes = np.diff(offsets)
    metrics = {}
    for k in CUTOFFS:
        metrics[f"hr@{k}"] = float(np.mean(_sums(ranks <= k, offsets) / sizes))
        metrics[f"ndcg@{k}"] = float(np.mean(_sums(_gains(ranks, k), offsets) / sizes))
    return metrics


def impression_metrics(ranks: Doubles, offsets: Offsets, shown: Offsets) -> dict[str, float]:
    """MIND's metrics: per impression, then the mean.

    `ranks` are the places of the clicks, packed by impression; `shown` are the lengths of the impressions.
    Each has at least one click and one item that was not clicked.
    """
    clicks = np.diff(offsets)
    # Mann-Whitney: the places beyond 1, 2, ... clicks count the pairs in the wrong order, ties as a half.
    wrong_pairs = _sums(ranks, offsets) - clicks * (clicks + 1) / 2
    metrics = {
        "auc": float(np.mean(1.0 - wrong_pairs / (clicks * (shown - clicks)))),
        "mrr": float(np.mean(_sums(1.0 / ranks, offsets) / clicks)),
    }
    for k in IMPRESSION_CUTOFFS:
        metrics[f"ndcg@{k}"] = float(np.mean(_ndcg(ranks, offsets, k)))
    return metrics


def _ndcg(ranks: Doubles, offsets: Offsets, k: int) -> Doubles:
    best = np.concatenate([[0.0], np.cumsum(_gains(np.arange(1.0, k + 1), k))])
    ndcg: Doubles = _sums(_gains(ranks, k), offsets) / best[np.minimum(np.diff(offsets), k)]
    return np.minimum(ndcg, 1.0)  # more than k positives that tie at a place within k would gain more than the best


def _gains(ranks: Doubles, k: int) -> Doubles:
    return np.where(ranks <= k, 1.0 / np.log2(1.0 + ranks), 0.0)


def _sums(values: Doubles | Bools, offsets: Offsets) -> Doubles:
    """Sums within rows, none of which is empty."""
    sums: Doubles = np.add.reduceat(values, offsets[:-1], dtype=np.float64)
    return sums
