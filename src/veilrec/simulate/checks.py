"""One finding of an audit, and the statistics that decide it: each states how often it is wrong by chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import bdtr, bdtrc, chdtr, chdtrc, gammainccinv, gammaincinv, kolmogorov, ndtr, stdtr

from veilrec._arrays import Doubles, Offsets

ALPHA = 1e-6  # how often a statistical check fails although all is well, at most
_FEWEST = 8  # numbers from which on a correlation is worth anything
_STEP = 2.0**-19  # of a standard deviation: nearer than this to nothing twice in a row, noise never is

Value = float | int | str


@dataclass(frozen=True)
class Check:
    """What was measured, what it has to be, and whether it is."""

    name: str
    measured: Value
    relation: Literal["is", "at least", "at most"]
    expected: Value
    holds: bool
    where: str = ""  # in which tensor, round or way of drawing it was the worst
    false_alarm_rate: float = 0.0
    allowed: tuple[float, ...] = ()  # as far as it may be by chance: one limit, or the lower and the upper one

    def to_json(self) -> dict[str, Any]:
        """All fields; what is no number in JSON as a word."""
        values = {name: _word(value) for name, value in vars(self).items()}
        return {key: value for key, value in values.items() if key not in ("where", "allowed") or value}


def _word(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else str(float(value))
    return int(value) if isinstance(value, np.integer) else value


def is_equal(name: str, measured: Value, expected: Value, where: str = "") -> Check:
    """Without chance: one value and no other."""
    return Check(name, measured, "is", expected, bool(measured == expected), where)


def at_most(name: str, measured: float, expected: float, where: str = "") -> Check:
    """Without chance: not above a limit; what is not a number is."""
    return Check(name, measured, "at most", expected, bool(measured <= expected), where)


def at_least(name: str, measured: float, expected: float, where: str = "") -> Check:
    """Without chance: not below a limit; what is not a number is."""
    return Check(name, measured, "at least", expected, bool(measured >= expected), where)


def spread_at_least(name: str, noise: Doubles, sigma: float, where: str, *, alpha: float = ALPHA) -> Check:
    """Whether Gaussian noise has at least this standard deviation (chi-square, one-sided)."""
    measured = float(np.sqrt(np.mean(noise**2))) if len(noise) else 0.0
    p_value = float(chdtr(len(noise), float(np.sum((noise / sigma) ** 2)))) if len(noise) else 0.0
    lowest = sigma * math.sqrt(2.0 * float(gammaincinv(len(noise) / 2.0, alpha)) / len(noise)) if len(noise) else sigma
    return Check(name, measured, "at least", sigma, p_value > alpha, where, alpha, (lowest,))


def spread_is_one(name: str, noise: Doubles, where: str) -> Check:
    """Whether noise of any law has the standard deviation 1, to a twentieth and what chance explains."""
    measured = float(np.std(noise))
    kurtosis = float(np.mean(((noise - noise.mean()) / measured) ** 4)) if measured > 0.0 else 1.0
    limit = 0.05 + 5.0 * math.sqrt((kurtosis - 1.0) / len(noise)) / 2.0  # beyond 5 standard errors: 6e-7
    return Check(name, measured, "is", 1.0, abs(measured - 1.0) < limit, where, ALPHA, (1.0 - limit, 1.0 + limit))


def is_gaussian(name: str, noise: Doubles, where: str) -> Check:
    """Whether noise has the shape that the proof counts on (Kolmogorov and Smirnov, with its own spread)."""
    ordered = np.sort(noise / max(float(np.sqrt(np.mean(noise**2))), 1e-300))
    n = len(ordered)
    theory = ndtr(ordered)
    distance = float(max(np.max(np.arange(1, n + 1) / n - theory), np.max(theory - np.arange(n) / n)))
    limit = 2.7 / math.sqrt(n)  # kolmogorov(2.7) = 9e-7; with a fitted spread it is rarer still
    return Check(name, distance, "at most", limit, float(kolmogorov(math.sqrt(n) * distance)) > ALPHA, where, ALPHA)


def bare(first: Doubles, second: Doubles, sigma: float) -> int:
    """How many places got nothing in two draws of noise."""
    return int(np.count_nonzero((np.abs(first) <= _STEP * sigma) & (np.abs(second) <= _STEP * sigma)))


def repeats(noises: Sequence[tuple[str, Doubles]], sigma: float) -> list[str]:
    """Pairs of noises that have something to do with each other: correlated, or the same numbers.

    The correlation of two Gaussian samples follows Student's t exactly; all pairs share ALPHA.
    """
    pairs = len(noises) * (len(noises) - 1) // 2
    found = []
    for i, (name, first) in enumerate(noises):
        for other, second in noises[:i]:
            n = min(len(first), len(second))
            if n < 2:
                continue
            a, b = first[:n], second[:n]
            if np.all(np.abs(a - b) <= _STEP * sigma) or (n >= _FEWEST and _correlated(a, b) < ALPHA / pairs):
                found.append(f"{other} and {name}")
    return found


def _correlated(first: Doubles, second: Doubles) -> float:
    """How surprising the correlation of two independent samples is."""
    a, b = first - first.mean(), second - second.mean()
    size = math.sqrt(float(a @ a) * float(b @ b))
    if size == 0.0:
        return 1.0
    r = min(abs(float(a @ b)) / size, 1.0 - 1e-15)
    return float(2.0 * stdtr(len(a) - 2, -r * math.sqrt((len(a) - 2) / (1.0 - r * r))))


def rate_at_most(name: str, hits: int, trials: int, rate: float, where: str) -> Check:
    """Whether something happens no more often than this (binomial, one-sided)."""
    p_value = 1.0 if rate >= 1.0 or hits == 0 else float(bdtrc(hits - 1, trials, rate))
    most = _most_hits(trials, rate, ALPHA) / max(trials, 1)
    return Check(name, hits / max(trials, 1), "at most", rate, p_value > ALPHA, where, ALPHA, (most,))


def rate_at_least(name: str, hits: int, trials: int, rate: float, where: str) -> Check:
    """Whether something happens no more seldom than this (binomial, one-sided)."""
    p_value = float(bdtr(hits, trials, rate))
    fewest = (trials - _most_hits(trials, 1.0 - rate, ALPHA)) / max(trials, 1)  # the others happen at most so often
    return Check(name, hits / max(trials, 1), "at least", rate, p_value > ALPHA, where, ALPHA, (fewest,))


def nobody_more_often(name: str, hits: Offsets, trials: int, rate: float) -> Check:
    """Whether the one who is drawn most often is drawn no more often than chance explains; all share ALPHA."""
    most = int(hits.max())
    p_value = 1.0 if rate >= 1.0 or most == 0 else float(bdtrc(most - 1, trials, rate))
    limit = _most_hits(trials, rate, ALPHA / len(hits)) / trials
    return Check(name, most / trials, "at most", rate, p_value > ALPHA / len(hits), "", ALPHA, (limit,))


def _most_hits(trials: int, rate: float, alpha: float) -> int:
    """The largest number of hits that is no surprise: as many or more have a chance above alpha."""
    if rate >= 1.0:
        return trials
    low, high = 0, trials + 1  # no hit is never a surprise; more than all always are
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if float(bdtrc(middle - 1, trials, rate)) > alpha else (low, middle)
    return low


def sizes_vary(name: str, sizes: Offsets, variance: float) -> Check:
    """Whether the sizes of cohorts vary as those of independent coins do (chi-square, both sides)."""
    statistic = float(np.sum((sizes - sizes.mean()) ** 2)) / variance
    p_value = 2.0 * min(float(chdtr(len(sizes) - 1, statistic)), float(chdtrc(len(sizes) - 1, statistic)))
    # sizes have one degree of freedom less than there are, and np.var divides by all
    halves = (
        float(gammaincinv((len(sizes) - 1) / 2.0, ALPHA / 2.0)),
        float(gammainccinv((len(sizes) - 1) / 2.0, ALPHA / 2.0)),
    )
    low, high = (2.0 * variance * half / len(sizes) for half in halves)
    return Check(name, float(np.var(sizes)), "is", variance, p_value > ALPHA, "", ALPHA, (low, high))
