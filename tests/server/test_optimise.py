"""Server optimisers against Reddi et al., Adaptive Federated Optimization (2021), Algorithm 2, in doubles."""

from __future__ import annotations

import math

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.server.aggregation import Replacing, ServerRate, make_optimiser

SETTINGS = [
    ServerRate(),
    ServerRate(rate=0.5),
    ServerRate(rate=0.5, momentum=0.9),
    ServerRate("adam", rate=0.1, momentum=0.9, second_momentum=0.99, caution=1e-3),
    ServerRate("adam", rate=0.1, momentum=0.0, second_momentum=0.9, caution=0.1),
    ServerRate("yogi", rate=0.1, momentum=0.9, second_momentum=0.99, caution=1e-3),
]


def changes(rounds: int) -> list[dict[str, np.ndarray]]:
    """Large and small ones, so that the second moment of Yogi goes up and down; row 2 is never touched."""
    generator = np.random.default_rng(3)
    result = []
    for number in range(rounds):
        scale = 10.0 ** (-number % 4)
        values = {"a": scale * generator.standard_normal((4, 3)), "b": generator.standard_normal(5)}
        values["a"][2] = 0.0
        result.append({name: value.astype(np.float32) for name, value in values.items()})
    return result


def start() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(4)
    return {"a": generator.standard_normal((4, 3)).astype(np.float32), "b": np.zeros(5, np.float32)}


def entry_by_entry(x: float, deltas: list[float], s: ServerRate) -> float:
    """One weight through all rounds."""
    m, v = 0.0, s.caution**2
    for delta in deltas:
        if s.optimiser == "sgd":
            m = s.momentum * m + delta
            x += s.rate * m
            continue
        m = s.momentum * m + (1 - s.momentum) * delta
        if s.optimiser == "adam":
            v = s.second_momentum * v + (1 - s.second_momentum) * delta**2
        else:
            sign = (v > delta**2) - (v < delta**2)
            v = v - (1 - s.second_momentum) * delta**2 * sign
        x += s.rate * m / (math.sqrt(v) + s.caution)
    return x


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: f"{s.optimiser}-{s.rate}-{s.momentum}")
def test_each_optimiser_follows_the_paper(settings: ServerRate) -> None:
    weights, rounds = start(), changes(12)
    optimiser = make_optimiser(settings)
    for change in rounds:
        optimiser.step(weights, change)
    for name, first in start().items():
        for where in np.ndindex(first.shape):
            expected = entry_by_entry(float(first[where]), [float(c[name][where]) for c in rounds], settings)
            assert weights[name][where] == pytest.approx(expected, rel=2e-5, abs=2e-6)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: f"{s.optimiser}-{s.rate}-{s.momentum}")
def test_going_on_from_a_saved_state_is_exact(settings: ServerRate) -> None:
    rounds = changes(10)
    whole, halves = start(), start()
    straight, first_half = make_optimiser(settings), make_optimiser(settings)
    for change in rounds:
        straight.step(whole, change)
    for change in rounds[:5]:
        first_half.step(halves, change)
    saved = {name: value.copy() for name, value in first_half.state().items()}
    second_half = make_optimiser(settings)
    second_half.step(start(), rounds[9])  # loading must forget this
    second_half.load_state(saved)
    for change in rounds[5:]:
        second_half.step(halves, change)
    for name, value in whole.items():
        assert np.array_equal(value, halves[name])
    for name, value in straight.state().items():
        assert np.array_equal(value, second_half.state()[name])
    second_half.load_state({})
    assert second_half.state() == {}  # as at the start


def test_settings_that_cannot_work_are_refused() -> None:
    for name, values in {
        "rate": (0.0, math.nan, math.inf, 2e12),
        "caution": (0.0, 1e13),
        "momentum": (1.0, -0.1),
        "second_momentum": (1.0,),
    }.items():
        for value in values:
            with pytest.raises(BadInput, match=f"server.{name} is {value}".replace("+", r"\+")):
                ServerRate(**{name: value})
    with pytest.raises(BadInput, match="did you mean adam"):
        make_optimiser(ServerRate("adamw"))  # type: ignore[arg-type]


def test_replacing_leaves_the_last_change_alone() -> None:
    weights, optimiser = start(), make_optimiser(Replacing())
    for change in changes(3):
        optimiser.step(weights, change)
    assert all(np.array_equal(weights[name], values) for name, values in changes(3)[-1].items())
    assert optimiser.state() == {}
    optimiser.load_state({})
