"""What it is worth that a person, or a click, is part of a release only by chance.

Padding: a click is replaced by a fixed pad with probability p = `pad_probability`, afresh for every noise
draw. The formulas hold for replacing one click in place (or for adding one where "absent" is the pad),
never for a history.
"""

from __future__ import annotations

import math

import numpy as np

from veilrec._arrays import Doubles
from veilrec.privacy.checks import positive, probability
from veilrec.privacy.gaussian import delta_gaussian, epsilon_gaussian, mu_for


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


def padded_clicks_epsilon(epsilon: float, *, pad_probability: float, clicks: int) -> float:
    """The epsilon for replacing `clicks` clicks at once: amplification fades as p^clicks."""
    _check_pad(pad_probability)
    return amplified_epsilon(epsilon, rate=1.0 - pad_probability**clicks)


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
