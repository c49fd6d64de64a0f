"""Rounds with bounds of their own: what each costs, what all cost together, and what is cut off."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.core.schema import RoundSpec, Schema, Tensor, from_vectors, to_vectors
from veilrec.privacy.accounting import Rounds, epsilon_of
from veilrec.privacy.accounting.accountant import noise_for
from veilrec.privacy.events import ComposedEvent, GaussianEvent, SampledEvent
from veilrec.privacy.mechanisms.clipping import BadUpdate, upload_norms
from veilrec.privacy.mechanisms.schedules import ScheduledSum, only_of_round, run_event
from veilrec.privacy.randomness import SeededSource

SCHEMA = Schema((Tensor("first", (3,), by_row=False), Tensor("second", (2, 2), by_row=False)))
BOUNDS = (0.5, 1.0, 1.0, 0.25)


def scheduled(**options: Any) -> ScheduledSum:
    everybody = Rounds(rounds=4, sampling="poisson", population=30, cohort=30)
    right: dict[str, Any] = {
        "schema": SCHEMA,
        "clip_norms": BOUNDS,
        "noise_multiplier": 2.0,
        "taking_part": everybody,
        "delta": 1e-3,
    }
    return ScheduledSum(**right | options)


def test_all_rounds_cost_the_root_of_the_sum_of_squares() -> None:
    mechanism = scheduled()
    mus = [bound / mechanism.sigma for bound in BOUNDS]
    expected = epsilon_of(GaussianEvent(math.hypot(*mus)), 1e-6)
    assert epsilon_of(ComposedEvent(mechanism.events(4)), 1e-6) == pytest.approx(expected, rel=1e-4)
    assert epsilon_of(ComposedEvent(mechanism.events(4)), 1e-6) >= expected  # the lattice of the noise counts too
    assert sum(count for _, count in mechanism.events(4)) == 4


def test_the_costliest_round_is_that_of_the_largest_bound() -> None:
    mechanism = scheduled()
    assert mechanism.event_in(RoundSpec(1)) == mechanism.event()
    costs = [epsilon_of(mechanism.event_in(RoundSpec(number)), 1e-6) for number in range(4)]
    assert costs[3] < costs[0] < costs[1] == costs[2]
    assert mechanism.event_in(RoundSpec(4)) == mechanism.event()  # nothing is known of it: as if it were the costliest


def test_a_message_is_cut_to_the_bound_of_its_round_whatever_the_round_says() -> None:
    mechanism = scheduled()
    huge = from_vectors(np.full((2, 7), 1e6), SCHEMA)
    for number, bound in enumerate((*BOUNDS, min(BOUNDS))):
        for said in (None, 100.0, bound):
            kept = mechanism.bound(huge, RoundSpec(number, clip_norm=said))
            assert upload_norms(kept) == pytest.approx(bound, rel=1e-5)
            assert (upload_norms(kept) <= bound).all()
    assert upload_norms(mechanism.bound(huge, RoundSpec(1, clip_norm=0.1))).max() <= 0.1


def test_what_the_round_is_not_about_is_left_out_and_refused() -> None:
    mechanism, about = scheduled(), RoundSpec(1, tensors=("second",))
    huge = from_vectors(np.full((2, 7), 1e6), SCHEMA)
    kept = mechanism.bound(huge, about)
    assert list(kept.dense) == ["second"]
    assert upload_norms(kept) == pytest.approx(1.0, rel=1e-5)
    with pytest.raises(BadUpdate, match="other tensors"):
        mechanism.check(huge, about)
    assert only_of_round(kept, about) is kept
    mechanism.check(kept, about)


def test_noise_is_the_same_in_every_round_and_on_every_tensor() -> None:
    mechanism = scheduled(schema=Schema((Tensor("first", (4000,), by_row=False), Tensor("second", (4000,), False))))
    for number in range(4):
        sums = {"first": np.zeros(4000), "second": np.zeros(4000)}
        mechanism.protect(sums, RoundSpec(number), SeededSource(number))
        for noise in sums.values():
            assert noise.std() == pytest.approx(mechanism.sigma, rel=0.06)  # 5 standard errors


@pytest.mark.parametrize("cohort", [30, 6])
def test_noise_that_is_chosen_for_a_promise_keeps_it(cohort: int) -> None:
    people = Rounds(rounds=4, sampling="poisson", population=30, cohort=cohort)
    noise = noise_for(lambda z: run_event(BOUNDS, people, z, 7), 1.0, 1e-6, guess=5.0)
    mechanism = scheduled(noise_multiplier=noise, taking_part=people)
    spent = epsilon_of(ComposedEvent(mechanism.events(4)), 1e-6)
    assert 0.99 < spent <= 1.0
    assert all(isinstance(event, SampledEvent) for event, _ in mechanism.events(4))


def test_there_is_a_bound_for_every_round() -> None:
    with pytest.raises(BadInput, match="give one for each"):
        scheduled(clip_norms=(1.0, 1.0))
    with pytest.raises(BadInput, match="clip_norm_of_round_1"):
        scheduled(clip_norms=(1.0, 0.0, 1.0, 1.0))


def test_whoever_looks_at_sums_sees_what_was_sent() -> None:
    sent = from_vectors(np.arange(14.0).reshape(2, 7) / 100.0, SCHEMA)
    assert np.allclose(to_vectors(scheduled().bound(sent, RoundSpec(1)), SCHEMA), to_vectors(sent, SCHEMA))
