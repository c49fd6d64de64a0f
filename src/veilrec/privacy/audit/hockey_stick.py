"""The white-box test: delta(epsilon) as a mean over log-likelihood ratios, bounded from below (empirical Bernstein).

delta(epsilon) = E[(1 - e^(epsilon - L))_+], L = ln(density under the first input / under the second) at outputs drawn
under the first. It reaches any epsilon, but trusts L. So L is put on trial first: among draws of both inputs in equal
numbers, those with ratio L come from the first with probability 1 / (1 + e^-L). A wrong noise scale, or a sampler that
does not follow its law, fails that.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import chdtrc, expit

from veilrec._arrays import Doubles
from veilrec.privacy._search import smallest

_BINS = 20


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
