"""From scores to places in a ranking, and from places to metrics.

A place is 1 + the items that score better + half of the other items that score the same: a half-integer where scores
tie. An item is within the first k if its place is at most k, and its gain there is 1 / log2(1 + place), fractions
included. A model that gives every item the same score puts all in the middle and so hits nothing unless the list is
shorter than 2k.

Since places are shared, up to 2k - 1 positives that tie can all be within k: what counts positives is bounded by its
largest value without ties.

Whether a table's nDCG can belong to its Hits, where every list has one positive.

A positive at place p counts 1 in Hits@k and 1 / log2(1 + p) in nDCG@k if p <= k. Both are means over the same lists
(or over users of means over their lists), so that what they gain from one k to the next is bounded by each other:
whatever lies between k1 and k2 has a place from k1 + 1 to k2.

Whether one method is better than another for the same users, or whether chance alone would do as much.

Two methods that are equally good could exchange their answers to a user without anybody noticing. So the differences
of each user keep or change their sign together, at random, many times over: the p-value is how often the mean
difference is then as large as the one that was seen (a permutation test for pairs; Fisher, The Design of Experiments,
1935). Nothing is assumed of how the differences are distributed, and a user with many cases counts as one user.

Where many pairs are tested, Holm's correction (A simple sequentially rejective multiple test procedure, 1979) keeps
the chance of any wrong finding at the level of one test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from typing import Literal

import numpy as np

from veilrec.core.arrays import Bools, Bytes, Doubles, Floats, Indices, Offsets
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.jit import jit

CUTOFFS = (5, 10, 20, 30)  # k of hr@k and ndcg@k
IMPRESSION_CUTOFFS = (5, 10)  # MIND's ndcg@5 and ndcg@10
# What is measured again and again during a training, and shown by default.
MAIN_OF_LISTS = tuple(f"{name}@{k}" for k in CUTOFFS for name in ("hr", "ndcg"))
MAIN_OF_IMPRESSIONS = ("auc", "mrr", *(f"ndcg@{k}" for k in IMPRESSION_CUTOFFS))


def places_of_first(scores: Floats) -> Doubles:
    """The place of column 0 in every row of [T, C]: [T]."""
    first, others = scores[:, :1], scores[:, 1:]
    better = np.count_nonzero(others > first, axis=1)
    tied = np.count_nonzero(others == first, axis=1)
    return np.asarray(1.0 + better + 0.5 * tied)


def places_among_all(scores: Floats, positives: Csr, excluded: Csr, *, one_by_one: bool) -> Doubles:
    """The place of every positive among all items but the excluded ones.

    `scores` is [T, items]; row r of `positives` and `excluded` (disjoint, distinct) belongs to row r of it.
    `one_by_one` ranks each positive without the other positives of its row.
    """
    places = np.empty(len(positives.items), np.float64)
    _rank_among_all(scores, positives.offsets, positives.items, excluded.offsets, excluded.items, one_by_one, places)
    return places


def places_in_lists(scores: Floats, offsets: Offsets, wanted: Bytes) -> Doubles:
    """The place of every wanted entry within its own list, in order.

    Lists lie end to end in `scores`.
    """
    places = np.empty(np.count_nonzero(wanted), np.float64)
    _rank_in_lists(scores, offsets, wanted, places)
    return places


@jit
def _rank_among_all(
    scores: Floats,
    positive_offsets: Offsets,
    positives: Indices,
    excluded_offsets: Offsets,
    excluded: Indices,
    one_by_one: bool,
    places: Doubles,
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
            places[p] = 1.0 + better + 0.5 * tied


@jit
def _rank_in_lists(scores: Floats, offsets: Offsets, wanted: Bytes, places: Doubles) -> None:
    found = 0
    for r in range(len(offsets) - 1):
        for entry in range(offsets[r], offsets[r + 1]):
            if wanted[entry]:
                better, tied = 0, -1  # the entry ties with itself
                for other in range(offsets[r], offsets[r + 1]):
                    better += scores[other] > scores[entry]
                    tied += scores[other] == scores[entry]
                places[found] = 1.0 + better + 0.5 * tied
                found += 1


def list_metrics(ranks: Doubles, offsets: Offsets) -> dict[str, Doubles]:
    """A case is one list with all its positives.

    hr@k: at least one of them is within k. ndcg@k: their gains, over those of the best order.
    """
    metrics = {}
    for k in CUTOFFS:
        metrics[f"hr@{k}"] = (_sums(ranks <= k, offsets) > 0).astype(np.float64)
        metrics[f"ndcg@{k}"] = _ndcg(ranks, offsets, k)
    return metrics


def one_by_one_metrics(ranks: Doubles, offsets: Offsets) -> dict[str, Doubles]:
    """Every positive has a list of its own; a case's value is the mean over them (PrivRec, eq. 10, 11)."""
    sizes = np.diff(offsets)
    metrics = {}
    for k in CUTOFFS:
        metrics[f"hr@{k}"] = _sums(ranks <= k, offsets) / sizes
        metrics[f"ndcg@{k}"] = _sums(_gains(ranks, k), offsets) / sizes
    return metrics


