"""What counts of an event prove about epsilon (Clopper-Pearson), and how much they can prove at most.

If an event has probability p under one input and q under an adjacent one, an (epsilon, delta)-private mechanism has
p <= e^epsilon q + delta. Counts give p from below and q from above, so they give epsilon from below.
"""

from __future__ import annotations

import math

from scipy.special import betaincinv


def at_least(hits: int, trials: int, alpha: float) -> float:
    """A probability that the true one exceeds, but for an error of `alpha` (Clopper-Pearson, lower end)."""
    return float(betaincinv(hits, trials - hits + 1, alpha)) if hits > 0 else 0.0


def at_most(hits: int, trials: int, alpha: float) -> float:
    """A probability that the true one stays under, but for an error of `alpha` (Clopper-Pearson, upper end)."""
    return float(betaincinv(hits + 1, trials - hits, 1.0 - alpha)) if hits < trials else 1.0


def epsilon_from_counts(
    hits: int, trials: int, other_hits: int, other_trials: int, *, delta: float, alpha: float
) -> float:
    """Epsilon from below, wrong with probability `alpha`: ln((p_low - delta) / q_up), and 0 where nothing is proven."""
    low = at_least(hits, trials, alpha / 2) - delta
    high = at_most(other_hits, other_trials, alpha / 2)
    return math.log(low / high) if low > high else 0.0


def reach(trials: int, *, alpha: float, delta: float = 0.0) -> float:
    """What so many trials a side prove of an event that happens half the time for one input and never for the other."""
    return epsilon_from_counts(trials // 2, trials, 0, trials, delta=delta, alpha=alpha)
