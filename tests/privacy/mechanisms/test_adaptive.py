from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.core.schema import BOUND, ClientUpdates, RoundSpec, Schema, Tensor, from_vectors, with_bound
from veilrec.privacy.accounting import Rounds
from veilrec.privacy.mechanisms.clipping import BadUpdate, upload_norms
from veilrec.privacy.mechanisms.schedules import AdaptiveSum, first_bound, without_count
from veilrec.privacy.mechanisms.sums import CohortSum
from veilrec.privacy.randomness import SeededSource

LAYER = Schema((Tensor("layer", (4,), by_row=False),))
EVERYBODY = Rounds(rounds=1, sampling="fixed", population=30, cohort=30)


def adaptive(**options: Any) -> AdaptiveSum:
    right: dict[str, Any] = {
        "schema": with_bound(LAYER),
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "count_standard_deviation": 1.5,
        "taking_part": EVERYBODY,
        "delta": 1e-3,
    }
    return AdaptiveSum(**right | options)


def updates(*norms: float) -> ClientUpdates:
    vectors = np.zeros((len(norms), 5))
    vectors[:, 0] = norms
    return from_vectors(vectors, with_bound(LAYER))


@pytest.mark.parametrize(
    ("sampling", "deviation", "expected"),
    [("fixed", 50.0, 1.000200), ("fixed", 1.5, 1.341641), ("poisson", 1.5, 1.060660)],
)
def test_noise_split_of_section_5(sampling: Any, deviation: float, expected: float) -> None:
    people = Rounds(rounds=1, sampling=sampling, population=30, cohort=30)
    mechanism = adaptive(count_standard_deviation=deviation, taking_part=people)
    assert mechanism.sigma / mechanism.sensitivity.value == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("sampling", "moved"), [("fixed", 1.0), ("poisson", 0.5)])
def test_both_releases_together_cost_what_one_would(sampling: Any, moved: float) -> None:
    people = Rounds(rounds=1, sampling=sampling, population=30, cohort=10)
    mechanism = adaptive(taking_part=people)
    mu_count = moved / mechanism.count_standard_deviation + 2.0**-20
    mu_update = (mechanism.sensitivity.value * (1 + 2.0**-51 * 900) / mechanism.sigma) + math.sqrt(5) * 2.0**-20
    assert math.hypot(mu_update, mu_count) == pytest.approx(1.0, abs=1e-12)
    alone = CohortSum(schema=LAYER, clip_norm=1.0, noise_multiplier=1.0, taking_part=people, delta=1e-3)
    assert mechanism.event() == alone.event()


def test_a_click_of_a_user_who_tosses_a_coin_moves_the_count_by_one() -> None:
    people = Rounds(rounds=1, sampling="poisson", population=30, cohort=30, unit="click")
    mechanism = adaptive(taking_part=people)
    assert mechanism.sigma / mechanism.sensitivity.value == pytest.approx(1.341641, abs=1e-5)


def test_who_is_within_the_bound_is_decided_before_clipping() -> None:
    bounded = adaptive().bound(updates(0.0, 0.5, 1.0, 1.001, 50.0), RoundSpec(0))
    assert bounded.dense[BOUND].ravel().tolist() == [0.5, 0.5, 0.5, -0.5, -0.5]
    norms = upload_norms(without_count(bounded))
    assert norms == pytest.approx([0.0, 0.5, 1.0, 1.0, 1.0], rel=1e-6)
    assert (norms <= 1.0).all()


def test_a_round_has_its_own_bound() -> None:
    mechanism, about = adaptive(), RoundSpec(3, clip_norm=4.0)
    bounded = mechanism.bound(updates(2.0, 5.0), about)
    assert bounded.dense[BOUND].ravel().tolist() == [0.5, -0.5]
    assert upload_norms(without_count(bounded)) == pytest.approx([2.0, 4.0], rel=1e-6)
    assert mechanism.sigma_in("layer", about) == 4.0 * mechanism.sigma
    assert mechanism.sigma_in(BOUND, about) == mechanism.count_standard_deviation
    mechanism.check(bounded, about)
    with pytest.raises(BadUpdate, match="takes at most 1"):
        mechanism.check(bounded, RoundSpec(3))


def test_what_a_learner_says_of_the_bound_is_left_out() -> None:
    own = updates(0.5)
    own.dense[BOUND][...] = 1e30
    assert adaptive().bound(own, RoundSpec(0)).dense[BOUND].tolist() == [[0.5]]


@pytest.mark.parametrize("counts", [None, [[0.25]], [[1.0]], [[math.nan]], [[0.5, 0.5]]])
def test_counts_that_no_device_sends_are_refused(counts: Any) -> None:
    mechanism = adaptive()
    dense = dict(mechanism.bound(updates(0.5), RoundSpec(0)).dense)
    del dense[BOUND]
    if counts is not None:
        dense[BOUND] = np.array(counts, np.float32)
    with pytest.raises(BadUpdate, match="1/2"):
        mechanism.check(replace(updates(0.5), dense=dense), RoundSpec(0))


@pytest.mark.parametrize("clip_norm", [0.0099, 101.0])
def test_a_bound_out_of_reach_is_refused(clip_norm: float) -> None:
    with pytest.raises(BadInput, match=r"from 0.01 to 100"):
        adaptive().bound(updates(0.5), RoundSpec(0, clip_norm=clip_norm))


def test_noise_of_a_round_follows_its_bound_and_that_of_the_count_does_not() -> None:
    mechanism = adaptive()
    for clip_norm in (0.5, 8.0):
        sums = {"layer": np.zeros(20_000), BOUND: np.zeros(20_000)}
        mechanism.protect(sums, RoundSpec(0, clip_norm=clip_norm), SeededSource(3))
        # The standard error of a spread of 20,000 numbers is 0.5 %: 2.5 % is five of them, wrong once in 10^6 seeds.
        assert np.std(sums["layer"]) == pytest.approx(clip_norm * mechanism.sigma, rel=0.025)
        assert np.std(sums[BOUND]) == pytest.approx(1.5, rel=0.025)
        steps = sums["layer"] / (clip_norm * mechanism.sigma / 2.0**20)
        assert np.allclose(steps, np.round(steps), rtol=0, atol=1e-6)  # on the lattice of its own sigma


@pytest.mark.parametrize(
    "wrong", [{"clip_norm": 0.0}, {"delta": 1.0}, {"count_standard_deviation": 0.5}, {"schema": LAYER}]
)
def test_bad_parameters_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        adaptive(**wrong)


def test_the_first_bound_is_a_number_of_the_model() -> None:
    assert first_bound(0.25)[BOUND].tolist() == [0.25]
    with pytest.raises(BadInput, match="clip_norm"):
        first_bound(0.0)
