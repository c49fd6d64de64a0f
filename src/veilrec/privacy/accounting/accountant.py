"""What a sequence of events adds up to: epsilon for a delta, and delta for an epsilon.

Exact where a formula exists (Gaussian releases in any number, one sampled release, randomised response repeated),
and otherwise an upper bound, tight to about three digits, from the composed privacy loss distribution. The answer holds
for the adjacency, unit and sensitivity behind the events, and for mechanisms chosen by earlier outputs as well.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, logsumexp

from veilrec.errors import BadInput
from veilrec.privacy.accounting.amplification import sampled_delta, sampled_epsilon
from veilrec.privacy.accounting.composition import SMALLEST_DELTA, Parts, composed, flattened, profile
from veilrec.privacy.checks import probability
from veilrec.privacy.events import Event, PureEvent, SampledEvent
from veilrec.privacy.gaussian import delta_gaussian, epsilon_gaussian


def epsilon_of(event: Event, delta: float) -> float:
    """The smallest epsilon known to hold with this delta; infinite if there is none. Delta 0 asks for pure privacy."""
    if delta != 0.0:
        probability(delta=delta)
    parts = flattened(event)
    if parts.in_the_clear:
        return math.inf
    if not parts.counts:
        return _epsilon_all_gaussian(parts.mu, delta)
    basic = sum(n * e.epsilon for e, n in parts.counts if not isinstance(e, SampledEvent)) if parts.pure else math.inf
    if delta == 0.0:
        return basic
    only = _only(parts)
    if isinstance(only, SampledEvent):
        return sampled_epsilon(only.mu, only.rate, delta)
    _check_not_too_small(delta)
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
    only = _only(parts)
    if only is not None:
        return float(profile(only, np.array([epsilon]))[0])
    ((first, count), *more) = parts.counts
    if isinstance(first, PureEvent) and not more and parts.mu == 0.0:
        return _delta_repeated_response(first.epsilon, count, epsilon)
    return min(1.0, float(composed(parts).get_delta_for_epsilon(epsilon)))


def _only(parts: Parts) -> object:
    if parts.mu == 0.0 and len(parts.counts) == 1 and parts.counts[0][1] == 1:
        return parts.counts[0][0]
    return None
