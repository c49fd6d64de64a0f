"""What the budget is spent on, and how far steps go: from how many people there are, and from mu.

The sum of N clipped messages grows with N, its noise with 1 / mu: what can be learnt depends on nu = mu N. The shares
by nu were chosen on the validation items of ML-1M (epsilon 0.5 to 8) and ML-100K (epsilon 1).

How far steps go follows from the noise, which is known before the first round: with few people or a small epsilon they
stop early, before the noise that all rounds together put on a number grows beyond what such a number usually is; with
many they go on until what is learnt has settled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from veilrec.device.veil import CLIPS, FURTHER, MAP, PASSES, PLACES, WEIGHTS, Steps, lengths_of


@dataclass(frozen=True)
class Spending:
    """Shares of mu^2: of votes, of places in both passes, and of rounds for the weights alone, and for both."""

    below: float  # nu
    votes: float
    weights: float
    map: float = 0.0
    places: float = 0.0
    further: float = 0.0  # of the second pass
    directions: int = 0  # of places, in each pass
    content: int = 24  # directions of content that the map is over, at most
    # Sums of all steps, in mean gradients, after which little changes: of the weights, and of the map.
    weights_settle: float = 60.0
    map_settles: float = 9000.0


SPENDINGS = (
    Spending(600.0, votes=0.75, weights=0.04, map=0.21),
    Spending(1000.0, votes=0.55, weights=0.05, map=0.40),
    Spending(4000.0, votes=0.40, weights=0.05, map=0.30, places=0.25, directions=4),
    Spending(
        math.inf,
        votes=0.15,
        weights=0.05,
        map=0.35,
        places=0.25,
        further=0.20,
        directions=8,
        content=32,
        weights_settle=30.0,
        map_settles=7000.0,
    ),
)
WITHOUT_MAP = Spending(math.inf, votes=0.80, weights=0.20)
MOMENTUM = 0.7
SHARES = {
    WEIGHTS: 0.1,
    MAP: 0.9,
    PLACES: 1.0,
    FURTHER: 1.0,
}  # of the squared bound, where a round is about several tensors
_NOISE = {WEIGHTS: 0.1, MAP: 0.3}  # standard deviation that all rounds may put on a number
_FOR_WEIGHTS = 1 / 6  # of the rounds


@dataclass(frozen=True)
class Phase:
    """Rounds of one kind."""

    tensors: tuple[str, ...]
    rounds: int
    share: float  # of mu^2, all rounds together


def spending_for(mu: float, people: int, *, has_map: bool) -> Spending:
    """By nu; without content there is no map, and a run is like one of few people."""
    if not has_map:
        return WITHOUT_MAP
    return next(row for row in SPENDINGS if mu * people < row.below)


def phases_of(spending: Spending, rounds: int) -> tuple[Phase, ...]:
    """How the rounds are used."""
    if not spending.map:
        return (Phase((WEIGHTS,), rounds, spending.weights),)
    places = 1 if spending.places and rounds > 1 else 0
    further = 1 if spending.further and rounds > 2 else 0
    first = max(1, round(rounds * _FOR_WEIGHTS)) if rounds > 1 + places + further else 0
    phases = (
        Phase((PLACES,), places, spending.places),
        Phase((FURTHER,), further, spending.further),
        Phase((WEIGHTS,), first, spending.weights),
        Phase((WEIGHTS, MAP), rounds - first - places - further, spending.map),
    )
    return tuple(phase for phase in phases if phase.rounds)


def steps_of(
    spending: Spending, phases: tuple[Phase, ...], bounds: tuple[float, ...], sigma: float, in_round: int
) -> Steps:
    """What a number of the sum stands for, so that steps go as far as settles them, or as far as noise allows."""
    units: dict[str, float] = {}
    noise: dict[str, float] = {}
    first = 0
    for phase in phases:
        bound = bounds[first]
        first += phase.rounds
        for name, length in lengths_of(SHARES, phase.tensors, bound).items():
            clip = CLIPS[name] / length
            if name in PASSES:  # messages are as long as one along a direction, whatever the number of directions
                units[name] = clip * math.sqrt(spending.directions)
                noise[name] = units[name] * sigma
                continue
            rounds = sum(other.rounds for other in phases if name in other.tensors)
            settled = (spending.weights_settle if name == WEIGHTS else spending.map_settles) / rounds * clip / in_round
            units[name] = (1.0 - MOMENTUM) * min(settled, _NOISE[name] / (sigma * math.sqrt(rounds)))
    return Steps(units=units, shares=SHARES, noise=noise)


def bounds_of(phases: tuple[Phase, ...]) -> tuple[float, ...]:
    """The bound of every round, so that with the same noise on all each phase costs its share; the largest is 1."""
    costs = [math.sqrt(phase.share / phase.rounds) for phase in phases]
    largest = max(costs)
    return tuple(cost / largest for cost, phase in zip(costs, phases, strict=True) for _ in range(phase.rounds))
