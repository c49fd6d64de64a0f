"""The test that works for any mechanism: a threshold on a score, found on one half of the draws, tried on the other."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from veilrec._arrays import Doubles, Offsets
from veilrec.privacy.audit.bounds import epsilon_from_counts

_CANDIDATES = 100  # thresholds that are looked at
_SEEN = 100_000  # draws that propose thresholds


@dataclass(frozen=True)
class Threshold:
    """The event that a score passes a value, and under which input it is to be the likelier one."""

    value: float
    above: bool
    first_is_likelier: bool

    def count(self, scores: Doubles) -> int:
        """How many draws have the event."""
        return int(np.count_nonzero(scores >= self.value if self.above else scores < self.value))


def epsilon_from_scores(first: Doubles, second: Doubles, *, delta: float, alpha: float) -> float:
    """Epsilon from below: `first` and `second` are scores of outputs under the two inputs, in the order of drawing.

    Both directions and all thresholds are looked at on the first halves only, so the second halves carry one test.
    """
    half, other_half = len(first) // 2, len(second) // 2
    event = best_threshold(first[:half], second[:other_half], delta=delta, alpha=alpha)
    likely, unlikely = first[half:], second[other_half:]
    if not event.first_is_likelier:
        likely, unlikely = unlikely, likely
    return epsilon_from_counts(
        event.count(likely), len(likely), event.count(unlikely), len(unlikely), delta=delta, alpha=alpha
    )


def best_threshold(first: Doubles, second: Doubles, *, delta: float, alpha: float) -> Threshold:
    """The event that proves the most on these draws."""
    values = _candidates(np.concatenate((first[:_SEEN], second[:_SEEN])))
    best, proven = Threshold(float(values[0]), above=True, first_is_likelier=True), 0.0
    below = _counts_below(values, first), _counts_below(values, second)
    for above, first_is_likelier in product((True, False), repeat=2):
        one, other = (len(first) - below[0], len(second) - below[1]) if above else below
        hits, others = (one, other) if first_is_likelier else (other, one)
        likely, unlikely = (first, second) if first_is_likelier else (second, first)
        for at in np.flatnonzero(hits * len(unlikely) > others * len(likely)):
            bound = epsilon_from_counts(
                int(hits[at]), len(likely), int(others[at]), len(unlikely), delta=delta, alpha=alpha
            )
            if bound > proven:
                best, proven = Threshold(float(values[at]), above, first_is_likelier), bound
    return best


def _candidates(scores: Doubles) -> Doubles:
    """Values between scores, denser in the tails; between two scores, so that equal scores stay together."""
    distinct = np.unique(scores)
    between = (distinct[1:] + distinct[:-1]) / 2 if len(distinct) > 1 else distinct
    if len(between) <= _CANDIDATES:
        return between
    tails = np.geomspace(1e-5, 0.5, _CANDIDATES // 2)
    at = np.quantile(scores, np.concatenate((tails, 1.0 - tails)))
    # Many draws may have the very same score: step to both sides of it.
    return np.unique(np.concatenate((np.nextafter(at, -np.inf), np.nextafter(at, np.inf))))


def _counts_below(values: Doubles, scores: Doubles) -> Offsets:
    """How many scores lie below each of the ascending values; no need to sort them all."""
    first_above = np.searchsorted(values, scores, side="right")
    return np.asarray(np.cumsum(np.bincount(first_above, minlength=len(values)))[: len(values)], np.int64)
