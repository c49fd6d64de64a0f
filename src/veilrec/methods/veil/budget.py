"""What the budget is spent on, from two public numbers: how many people there are, and mu.

The sum of N clipped messages grows with N, its noise with 1 / mu: what can be learnt depends on nu = mu N. The table
was chosen on the validation items of ML-1M (epsilon 0.5 to 8) and checked on those of ML-100K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from veilrec.device.veil import ITEMS, MAP, WEIGHTS


@dataclass(frozen=True)
class Spending:
    """Shares of mu^2: of votes, and of rounds for the weights alone, for the map and the weights, and for items."""

    below: float  # nu
    votes: float
    weights: float
    map: float = 0.0
    items: float = 0.0
    map_rate: float = 0.0  # how far a step on the map goes
    item_rate: float = 0.0  # and one on the items' own vectors


SPENDINGS = (
    Spending(600.0, votes=0.80, weights=0.20),
    Spending(2000.0, votes=0.55, weights=0.05, map=0.40, map_rate=100.0),
    Spending(4000.0, votes=0.50, weights=0.05, map=0.45, map_rate=100.0),
    Spending(7000.0, votes=0.30, weights=0.05, map=0.30, items=0.35, map_rate=150.0, item_rate=0.5),
    Spending(math.inf, votes=0.20, weights=0.05, map=0.30, items=0.45, map_rate=150.0, item_rate=0.7),
)
_FOR_WEIGHTS, _FOR_ITEMS = 1 / 6, 1 / 5  # of the rounds


@dataclass(frozen=True)
class Phase:
    """Rounds of one kind."""

    tensors: tuple[str, ...]
    rounds: int
    share: float  # of mu^2, all rounds together


def spending_for(mu: float, people: int, *, has_map: bool) -> Spending:
    """By nu; without content there is no map, and a run is like one of few people."""
    if not has_map:
        return SPENDINGS[0]
    return next(row for row in SPENDINGS if mu * people < row.below)


def phases_of(spending: Spending, rounds: int) -> tuple[Phase, ...]:
    """How the rounds are used."""
    if not spending.map:
        return (Phase((WEIGHTS,), rounds, spending.weights),)
    first = max(1, round(rounds * _FOR_WEIGHTS)) if rounds > 1 else 0
    last = max(1, round(rounds * _FOR_ITEMS)) if spending.items and rounds > first + 1 else 0
    phases = (
        Phase((WEIGHTS,), first, spending.weights),
        Phase((WEIGHTS, MAP), rounds - first - last, spending.map),
        Phase((ITEMS,), last, spending.items),
    )
    return tuple(phase for phase in phases if phase.rounds)


def bounds_of(phases: tuple[Phase, ...]) -> tuple[float, ...]:
    """The bound of every round, so that with the same noise on all each phase costs its share; the largest is 1."""
    costs = [math.sqrt(phase.share / phase.rounds) for phase in phases]
    largest = max(costs)
    return tuple(cost / largest for cost, phase in zip(costs, phases, strict=True) for _ in range(phase.rounds))
