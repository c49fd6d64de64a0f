"""The exact privacy of Gaussian noise, how much noise an (epsilon, delta) needs, and what chance adds to it.

Everything is in terms of mu = L2 sensitivity / standard deviation of the noise (Balle and Wang 2018). Releases compose
exactly: several Gaussian releases are one release with mu = sqrt(mu_1^2 + mu_2^2 + ...).

The second half is what it is worth that a person, or a click, is part of a release only by chance. Padding: a click is
replaced by a fixed pad with probability p = `pad_probability`, afresh for every noise draw. The formulas hold for
replacing one click in place (or for adding one where "absent" is the pad), never for a history.

Inverting functions that only rise or only fall, always from the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, overload

import numpy as np
from scipy.special import erfcx, ndtr

from veilrec.core.arrays import Doubles
from veilrec.privacy.checks import positive, probability


def smallest(suffices: Callable[[float], bool], *, relative_tolerance: float = 1e-15) -> float:
    """The smallest positive number that suffices, if every larger one does; the answer itself suffices."""
    high = 1.0
    while not suffices(high):
        high *= 2.0
        if high > 1e300:
            raise ValueError("no finite number suffices")
    low = high / 2.0
    while low > 1e-300 and suffices(low):
        low, high = low / 2.0, low
    while high - low > relative_tolerance * high and low < (middle := 0.5 * (low + high)) < high:
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


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


def amplified_epsilon(epsilon: float, *, rate: float) -> float:
    """log(1 + rate (e^epsilon - 1)): what is left of epsilon when one takes part with probability `rate`."""
    # log((1 - rate) + rate e^epsilon), without overflow for a large epsilon.
    if rate == 0.0 or epsilon == 0.0:
        return 0.0
    if epsilon < 30.0:
        return math.log1p(rate * math.expm1(epsilon))
    return epsilon + math.log(rate + (1.0 - rate) * math.exp(-epsilon))


def base_epsilon(epsilon: float, *, pad_probability: float) -> float:
    """The epsilon of the inner mechanism that padding turns into `epsilon`; its delta is delta / (1 - p)."""
    positive(epsilon=epsilon)
    _check_pad(pad_probability)
    # log((e^epsilon - p) / (1 - p)) = epsilon + log1p(-p e^-epsilon) - log1p(-p)
    return epsilon + math.log1p(-pad_probability * math.exp(-epsilon)) - math.log1p(-pad_probability)


def padded_mu(epsilon: float, delta: float, *, pad_probability: float) -> float:
    """The largest sensitivity / sigma of padded Gaussian noise that keeps (epsilon, delta) per click."""
    probability(delta=delta)
    _check_pad(pad_probability)
    inner_delta = delta / (1.0 - pad_probability)
    probability(delta_of_the_inner_mechanism=inner_delta)
    return mu_for(base_epsilon(epsilon, pad_probability=pad_probability), inner_delta)


def sampled_delta(epsilon: Doubles, mu: float, rate: float) -> Doubles:
    """Exact profile of rate N(mu, 1) + (1 - rate) N(0, 1) against N(0, 1), at epsilon of either sign.

    It is rate * delta_G(log(1 + (e^epsilon - 1) / rate), mu). Where e^epsilon <= 1 - rate, every outcome is
    at least e^epsilon times as likely under the mixture, and it is 1 - e^epsilon.
    """
    ratio = 1.0 + np.expm1(np.minimum(epsilon, 700.0)) / rate
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = np.where(epsilon > 30.0, epsilon - math.log(rate), np.log(np.maximum(ratio, 0.0)))
    inside = rate * delta_gaussian(np.where(ratio > 0.0, inner, 0.0), mu)
    return np.where(ratio > 0.0, inside, -np.expm1(np.minimum(epsilon, 0.0)))


def sampled_epsilon(mu: float, rate: float, delta: float) -> float:
    """Exact epsilon of one sampled Gaussian release; the worst directions of all three samplings agree."""
    if delta >= rate:
        return 0.0
    return amplified_epsilon(epsilon_gaussian(mu, delta / rate), rate=rate)


def _check_pad(pad_probability: float) -> None:
    if pad_probability != 0.0:
        probability(pad_probability=pad_probability)
