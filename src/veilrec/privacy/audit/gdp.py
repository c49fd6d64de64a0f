"""The test for Gaussian noise (Nasr and others 2023): two error rates give mu, and mu gives epsilon at any delta.

Counting alone cannot prove an epsilon above about 10 with any number of draws that one can wait for. A Gaussian
mechanism has a known trade-off between the two errors of any test, so one point of it is enough.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import ndtri

from veilrec._arrays import Doubles
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.audit.bounds import at_most
from veilrec.privacy.events import SampledEvent
from veilrec.privacy.gaussian import epsilon_gaussian

_CHOOSING = 10  # one of so many draws finds the threshold, the others measure its errors


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
    """The same where the person is part of the message only by chance, as `event` says; its mu is what is found out."""
    part, other_part = len(first) // _CHOOSING, len(second) // _CHOOSING
    chosen, other_chosen = np.sort(first[:part]), np.sort(second[:other_part])
    values = np.quantile(np.concatenate((chosen, other_chosen)), np.linspace(0.02, 0.98, 49))
    advantages = np.searchsorted(other_chosen, values) / other_part - np.searchsorted(chosen, values) / part
    threshold = float(values[np.argmax(advantages)])
    mu = mu_from_advantage(*_errors(first[part:], second[other_part:], threshold), rate=event.rate, alpha=alpha)
    return epsilon_of(replace(event, mu=mu), delta) if mu > 0.0 else 0.0


def _errors(first: Doubles, second: Doubles, threshold: float) -> tuple[int, int, int, int]:
    """False alarms, of how many, misses, of how many, when scores above the threshold are called the first input."""
    return (
        int(np.count_nonzero(second > threshold)),
        len(second),
        int(np.count_nonzero(first <= threshold)),
        len(first),
    )
