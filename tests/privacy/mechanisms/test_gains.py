"""The sum of the judges' gains: bounded, noisy, and held against what noise and chance explain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.privacy.accounting import delta_of
from veilrec.privacy.mechanisms.clipping import BadUpdate
from veilrec.privacy.mechanisms.sums import GainSum
from veilrec.privacy.randomness import FastSource, KeyedSource


def gains(**changes: object) -> GainSum:
    settings = {"clip": 0.1, "epsilon": 2.0, "delta": 1e-6, "adjacency": "add-remove"} | changes
    return GainSum(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("said", [5.0, -5.0, math.inf, -math.inf, math.nan, 1e300])
def test_no_judge_counts_more_than_the_clip(said: float) -> None:
    assert abs(float(gains().total(np.array([said])))) <= 0.1


def test_the_sum_is_rounded_once_whatever_the_order() -> None:
    told = np.random.default_rng(1).uniform(-0.2, 0.2, 1000)
    assert gains().total(told) == gains().total(told[::-1])


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_noise_is_what_epsilon_and_delta_need(adjacency: str) -> None:
    mechanism = gains(adjacency=adjacency)
    assert mechanism.delta(2.0) <= 1e-6
    assert mechanism.delta(2.0) > 0.99e-6  # and no more
    assert delta_of(mechanism.event(), 2.0) == pytest.approx(1e-6)
    assert mechanism.sensitivity.value == pytest.approx(0.1 if adjacency == "add-remove" else 0.2)


@pytest.mark.parametrize("source", [FastSource(1), KeyedSource(b"a secret of thirty-two bytes or so", 1)])
def test_noise_has_its_size(source: FastSource | KeyedSource) -> None:
    """Of 4,000 draws the standard deviation errs by 1.1 per cent; beyond 6 per cent once in 10^7."""
    drawn = gains().release_many(np.full((50, 1), 0.02), 4000, source).value
    assert drawn.std() == pytest.approx(gains().sigma, rel=0.06)
    assert drawn.mean() == pytest.approx(1.0, abs=6 * gains().sigma / math.sqrt(4000))


def test_a_larger_word_than_allowed_is_refused() -> None:
    gains().check(0.1)
    for said in (0.1001, math.nan, -1.0):
        with pytest.raises(BadUpdate, match="at most"):
            gains().check(said)


def test_chance_alone_seldom_exceeds_the_threshold() -> None:
    """Models that are equally good: gains of +-clip at random. 1 in 40 on one side; 2,000 trials err by 0.0035."""
    mechanism, generator = gains(), np.random.default_rng(2)
    judges, wrong = 200, 0
    for trial in range(2000):
        told = generator.choice([-0.1, 0.1], (judges, 1))
        mean = mechanism.release(told, FastSource(3, trial)).value[0] / judges
        wrong += mean > mechanism.threshold(judges)
    assert wrong / 2000 < 0.04


def test_bad_settings_are_refused() -> None:
    for name, value in (("clip", 0.0), ("epsilon", -1.0), ("delta", 0.0), ("clip", math.nan)):
        with pytest.raises(BadInput, match=name):
            gains(**{name: value})
    with pytest.raises(BadInput, match="judges"):
        gains().threshold(0)
    with pytest.raises(BadInput, match="shape"):
        gains().total(np.zeros((2, 2)))
