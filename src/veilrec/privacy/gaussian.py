"""The exact privacy of Gaussian noise, and how much noise an (epsilon, delta) needs (Balle and Wang 2018).

Everything is in terms of mu = L2 sensitivity / standard deviation of the noise. Releases compose exactly:
several Gaussian releases are one release with mu = sqrt(mu_1^2 + mu_2^2 + ...).
"""

from __future__ import annotations

import math
from typing import Any, overload

import numpy as np
from scipy.special import erfcx, ndtr

from veilrec._arrays import Doubles
from veilrec.privacy._search import smallest
from veilrec.privacy.checks import positive, probability

_SQRT_HALF = math.sqrt(0.5)


@overload
def delta_gaussian(epsilon: float, mu: float) -> float: ...
@overload
def delta_gaussian(epsilon: Doubles, mu: float) -> Doubles: ...
def delta_gaussian(epsilon: float | Doubles, mu: float) -> float | Doubles:
    """The smallest delta at epsilon (of either sign): Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)."""
    if not mu >= 0.0:
        raise ValueError(f"mu is {mu}: a ratio of a sensitivity to a standard deviation is not negative")
    eps = np.asarray(epsilon, np.float64)
    if mu in (0.0, math.inf):
        delta: Any = np.maximum(0.0, -np.expm1(np.minimum(eps, 0.0))) if mu == 0.0 else np.ones_like(eps)
    else:
        upper = _delta_at_least_zero(np.abs(eps), mu)
        # The pair is symmetric: delta(-eps) = 1 - e^-eps + e^-eps delta(eps).
        delta = np.where(eps >= 0.0, upper, -np.expm1(-np.abs(eps)) + np.exp(-np.abs(eps)) * upper)
    return delta if isinstance(epsilon, np.ndarray) else float(delta)


def _delta_at_least_zero(eps: Doubles, mu: float) -> Doubles:
    near, far = eps / mu - mu / 2, eps / mu + mu / 2
    # e^eps times the density at `far` is the density at `near`, so both tails share one factor, and e^eps,
    # which overflows at 710, never appears: Phi(-t) = exp(-t^2 / 2) erfcx(t / sqrt 2) / 2.
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        factor = 0.5 * np.exp(-0.5 * near * near)
        far_tail = factor * erfcx(far * _SQRT_HALF)
        tails = factor * (erfcx(near * _SQRT_HALF) - erfcx(far * _SQRT_HALF))
    return np.clip(np.where(near > 0.0, tails, ndtr(-near) - far_tail), 0.0, 1.0)


def epsilon_gaussian(mu: float, delta: float) -> float:
    """The smallest epsilon (not below 0) at which the profile is at most delta."""
    probability(delta=delta)
    if delta_gaussian(0.0, mu) <= delta:
        return 0.0
    return smallest(lambda epsilon: delta_gaussian(epsilon, mu) <= delta)


def mu_for(epsilon: float, delta: float) -> float:
    """The largest mu = sensitivity / sigma that keeps (epsilon, delta)."""
    positive(epsilon=epsilon)
    probability(delta=delta)
    return 1.0 / smallest(lambda noise: delta_gaussian(epsilon, 1.0 / noise) <= delta)


def sigma_for(epsilon: float, delta: float, sensitivity: float) -> float:
    """The smallest standard deviation that keeps (epsilon, delta) for a release of this L2 sensitivity."""
    positive(sensitivity=sensitivity)
    return sensitivity / mu_for(epsilon, delta)
