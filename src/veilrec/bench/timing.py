"""Times of contenders that take turns, so that a busy moment of the machine hits all of them."""

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


@dataclass(frozen=True)
class Fresh:
    """Medians over rounds that were never done before."""

    seconds: float  # on the wall
    cpu_seconds: float  # of our one thread: what others do on the machine hardly shows


def fresh_rounds(contenders: Mapping[str, Round], count: int) -> dict[str, Fresh]:
    """Round by round, every contender once: nothing that a round needs is in a cache already."""
    wall: dict[str, list[float]] = {name: [] for name in contenders}
    cpu: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(count):
        for name, one_round in contenders.items():
            start, start_cpu = time.perf_counter(), time.thread_time()
            one_round(number)
            cpu[name].append(time.thread_time() - start_cpu)
            wall[name].append(time.perf_counter() - start)
    return {name: Fresh(statistics.median(wall[name]), statistics.median(cpu[name])) for name in contenders}
