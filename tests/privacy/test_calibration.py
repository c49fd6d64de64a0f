"""Noise for an epsilon and back; [vec] values of privacy-math.md section 5 (details a)."""

from __future__ import annotations

import math

import pytest

from veilrec.errors import BadInput
from veilrec.privacy.accounting import Rounds, epsilon_for, epsilon_of, noise_for, noise_multiplier_for
from veilrec.privacy.accounting.calibration import adaptive_clipping_noise
from veilrec.privacy.events import ComposedEvent, Event, GaussianEvent, PureEvent, repeated
from veilrec.privacy.gaussian import mu_for


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_the_noise_for_an_epsilon_keeps_it_and_wastes_little(epsilon: float, sampling: str) -> None:
    plan = Rounds(rounds=200, sampling=sampling, population=6040, cohort=100)  # type: ignore[arg-type]
    noise = noise_multiplier_for(epsilon, 1e-6, plan)
    assert 0.999 * epsilon <= epsilon_for(noise, 1e-6, plan) <= epsilon
    assert epsilon_for(0.99 * noise, 1e-6, plan) > epsilon


def test_without_sampling_the_noise_is_exact() -> None:
    plan = Rounds(rounds=30)
    assert noise_multiplier_for(2.0, 1e-6, plan) == pytest.approx(math.sqrt(30) / mu_for(2.0, 1e-6))
    assert epsilon_for(noise_multiplier_for(2.0, 1e-6, plan), 1e-6, plan) == pytest.approx(2.0)


def test_an_epsilon_that_protects_nobody_is_refused() -> None:
    plan = Rounds(rounds=2, sampling="poisson", population=60, cohort=20)
    assert noise_multiplier_for(1e6, 1e-6, plan) > 0.0
    for epsilon in (2e6, 1e308):
        with pytest.raises(BadInput, match=r"which protects nobody: give at most 1e\+06"):
            noise_multiplier_for(epsilon, 1e-6, plan)


def test_more_noise_or_fewer_rounds_or_a_smaller_cohort_spend_less() -> None:
    def spent(noise: float = 1.0, rounds: int = 100, cohort: int = 50) -> float:
        return epsilon_for(noise, 1e-6, Rounds(rounds=rounds, sampling="fixed", population=1000, cohort=cohort))

    assert spent(noise=1.5) < spent() < spent(noise=0.7)
    assert spent(rounds=50) < spent() < spent(rounds=200)
    assert spent(cohort=20) < spent() < spent(cohort=100)


def test_epsilon_of_section_5() -> None:
    plan = Rounds(rounds=1000, sampling="fixed", population=4800, cohort=30)
    assert epsilon_for(1.0, 1e-6, plan) == pytest.approx(1.5244, abs=1e-4)
    assert plan.adjacency == "replace-one"
    assert Rounds(rounds=1, sampling="poisson", population=9, cohort=3).adjacency == "add-remove"


def test_noise_for_any_event() -> None:
    def event(noise: float) -> Event:
        return ComposedEvent(((GaussianEvent(1.0 / noise), 10), (PureEvent(0.1), 3)))

    noise = noise_for(event, 2.0, 1e-6)
    assert 1.998 <= epsilon_of(event(noise), 1e-6) <= 2.0


def test_a_budget_that_no_noise_can_keep_is_refused() -> None:
    with pytest.raises(BadInput, match="no noise gives that epsilon"):
        noise_for(lambda _: repeated(PureEvent(1.0), 5), 2.0, 1e-6)


@pytest.mark.parametrize(
    ("cohort", "adjacency", "noise"),
    [(1000, "replace-one", 1.000200), (30, "replace-one", 1.341641), (30, "add-remove", 1.060660)],
)
def test_noise_left_for_the_update_of_section_5(cohort: int, adjacency: str, noise: float) -> None:
    split = adaptive_clipping_noise(1.0, cohort / 20, adjacency=adjacency)  # type: ignore[arg-type]
    assert split.update_noise_multiplier == pytest.approx(noise, abs=5e-7)
    assert split.count_standard_deviation == cohort / 20


def test_the_split_of_the_paper_of_section_5() -> None:
    # h = 0.7 of the budget on the quantile: z / sqrt(1 - h) on the update, z / sqrt(h) on the count
    split = adaptive_clipping_noise(1.0, 1.195229, adjacency="replace-one")
    assert split.update_noise_multiplier == pytest.approx(1.825742, abs=5e-6)


def test_a_count_that_spends_everything_is_refused() -> None:
    with pytest.raises(BadInput, match="give more than 1"):
        adaptive_clipping_noise(1.0, 0.9, adjacency="replace-one")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"rounds": 1, "sampling": "some"}, "unknown sampling 'some'"),
        ({"rounds": 1, "sampling": "fixed", "population": 10, "cohort": 11}, "a cohort of 11"),
        ({"rounds": 1, "sampling": "fixed", "population": 10, "cohort": 0}, "a cohort of 0"),
    ],
)
def test_impossible_rounds_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Rounds(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-6), (-1.0, 1e-6), (1.0, 0.0), (1.0, 2.0)])
def test_impossible_wishes_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(BadInput):
        noise_multiplier_for(epsilon, delta, Rounds(rounds=5, sampling="fixed", population=10, cohort=2))


def test_noise_of_zero_is_refused() -> None:
    with pytest.raises(BadInput, match="noise_multiplier is 0"):
        epsilon_for(0.0, 1e-6, Rounds(rounds=5))
