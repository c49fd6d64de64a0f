"""Made-up users: a few interests each, whose weights drift from the first day to the last."""

from __future__ import annotations

from veilrec._arrays import Doubles, Offsets
from veilrec._jit import jit
from veilrec.data import _draws as draws

INTERESTS = 3  # per user
_DRIFT = 0.5  # the share of the last day's weights that has nothing to do with the first day's


@jit
def draw_interests(state: draws.State, options: int, interests: Offsets, at_start: Doubles, at_end: Doubles) -> None:
    """Fill in distinct interests below `options` (low ones are likelier), their first and last weights."""
    total_start, total_end = 0.0, 0.0
    for k in range(INTERESTS):
        option = int(options * draws.uniform(state) ** 1.5)
        while (interests[:k] == option).any():
            option = (option + 1) % options
        interests[k] = option
        at_start[k], at_end[k] = draws.exponential(state), draws.exponential(state)
        total_start += at_start[k]
        total_end += at_end[k]
    at_start /= total_start
    for k in range(INTERESTS):
        at_end[k] = (1.0 - _DRIFT) * at_start[k] + _DRIFT * at_end[k] / total_end


@jit
def weight(k: int, moment: float, at_start: Doubles, at_end: Doubles) -> float:
    """The weight of interest k at a moment in [0, 1]; at any moment the weights sum to 1."""
    value: float = at_start[k] + moment * (at_end[k] - at_start[k])
    return value


@jit
def draw_interest(state: draws.State, moment: float, at_start: Doubles, at_end: Doubles) -> int:
    """One of a user's interests, with the probability of its weight."""
    left = draws.uniform(state)
    for k in range(INTERESTS - 1):
        left -= weight(k, moment, at_start, at_end)
        if left < 0.0:
            return k
    return INTERESTS - 1
