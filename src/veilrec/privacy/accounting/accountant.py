"""What a sequence of events adds up to: epsilon for a delta, and delta for an epsilon.

Exact where a formula exists (Gaussian releases in any number, one sampled release, randomised response
repeated), and otherwise an upper bound, tight to about three digits, from the composed privacy loss
distribution. The answer holds for the adjacency, unit and sensitivity behind the events, and for mechanisms
chosen by earlier outputs as well.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from veilrec.errors import BadInput
from veilrec.privacy._search import smallest
from veilrec.privacy.accounting.amplification import sampled_epsilon
from veilrec.privacy.accounting.composition import SMALLEST_DELTA, Countable, Parts, composed, flattened, profile
from veilrec.privacy.checks import probability
from veilrec.privacy.events import Event, PureEvent, SampledEvent
from veilrec.privacy.gaussian import delta_gaussian, epsilon_gaussian


def epsilon_of(event: Event, delta: float) -> float:
    """The smallest epsilon known to hold with this delta, or infinity; delta 0 asks for pure privacy."""
    if delta != 0.0:
        probability(delta=delta)
    parts = flattened(event)
    if parts.in_the_clear:
        return math.inf
    if not parts.counts:
        return _epsilon_all_gaussian(parts.mu, delta)
    basic = parts.sum_of_pure
    if delta == 0.0:
        return basic
    if exact := _single_kind(parts):
        return _epsilon_exact(*exact, delta)
    if delta < SMALLEST_DELTA:
        raise BadInput(f"delta is {delta}: mixed events are accounted for down to {SMALLEST_DELTA}; give a larger one")
    return min(basic, max(0.0, float(composed(parts).get_epsilon_for_delta(delta))))


def delta_of(event: Event, epsilon: float) -> float:
    """The smallest delta known to hold with this epsilon (from 0 up)."""
    if not 0.0 <= epsilon < math.inf:
        raise BadInput(f"epsilon is {epsilon}: give a finite number, not negative")
    parts = flattened(event)
    if parts.in_the_clear:
        return 1.0
    if not parts.counts:
        return delta_gaussian(epsilon, parts.mu)
    if exact := _single_kind(parts):
        return _delta_exact(*exact, epsilon)
    return min(1.0, float(composed(parts).get_delta_for_epsilon(epsilon)))


def _epsilon_all_gaussian(mu: float, delta: float) -> float:
    if delta == 0.0:
        return 0.0 if mu == 0.0 else math.inf
    return epsilon_gaussian(mu, delta)


def _single_kind(parts: Parts) -> tuple[Countable, int] | None:
    """The one event of a composition that has a formula: anything once, or a pure event repeated."""
    if parts.mu != 0.0 or len(parts.counts) != 1:
        return None
    ((event, count),) = parts.counts
    return (event, count) if count == 1 or isinstance(event, PureEvent) else None


def _epsilon_exact(event: Countable, count: int, delta: float) -> float:
    if isinstance(event, SampledEvent):
        return sampled_epsilon(event.mu, event.rate, delta)
    if _delta_exact(event, count, 0.0) <= delta:
        return 0.0
    return smallest(lambda epsilon: _delta_exact(event, count, epsilon) <= delta, relative_tolerance=1e-12)


def _delta_exact(event: Countable, count: int, epsilon: float) -> float:
    if count == 1:
        return float(profile(event, np.array([epsilon]))[0])
    if not isinstance(event, PureEvent):
        raise TypeError(f"{event!r} has no formula for {count} of it")
    return _delta_repeated_response(event.epsilon, count, epsilon)


def _delta_repeated_response(epsilon_of_one: float, count: int, epsilon: float) -> float:
    """Kairouz, Oh and Viswanath 2015: with `lies` answers turned round the loss is (n - 2 lies) eps."""
    lies = np.arange(count + 1)
    log_choices = gammaln(count + 1) - gammaln(lies + 1) - gammaln(count - lies + 1)
    log_chance = log_choices - lies * epsilon_of_one - count * np.logaddexp(0.0, -epsilon_of_one)
    excess = epsilon - (count - 2 * lies) * epsilon_of_one
    return float(np.sum(np.exp(log_chance) * -np.expm1(np.minimum(excess, 0.0))))
