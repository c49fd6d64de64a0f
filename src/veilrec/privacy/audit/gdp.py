"""The test for Gaussian noise (Nasr and others 2023): two error rates give mu, and mu gives epsilon at any delta.

Counting alone cannot prove an epsilon above about 10 with any number of draws that one can wait for. A Gaussian
mechanism has a known trade-off between the two errors of any test, so one point of it is enough.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from veilrec._arrays import Doubles
from veilrec.privacy.audit.bounds import at_most
from veilrec.privacy.gaussian import epsilon_gaussian

_CHOOSING = 10  # one of so many draws finds the threshold, the others measure its errors


def mu_from_errors(
    false_alarms: int, trials: int, misses: int, other_trials: int, *, alpha: float
) -> float:
    """mu = sensitivity / sigma from below: Phi^-1(1 - FPR_up) - Phi^-1(FNR_up)."""
    false_alarm_rate = at_most(false_alarms, trials, alpha / 2)
    miss_rate = at_most(misses, other_trials, alpha / 2)
    if false_alarm_rate >= 1.0 or miss_rate >= 1.0:
        return 0.0
    return max(0.0, float(-ndtri(false_alarm_rate) - ndtri(miss_rate)))


def epsilon_from_gaussian_scores(first: Doubles, second: Doubles, *, delta: float, alpha: float) -> float:
    """Epsilon from below at delta, given that the noise is Gaussian; high scores speak for the first input."""
    part, other_part = len(first) // _CHOOSING, len(second) // _CHOOSING
    # Halfway between the means both errors are equal, which is where counts pin mu down best.
    threshold = (np.mean(first[:part]) + np.mean(second[:other_part])) / 2
    first, second = first[part:], second[other_part:]
    mu = mu_from_errors(
        int(np.count_nonzero(second > threshold)), len(second),
        int(np.count_nonzero(first <= threshold)), len(first), alpha=alpha,
    )  # fmt: skip
    return epsilon_gaussian(mu, delta) if mu > 0.0 else 0.0
