"""The test that needs one run only (Steinke, Nasr and Jagielski 2023): many bits, guessed from one output."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import bdtr
from scipy.stats import binom

from veilrec.privacy._search import smallest


def p_value(correct: int, guesses: int, *, epsilon: float, delta: float = 0.0, canaries: int) -> float:
    """How likely so many correct guesses are at most, if the mechanism is (epsilon, delta)-private in each bit.

    P[Bin(r, e^eps / (1 + e^eps)) >= v] + 2 m delta max_i P[v > Bin >= v - i] / i.
    """
    chance = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, chance))
    if delta == 0.0 or correct == 0:
        return min(1.0, tail)
    steps = np.arange(1, correct + 1)
    below = bdtr(correct - 1, guesses, chance)
    between = below - np.where(correct - steps - 1 >= 0, bdtr(np.maximum(correct - steps - 1, 0), guesses, chance), 0.0)
    return min(1.0, tail + 2.0 * canaries * delta * float(np.max(between / steps)))


def epsilon_from_guesses(correct: int, guesses: int, *, delta: float = 0.0, canaries: int, alpha: float) -> float:
    """The largest epsilon that so many correct guesses refute."""

    def possible(epsilon: float) -> bool:
        return p_value(correct, guesses, epsilon=epsilon, delta=delta, canaries=canaries) > alpha

    if possible(0.0):
        return 0.0
    return smallest(possible, relative_tolerance=1e-9)