def impression_metrics(ranks: Doubles, offsets: Offsets, shown: Offsets) -> dict[str, Doubles]:
    """MIND's metrics, for each impression.

    `ranks` are the places of the clicks, packed by impression; `shown` are the lengths of the impressions.
    Each has at least one click and one item that was not clicked.
    """
    clicks = np.diff(offsets)
    # Mann-Whitney: the places beyond 1, 2, ... clicks count the pairs in the wrong order, ties as a half.
    wrong_pairs = _sums(ranks, offsets) - clicks * (clicks + 1) / 2
    metrics = {"auc": 1.0 - wrong_pairs / (clicks * (shown - clicks)), "mrr": _sums(1.0 / ranks, offsets) / clicks}
    for k in IMPRESSION_CUTOFFS:
        metrics[f"ndcg@{k}"] = _ndcg(ranks, offsets, k)
    return metrics


def further_metrics(ranks: Doubles, offsets: Offsets, cutoffs: Sequence[int]) -> dict[str, Doubles]:
    """For each case, a list with n positives, of which h are within k.

    recall@k: h / n. precision@k: h / k, at most 1. mrr@k: 1 / (place of the best positive) if that
    is within k, else 0. map@k: over the positives within k, the sum of (place among the positives alone) / (place
    among all), divided by min(n, k), at most 1.
    """
    sizes = np.diff(offsets)
    firsts = np.minimum.reduceat(ranks, offsets[:-1])
    precisions = _places_within(ranks, offsets) / ranks
    metrics = {}
    for k in cutoffs:
        within = ranks <= k
        hits = _sums(within, offsets)
        metrics[f"recall@{k}"] = hits / sizes
        metrics[f"precision@{k}"] = np.minimum(hits / k, 1.0)
        metrics[f"mrr@{k}"] = np.where(firsts <= k, 1.0 / firsts, 0.0)
        average = _sums(np.where(within, precisions, 0.0), offsets) / np.minimum(sizes, k)
        metrics[f"map@{k}"] = np.minimum(average, 1.0)
    return metrics


def further_one_by_one_metrics(ranks: Doubles, offsets: Offsets, cutoffs: Sequence[int]) -> dict[str, Doubles]:
    """Measure lists with one positive each (see `further_metrics`), and take the mean over those of a case."""
    lists = further_metrics(ranks, np.arange(len(ranks) + 1), cutoffs)
    return {name: _sums(values, offsets) / np.diff(offsets) for name, values in lists.items()}


def _places_within(ranks: Doubles, offsets: Offsets) -> Doubles:
    """The place of every positive among those of its own row; ties cost half a place here, too.

    The places among all tell: they are equal exactly where the scores are.
    """
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    order = np.lexsort((ranks, rows))
    new = np.ones(len(ranks) + 1, np.bool_)  # where another score or another row begins, and the end
    new[1:-1] = (np.diff(ranks[order]) != 0) | (np.diff(rows[order]) != 0)
    bounds = np.flatnonzero(new)
    middles = (bounds[:-1] + bounds[1:] - 1) / 2
    places = np.empty(len(ranks), np.float64)
    places[order] = np.repeat(middles, np.diff(bounds)) - offsets[:-1][rows[order]] + 1.0
    return places


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


