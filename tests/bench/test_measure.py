from __future__ import annotations

import time

from veilrec.bench.measure import Turns, fresh_rounds, seconds_per_round


def test_contenders_take_turns_and_do_the_same_rounds():
    calls: list[tuple[str, int]] = []
    contenders = {name: lambda number, name=name: calls.append((name, number)) for name in ("slow", "fast")}
    seconds_per_round(contenders, frozenset({"fast"}), Turns(repeats=2, rounds=2, laps=2))
    assert calls == [
        ("slow", 0),
        ("slow", 0),
        ("slow", 1),
        ("fast", 0),
        ("fast", 0),
        ("fast", 1),
        ("fast", 0),
        ("fast", 1),
        ("slow", 2),
        ("slow", 2),
        ("slow", 3),
        ("fast", 2),
        ("fast", 2),
        ("fast", 3),
        ("fast", 2),
        ("fast", 3),
    ]


def test_median_of_the_turns_without_the_warm_up():
    """One round of 300 ms among rounds of 1 ms does not move the median; nor does a warm-up that compiles."""
    rounds = 0

    def one_round(_number: int) -> None:
        nonlocal rounds
        rounds += 1
        time.sleep(0.3 if rounds in (1, 4) else 0.001)

    seconds = seconds_per_round({"it": one_round}, frozenset(), Turns(repeats=3, rounds=1, laps=1))
    assert 0.001 <= seconds["it"] < 0.2


def test_fresh_rounds_are_done_once_and_in_turns():
    calls: list[tuple[str, int]] = []
    contenders = {name: lambda number, name=name: calls.append((name, number)) for name in ("few", "many")}
    fresh_rounds(contenders, 3)
    assert calls == [(name, number) for number in range(3) for name in ("few", "many")]


def test_waiting_counts_on_the_wall_but_not_as_work():
    """A thread that sleeps 50 ms works for far less, however busy the machine is."""
    measured = fresh_rounds({"it": lambda _number: time.sleep(0.05)}, 3)["it"]
    assert measured.seconds >= 0.05
    assert 0.0 < measured.cpu_seconds < 0.025


def test_median_of_fresh_rounds():
    measured = fresh_rounds({"it": lambda number: time.sleep(0.3 if number == 1 else 0.001)}, 3)["it"]
    assert 0.001 <= measured.seconds < 0.3
