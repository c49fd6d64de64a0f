"""The noise of a tree: which nodes a round takes back, what is left of it in every sum, and what one person pays."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.schema import RoundSpec, Schema, Tensor
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.events import GaussianEvent, TreeEvent, repeated
from veilrec.privacy.mechanisms.schedules import TreeSum, taken_back
from veilrec.privacy.randomness import FastSource, KeyedSource, SeededSource, Source

LAYER = Schema((Tensor("layer", (4,), by_row=False),))
SECRET = bytes(range(32))


def tree_sum(**options: Any) -> TreeSum:
    right: dict[str, Any] = {
        "schema": LAYER,
        "clip_norm": 1.0,
        "noise_multiplier": 2.0,
        "steps": 8,
        "turns": 1,
        "population": 40,
        "delta": 1e-6,
    }
    return TreeSum(**right | options)


def test_a_round_takes_back_the_nodes_inside_the_one_that_it_ends() -> None:
    assert [taken_back(number, 8) for number in range(8)] == [(), (0,), (), (2, 1), (), (4,), (), (6, 5, 3)]
    assert taken_back(8, 8) == ()  # a new tree
    assert [taken_back(number, 3) for number in range(6)] == [(), (0,), (), (), (3,), ()]


@pytest.mark.parametrize("steps", [1, 5, 8, 13])
def test_what_is_left_of_all_noise_are_the_nodes_of_the_binary_digits(steps: int) -> None:
    left: Counter[int] = Counter()
    for number in range(steps):
        left[number] += 1
        left.subtract(taken_back(number, steps))
        nodes = [node for node, times in left.items() if times]
        assert all(left[node] == 1 for node in nodes)
        assert len(nodes) == (number + 1).bit_count()


def protected(mechanism: TreeSum, number: int, source: Source, size: int = 4) -> np.ndarray:
    sums = {"layer": np.zeros(size)}
    mechanism.protect(sums, RoundSpec(number), source)
    return sums["layer"]


@pytest.mark.parametrize("secret", [True, False])
def test_prefix_sums_have_the_noise_of_few_nodes(secret: bool) -> None:
    mechanism, size = tree_sum(), 20_000
    total = np.zeros(size)
    for number in range(8):
        source: Source = KeyedSource(SECRET, 7, number) if secret else FastSource(5, 7, number, one_generator=True)
        total += protected(mechanism, number, source, size)
        nodes = (number + 1).bit_count()
        # The standard error of a spread of 20,000 numbers is 0.5 %: 2.5 % is five of them, wrong once in 10^6 seeds.
        assert np.std(total) == pytest.approx(mechanism.sigma * math.sqrt(nodes), rel=0.025)


def test_noise_is_the_same_again_after_a_restart_and_lies_on_one_lattice() -> None:
    mechanism = tree_sum()
    first, again = (protected(mechanism, 7, KeyedSource(SECRET, 7, 7), 100) for _ in range(2))
    assert np.array_equal(first, again)
    steps = first / (mechanism.sigma / 2.0**20)
    assert np.allclose(steps, np.round(steps), rtol=0, atol=1e-6)


def test_a_person_pays_for_every_level_once_a_turn() -> None:
    mechanism = tree_sum(noise_multiplier=7.0, steps=2048)
    assert mechanism.event() == TreeEvent(7.0, 2048)
    # dp-accounting 0.6.0: SingleEpochTreeAggregationDpEvent(7.0, 2048), RDP, delta 1e-6: 2.39201
    assert epsilon_of(mechanism.event(), 1e-6) <= 2.39201
    assert epsilon_of(mechanism.event(), 1e-6) == pytest.approx(2.229, abs=1e-3)
    alike = repeated(GaussianEvent(1.0 / 7.0), 12)
    assert epsilon_of(mechanism.event(), 1e-6) == pytest.approx(epsilon_of(alike, 1e-6))


def test_one_person_moves_every_node_by_the_clip_norm() -> None:
    mechanism = tree_sum()
    assert (mechanism.adjacency, mechanism.sensitivity.value) == ("add-remove", 1.0)
    assert mechanism.sigma / mechanism.sensitivity.value == pytest.approx(2.0, rel=1e-5)
    assert mechanism.facts()["nodes_of_a_person"] == 4


@pytest.mark.parametrize(
    "about", [RoundSpec(0, rows=np.array([1], np.int32)), RoundSpec(0, shares={"layer": 0.5}), RoundSpec(0, rank=1)]
)
def test_a_round_about_a_part_is_refused(about: RoundSpec) -> None:
    with pytest.raises(BadInput, match="whole model"):
        tree_sum().protect({"layer": np.zeros(4)}, about, KeyedSource(SECRET, 0))


def test_a_source_that_names_no_rounds_is_refused() -> None:
    with pytest.raises(VeilrecError, match="names the noise"):
        tree_sum().protect({"layer": np.zeros(4)}, RoundSpec(0), SeededSource(1))


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"turns": 0}, {"population": 0}, {"clip_norm": 0.0}])
def test_bad_parameters_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        tree_sum(**wrong)


def test_streams_of_other_numbers_are_those_of_their_own() -> None:
    keyed, fast = KeyedSource(SECRET, 7, 3), FastSource(1, 7, 3, one_generator=True)
    assert np.array_equal(keyed.of(5).words(4), KeyedSource(SECRET, 7, 5).words(4))
    drawn = fast.of(5).generator().random(4)
    assert np.array_equal(drawn, FastSource(1, 7, 5, one_generator=True).generator().random(4))
