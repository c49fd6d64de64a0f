"""How the budget of a round is split between updates and count, and what a plan with a learnt bound is made of."""

from __future__ import annotations

import math

import pytest

from tests.audit.bounded_plans import PRIVACY, adaptive_plan
from veilrec.core.schema import BOUND, Schema, Tensor, with_bound
from veilrec.methods.private import adaptive_sum, noisy_sum
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.events import GaussianEvent, training_event
from veilrec.server.round_specs import CohortSettings, LearntBound

LAYER = Schema((Tensor("layer", (50,), by_row=False),))


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_a_large_cohort_pays_almost_nothing_for_the_count(sampling: str) -> None:
    cohort = CohortSettings(size=1000, sampling=sampling)  # type: ignore[arg-type]
    learnt = adaptive_sum(PRIVACY, cohort, LAYER, rounds=10, devices=20_000, keeps_state=False)
    plain = noisy_sum(PRIVACY, cohort, with_bound(LAYER), rounds=10, devices=20_000, keeps_state=False)
    assert learnt.count_standard_deviation == 50.0
    assert learnt.event() == plain.event()
    assert 1.0 < learnt.sigma / plain.sigma < 1.001


@pytest.mark.parametrize(("sampling", "moved"), [("poisson", 0.5), ("fixed", 1.0)])
def test_in_a_small_cohort_the_count_has_a_tenth_of_the_loss(sampling: str, moved: float) -> None:
    cohort = CohortSettings(size=5, sampling=sampling)  # type: ignore[arg-type]
    learnt = adaptive_sum(PRIVACY, cohort, LAYER, rounds=400, devices=60, keeps_state=True)
    plain = noisy_sum(PRIVACY, cohort, with_bound(LAYER), rounds=400, devices=60, keeps_state=True)
    share = (moved / learnt.count_standard_deviation * learnt.noise_multiplier) ** 2
    assert share == pytest.approx(0.1)
    assert learnt.sigma / plain.sigma == pytest.approx(1.0 / math.sqrt(0.9), rel=1e-4)


def test_what_was_released_before_and_a_noise_of_ones_own() -> None:
    cohort = CohortSettings(size=20, sampling="poisson")
    options = {"rounds": 6, "devices": 60, "keeps_state": True}
    alone = adaptive_sum(PRIVACY, cohort, LAYER, **options)  # type: ignore[arg-type]
    after = adaptive_sum(PRIVACY, cohort, LAYER, before=GaussianEvent(1.0), **options)  # type: ignore[arg-type]
    quiet = adaptive_sum(PRIVACY, cohort, LAYER, count_standard_deviation=30.0, **options)  # type: ignore[arg-type]
    assert after.noise_multiplier > alone.noise_multiplier
    assert (quiet.count_standard_deviation, quiet.noise_multiplier) == (30.0, alone.noise_multiplier)


def test_a_plan_holds_the_bound_as_one_more_number() -> None:
    plan = adaptive_plan()
    assert plan.schema[BOUND].shape == (1,)
    assert plan.start[BOUND].tolist() == [PRIVACY.clip_norm]
    assert isinstance(plan.agenda, LearntBound)
    assert epsilon_of(training_event(plan), PRIVACY.delta) <= PRIVACY.epsilon
