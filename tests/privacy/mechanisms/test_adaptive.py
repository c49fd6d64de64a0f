from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from veilrec.errors import BadInput
from veilrec.privacy.accounting import Rounds
from veilrec.privacy.mechanisms.adaptive import AdaptiveSum
from veilrec.privacy.mechanisms.updates import CohortSum
from veilrec.privacy.randomness import SeededSource
from veilrec.updates import Schema, Tensor


def _adaptive(**options: Any) -> AdaptiveSum:
    right: dict[str, Any] = {
        "dimension": 4,
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "count_standard_deviation": 1.5,
        "population": 30,
        "cohort": 30,
        "delta": 1e-3,
    }
    return AdaptiveSum(**right | options)


@pytest.mark.parametrize(("deviation", "expected"), [(50.0, 1.000200), (1.5, 1.341641)])
def test_noise_split_of_section_5(deviation: float, expected: float) -> None:
    mechanism = _adaptive(count_standard_deviation=deviation)
    assert mechanism.sigma / mechanism.sensitivity.value == pytest.approx(expected, abs=2e-6)


def test_both_releases_together_cost_what_one_would() -> None:
    mechanism = _adaptive()
    mu_count = 1.0 / mechanism.count_standard_deviation + 2.0**-20
    together = math.hypot(mechanism.sensitivity.value / mechanism.sigma, mu_count)
    assert together == pytest.approx(mechanism.event().mu)
    people = Rounds(rounds=1, sampling="fixed", population=30, cohort=10)
    schema = Schema((Tensor("layer", (4,), by_row=False),))
    alone = CohortSum(schema=schema, clip_norm=1.0, noise_multiplier=1.0, taking_part=people, delta=1e-3)
    assert _adaptive(cohort=10).claimed_epsilon == pytest.approx(alone.claimed_epsilon)


def test_fraction_is_taken_before_clipping() -> None:
    mechanism = _adaptive(noise_multiplier=100.0, count_standard_deviation=1000.0)
    updates = np.zeros((30, 4))
    updates[:12, 0] = 5.0
    source = SeededSource(1)
    fractions = [mechanism.release(updates, source).value.unclipped_fraction for _ in range(4000)]
    # 18 of 30 are below the bound; taken after clipping it would be 30 of 30. Noise 1000 / 30 each, 5 standard errors.
    assert np.mean(fractions) == pytest.approx(0.6, abs=5.0 * 1000.0 / 30.0 / math.sqrt(4000))
    assert np.std(fractions) == pytest.approx(1000.0 / 30.0, rel=0.1)


def test_a_quiet_count_finds_the_quantile() -> None:
    generator, source = np.random.default_rng(2), SeededSource(2)
    clip_norm = 20.0
    for _ in range(150):
        mechanism = _adaptive(clip_norm=clip_norm, population=200, cohort=200, noise_multiplier=1.0)
        updates = generator.normal(size=(200, 4))
        clip_norm = mechanism.next_clip_norm(mechanism.release(updates, source).value, quantile=0.5)
    norms = np.linalg.norm(generator.normal(size=(20_000, 4)), axis=1)
    assert clip_norm == pytest.approx(np.median(norms), rel=0.1)


@pytest.mark.parametrize(
    "wrong", [{"clip_norm": 0.0}, {"cohort": 31}, {"delta": 1.0}, {"count_standard_deviation": 0.5}, {"dimension": 0}]
)
def test_bad_parameters_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        _adaptive(**wrong)
