"""Wall-clock times of contenders that take turns, so that a busy moment of the machine hits all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Round = Callable[[int], object]  # does the round of that number


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    repeats: int = 7  # turns of every contender
    rounds: int = 3  # different rounds in a turn, the same for everybody
    laps: int = 10  # how often a fast contender does them in its turn, to be longer than the clock's noise


def seconds_per_round(contenders: Mapping[str, Round], fast: frozenset[str], plan: Plan) -> dict[str, float]:
    """Median over the turns; before each turn, one round that does not count warms caches and compilers."""
    turns: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(plan.repeats):
        numbers = range(turn * plan.rounds, (turn + 1) * plan.rounds)
        for name, one_round in contenders.items():
            laps = plan.laps if name in fast else 1
            one_round(numbers[0])
            start = time.perf_counter()
            for _ in range(laps):
                for number in numbers:
                    one_round(number)
            turns[name].append((time.perf_counter() - start) / (laps * plan.rounds))
    return {name: statistics.median(times) for name, times in turns.items()}