Rule = Literal["hits fall", "ndcg rises too much", "ndcg rises too little", "ndcg above hits", "ndcg too low for hits"]
_EXACT = 1e-9  # what sums of rounded decimals may be off by


@dataclass(frozen=True)
class Impossible:
    """A step from one k to the next (or one k alone) that no ranking can have."""

    rule: Rule
    k: int  # where the step ends
    before: int | None  # where it begins; None for one k alone
    found: float  # what the table has
    bound: float  # the furthest that it can be, rounding included

    def __str__(self) -> str:
        where = f"@{self.k}" if self.before is None else f"@{self.before} to @{self.k}"
        side = "least" if self.found < self.bound else "most"
        return f"{self.rule}, {where}: {self.found:.4f}, at {side} {self.bound:.4f}"


def impossible(
    hits: Mapping[int, float], ndcg: Mapping[int, float], *, digits: int, half_places: bool = False
) -> list[Impossible]:
    """Every step that cannot be, of figures by k that are printed with so many decimal digits.

    With `half_places`, ties share their places, as ours do: the first place beyond k is then k + 1/2.
    """
    if set(hits) != set(ndcg) or min(hits, default=1) < 1:
        raise BadInput(f"hits are given at k = {sorted(hits)} and nDCG at {sorted(ndcg)}: give both at the same k >= 1")
    half = 0.5 * 10.0**-digits + _EXACT  # a printed figure lies so far from the true one, at most
    nearest = 0.5 if half_places else 1.0
    found = []
    for k in sorted(hits):
        found += _between(
            ndcg[k],
            ("ndcg too low for hits", (hits[k] - half) / log2(k + 1) - half),
            ("ndcg above hits", hits[k] + 2 * half),
            k,
        )
    for before, k in pairwise(sorted(hits)):
        more_hits, more_ndcg = hits[k] - hits[before], ndcg[k] - ndcg[before]
        if more_hits < -2 * half:
            found.append(Impossible("hits fall", k, before, more_hits, -2 * half))
        found += _between(
            more_ndcg,
            ("ndcg rises too little", (more_hits - 2 * half) / log2(k + 1) - 2 * half),
            ("ndcg rises too much", (more_hits + 2 * half) / log2(before + nearest + 1) + 2 * half),
            k,
            before,
        )
    return found


def _between(
    value: float, low: tuple[Rule, float], high: tuple[Rule, float], k: int, before: int | None = None
) -> list[Impossible]:
    """What is wrong with a value that has to lie between two bounds."""
    if value < low[1]:
        return [Impossible(low[0], k, before, value, low[1])]
    return [Impossible(high[0], k, before, value, high[1])] if value > high[1] else []


FLIPS = 9_999
_AT_ONCE = 1 << 23  # signs that are held at a time


def sign_flip_test(differences: Doubles, *, flips: int = FLIPS, seed: int = 0) -> Doubles:
    """Two-sided p-values, one a column, of [users, pairs]: what each user adds to the mean difference of a pair.

    The same signs serve all columns. A p-value is never below 1 / (flips + 1), and never too small: the differences as
    they are count as one of the draws.
    """
    users, pairs = differences.shape
    seen = np.abs(differences.sum(axis=0))
    edge = seen * (1.0 - 1e-12)  # sums in another order differ in their last digits
    as_large = np.zeros(pairs, np.int64)
    generator = np.random.default_rng([seed, users])
    at_once = max(1, _AT_ONCE // max(users, 1))
    for start in range(0, flips, at_once):
        count = min(at_once, flips - start)
        bits = np.unpackbits(np.frombuffer(generator.bytes(count * (users + 7) // 8 + 1), np.uint8))
        signs = bits[: count * users].reshape(count, users) * 2.0 - 1.0
        as_large += (np.abs(signs @ differences) >= edge).sum(axis=0)
    return ((1.0 + as_large) / (1.0 + flips)).astype(np.float64)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for how many there are (Holm 1979)."""
    order = np.argsort(p_values, kind="stable")
    corrected = np.empty(len(order))
    largest = 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * p_values[index]))
        corrected[index] = largest
    return [float(value) for value in corrected]
