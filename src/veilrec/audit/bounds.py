"""Lower bounds on epsilon from draws of a mechanism.

If an event has probability p under one input and q under an adjacent one, an (epsilon, delta)-DP mechanism satisfies
p <= e^epsilon q + delta. Counts bound p from below and q from above, and so epsilon from below. Counting alone cannot
show an epsilon above about 10 with a feasible number of draws; the other tests use knowledge about the noise (Gaussian
shape, density, independent coordinates, all probabilities), and test that knowledge where they can.

    Clopper-Pearson counts       any mechanism
    mu from two error rates      Gaussian noise (Nasr et al. 2023)
    hockey-stick divergence      known log-likelihood ratio (Maurer and Pontil 2009)
    guesses from one run         many independent bits (Steinke, Nasr and Jagielski 2023)
    enumeration                  discrete mechanisms, exact
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy.special import bdtr, betaincinv, chdtrc, expit, ndtr, ndtri
from scipy.stats import binom

from veilrec.core.arrays import Doubles, Offsets
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.accounting.gaussian import epsilon_gaussian, smallest
from veilrec.privacy.events import SampledEvent

_CANDIDATES = 100  # thresholds that are looked at
_SEEN = 100_000  # draws that propose thresholds
_TRIED = 2_000_000  # numbers in the trial of independence
ENOUGH = 10  # sightings on one side
_CHOOSING = 10  # one of so many draws finds the threshold, the others measure its errors
_BINS = 20


# Counts of one event (Clopper-Pearson), and how much they can prove at most.


def at_least(hits: float, trials: float, alpha: float) -> float:
    """Lower Clopper-Pearson limit of a probability at error `alpha`."""
    return float(betaincinv(hits, trials - hits + 1, alpha)) if hits > 0 else 0.0


def at_most(hits: float, trials: float, alpha: float) -> float:
    """Upper Clopper-Pearson limit of a probability at error `alpha`."""
    return float(betaincinv(hits + 1, trials - hits, 1.0 - alpha)) if hits < trials else 1.0


def epsilon_from_counts(
    hits: int, trials: int, other_hits: int, other_trials: int, *, delta: float, alpha: float
) -> float:
    """Epsilon from below, wrong with probability `alpha`: ln((p_low - delta) / q_up), and 0 where nothing is proven."""
    low = at_least(hits, trials, alpha / 2) - delta
    high = at_most(other_hits, other_trials, alpha / 2)
    return math.log(low / high) if low > high else 0.0


def reach(trials: int, *, alpha: float, delta: float = 0.0) -> float:
    """The bound from `trials` draws a side of an event with probability 1/2 under one input and 0 under the other."""
    return epsilon_from_counts(trials // 2, trials, 0, trials, delta=delta, alpha=alpha)


# The test that works for any mechanism: a threshold on a score, found on one half of the draws, tried on the other.


@dataclass(frozen=True)
class ThresholdEvent:
    """The event that a score passes a threshold, and under which input it is the likelier one."""

    value: float
    above: bool
    first_is_likelier: bool

    def count(self, scores: Doubles) -> int:
        """Count the draws that have the event."""
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


def best_threshold(first: Doubles, second: Doubles, *, delta: float, alpha: float) -> ThresholdEvent:
    """Find the threshold event with the largest bound on these draws."""
    values = _candidates(np.concatenate((first[:_SEEN], second[:_SEEN])))
    best, proven = ThresholdEvent(float(values[0]), above=True, first_is_likelier=True), 0.0
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
                best, proven = ThresholdEvent(float(values[at]), above, first_is_likelier), bound
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


# The test for noise on many coordinates: each moves a little, and all of them together a lot. The outputs that tell the
# most have every coordinate beyond a threshold, and nobody ever sees 30 of them do that at once. But where each
# coordinate has noise of its own, such an event has probability p^k under one input and q^k under the other, and p and
# q are estimated from all coordinates of all draws. Their independence is tested.


def epsilon_from_coordinates(first: Doubles, second: Doubles, *, alpha: float) -> float:
    """Pure epsilon from below: k ln(p / q), from a score for each of k coordinates of every draw, `[n, k]`."""
    return int(first.shape[1]) * epsilon_from_scores(first.ravel(), second.ravel(), delta=0.0, alpha=alpha)


def independence_p_value(scores: Doubles) -> float:
    """How surprising the scores `[n, k]` are if neighbouring coordinates say nothing about each other."""
    signs = scores[: _TRIED // scores.shape[1]] > np.median(scores[:1000])
    centred = signs - signs.mean(axis=0)
    spread = centred.std(axis=0)
    products = centred[:, 1:] * centred[:, :-1] / np.maximum(spread[1:] * spread[:-1], 1e-12)
    statistic = float(products.sum()) / math.sqrt(products.size)
    return float(2.0 * ndtr(-abs(statistic)))


# The test for what no noise hides: something that one input can send and the other cannot.


def separated(hits: int, other_hits: int, trials: int, *, delta: float, alpha: float) -> bool:
    """Whether an event was seen often (and beyond delta) under one input and never under the other.

    For events of the support only: which entries are there, which digits a number can have, what a set holds. A sound
    mechanism gives every input the same support, so no epsilon, however large, is claimed for what fails here. It is
    not for thresholds on a likelihood: there a sound mechanism of epsilon 10 shows 10 against 0 all the time.
    """
    if min(hits, other_hits) > 0:
        return False
    seen = max(hits, other_hits)
    return seen >= ENOUGH and at_least(seen, trials, alpha) > delta


# The test for Gaussian noise (Nasr and others 2023): two error rates give mu, and mu gives epsilon at any delta. A
# Gaussian mechanism has a known trade-off between the two errors of any test, so one point of it is enough.


def mu_from_errors(false_alarms: int, trials: int, misses: int, other_trials: int, *, alpha: float) -> float:
    """mu = sensitivity / sigma from below: Phi^-1(1 - FPR_up) - Phi^-1(FNR_up)."""
    false_alarm_rate = at_most(false_alarms, trials, alpha / 2)
    miss_rate = at_most(misses, other_trials, alpha / 2)
    if false_alarm_rate >= 1.0 or miss_rate >= 1.0:
        return 0.0
    return max(0.0, float(-ndtri(false_alarm_rate) - ndtri(miss_rate)))


def mu_from_advantage(
    false_alarms: int, trials: int, misses: int, other_trials: int, *, rate: float, alpha: float
) -> float:
    """mu from below where the person is part of the message only with probability `rate`: rate (2 Phi(mu / 2) - 1)
    is the largest advantage, 1 - FPR - FNR, that any test has.
    """
    errors = at_most(false_alarms, trials, alpha / 2) + at_most(misses, other_trials, alpha / 2)
    advantage = (1.0 - errors) / rate
    if advantage >= 1.0:
        raise ValueError(f"an advantage of {1.0 - errors} is beyond the rate {rate}: the message is not sampled so")
    return 2.0 * float(ndtri((1.0 + advantage) / 2)) if advantage > 0.0 else 0.0


def epsilon_from_gaussian_scores(first: Doubles, second: Doubles, *, delta: float, alpha: float) -> float:
    """Epsilon from below at delta, given that the noise is Gaussian; high scores speak for the first input."""
    part, other_part = len(first) // _CHOOSING, len(second) // _CHOOSING
    # Halfway between the means both errors are equal, which is where counts pin mu down best.
    threshold = float(np.mean(first[:part]) + np.mean(second[:other_part])) / 2
    mu = mu_from_errors(*_errors(first[part:], second[other_part:], threshold), alpha=alpha)
    return epsilon_gaussian(mu, delta) if mu > 0.0 else 0.0


def epsilon_from_sampled_scores(
    first: Doubles, second: Doubles, *, event: SampledEvent, delta: float, alpha: float
) -> float:
    """Lower bound on epsilon for Gaussian noise when the person is sampled into the message as `event` describes.

    The scores give mu; `event` with that mu gives epsilon at delta.
    """
    part, other_part = len(first) // _CHOOSING, len(second) // _CHOOSING
    chosen, other_chosen = np.sort(first[:part]), np.sort(second[:other_part])
    values = np.quantile(np.concatenate((chosen, other_chosen)), np.linspace(0.02, 0.98, 49))
    advantages = np.searchsorted(other_chosen, values) / other_part - np.searchsorted(chosen, values) / part
    threshold = float(values[np.argmax(advantages)])
    mu = mu_from_advantage(*_errors(first[part:], second[other_part:], threshold), rate=event.rate, alpha=alpha)
    return epsilon_of(replace(event, mu=mu), delta) if mu > 0.0 else 0.0


def _errors(first: Doubles, second: Doubles, threshold: float) -> tuple[int, int, int, int]:
    """(false positives, negatives, false negatives, positives) when scores above the threshold mean the first input."""
    return (
        int(np.count_nonzero(second > threshold)),
        len(second),
        int(np.count_nonzero(first <= threshold)),
        len(first),
    )


# The white-box test: delta(epsilon) as a mean over log-likelihood ratios, bounded from below (empirical Bernstein).
# delta(epsilon) = E[(1 - e^(epsilon - L))_+], L = ln(density under the first input / under the second) at outputs drawn
# under the first. It reaches any epsilon, but trusts L. So L is put on trial first: among draws of both inputs in equal
# numbers, those with ratio L come from the first with probability 1 / (1 + e^-L). A wrong noise scale, or a sampler
# that does not follow its law, fails that.


def delta_from_ratios(ratios: Doubles, *, epsilon: float, alpha: float) -> float:
    """delta(epsilon) from below, from log-likelihood ratios at draws under the first input."""
    gains = -np.expm1(np.minimum(epsilon - ratios, 0.0))
    return bernstein(gains, alpha=alpha)


def epsilon_from_ratios(ratios: Doubles, *, delta: float, alpha: float) -> float:
    """The largest epsilon at which the bound on delta still passes `delta`; 0 where nothing is proven."""

    def disproven(epsilon: float) -> bool:
        return delta_from_ratios(ratios, epsilon=epsilon, alpha=alpha) > delta

    if not disproven(0.0):
        return 0.0
    bound = smallest(lambda epsilon: not disproven(epsilon), relative_tolerance=1e-6)
    return bound * (1.0 - 1e-6)


def bernstein(values: Doubles, *, alpha: float) -> float:
    """The mean of values in [0, 1] from below (Maurer and Pontil 2009, theorem 4)."""
    n, log_term = len(values), math.log(2.0 / alpha)
    spread = math.sqrt(2.0 * float(np.var(values, ddof=1)) * log_term / n)
    return max(0.0, float(np.mean(values)) - spread - 7.0 * log_term / (3.0 * (n - 1)))


def calibration_p_value(first: Doubles, second: Doubles) -> float:
    """How surprising these ratios are if they are what they say: chi-square over bins of L, equal numbers of draws."""
    count = min(len(first), len(second))
    ratios = np.concatenate((first[:count], second[:count]))
    is_first = np.repeat((1.0, 0.0), count)
    edges = np.unique(np.quantile(ratios, np.linspace(0.0, 1.0, _BINS + 1)[1:-1]))
    bins = np.searchsorted(edges, ratios)
    share = expit(ratios)
    seen = np.bincount(bins, is_first, len(edges) + 1)
    expected = np.bincount(bins, share, len(edges) + 1)
    variance = np.bincount(bins, share * (1.0 - share), len(edges) + 1)
    known = variance > 5.0  # where both inputs are to be expected often enough for the normal approximation
    if not known.any():
        return 1.0
    statistic = float(np.sum((seen - expected)[known] ** 2 / variance[known]))
    return float(chdtrc(int(known.sum()), statistic))


# The test that needs one run only (Steinke, Nasr and Jagielski 2023): many bits, guessed from one output.


def guesses_p_value(correct: int, guesses: int, *, epsilon: float, delta: float = 0.0, canaries: int) -> float:
    """How likely so many correct guesses are at most, if the mechanism is (epsilon, delta)-private in each bit.

    P[Bin(r, e^eps / (1 + e^eps)) >= v] + 2 m delta max_i P[v > Bin >= v - i] / i.
    """
    chance = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, chance))
    if delta == 0.0 or correct == 0:
        return min(1.0, tail)
    steps = np.arange(1, correct + 1)
    below = bdtr(correct - 1, guesses, chance)
    between = below - np.where(correct - steps - 1 >= 0, bdtr(np.maximum(correct - steps - 1, 0), guesses, chance), 0.0)
    return min(1.0, tail + 2.0 * canaries * delta * float(np.max(between / steps)))


def epsilon_from_guesses(correct: int, guesses: int, *, delta: float = 0.0, canaries: int, alpha: float) -> float:
    """The largest epsilon that so many correct guesses refute."""

    def possible(epsilon: float) -> bool:
        return guesses_p_value(correct, guesses, epsilon=epsilon, delta=delta, canaries=canaries) > alpha

    if possible(0.0):
        return 0.0
    return smallest(possible, relative_tolerance=1e-9)


# The test without chance: all outputs of a discrete mechanism with their probabilities under both inputs.


def epsilon_exact(first: Doubles, second: Doubles, *, delta: float = 0.0) -> float:
    """The smallest epsilon at delta; infinite where one input has an output that the other cannot have."""
    return max(_one_way(first, second, delta), _one_way(second, first, delta))


def _one_way(first: Doubles, second: Doubles, delta: float) -> float:
    possible = first > 0.0
    first, second = first[possible], second[possible]
    with np.errstate(divide="ignore"):
        ratios = np.where(second > 0.0, first / second, np.inf)
    order = np.argsort(-ratios, kind="stable")
    ratios, p, q = ratios[order], np.cumsum(first[order]), np.cumsum(second[order])
    if delta == 0.0:
        return max(0.0, math.log(ratios[0])) if ratios[0] < math.inf else math.inf
    if p[-1] <= delta:
        return 0.0
    # delta(t) with t = e^eps is the largest of P_k - t Q_k over the k likeliest outputs, k = 1, 2, ...
    enough = p > delta
    with np.errstate(divide="ignore"):
        smallest = np.max((p[enough] - delta) / q[enough])
    return max(0.0, math.log(smallest)) if smallest < math.inf else math.inf
