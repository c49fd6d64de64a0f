"""Gaussian and Laplace noise on vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from veilrec.core.arrays import Doubles
from veilrec.core.errors import BadInput
from veilrec.privacy.accounting.gaussian import delta_gaussian
from veilrec.privacy.events import GaussianEvent
from veilrec.privacy.mechanisms.base import (
    Calibration,
    Gaussian,
    Laplace,
    classical_sigma,
    lattice_delta,
    lattice_mu,
    left_by_sampler,
)
from veilrec.privacy.randomness import SeededSource
from veilrec.privacy.samplers import UNITS


def _gaussian(
    epsilon: float = 1.0,
    delta: float = 1e-6,
    dimension: int = 5,
    sensitivity: float = 1.0,
    calibration: Calibration = "proven",
) -> Gaussian:
    return Gaussian(
        dimension=dimension,
        sensitivity=sensitivity,
        epsilon=epsilon,
        delta=delta,
        unit="user",
        adjacency="replace-one",
        calibration=calibration,
    )


@pytest.mark.parametrize(
    ("epsilon", "delta", "expected"),
    [(1.0, 1e-6, 4.224679), (10.0, 1e-3, 0.406060), (0.5, 1e-3, 4.610128), (1.0, 1e-3, 2.574657)],
)
def test_sigma_of_section_1(epsilon: float, delta: float, expected: float) -> None:
    assert 1.0 / lattice_mu(epsilon, delta, 1) == pytest.approx(expected, abs=1e-6)
    # Where nothing is known of the vectors, the lattice costs sqrt(d) / 2^20 of mu.
    assert _gaussian(epsilon, delta).sigma == pytest.approx(expected, rel=2e-5)
    assert _gaussian(epsilon, delta).sigma > expected * (1.0 - 1e-6)


def test_classical_formula_of_section_1() -> None:
    assert classical_sigma(10.0, 1e-3, 1.0) == pytest.approx(0.377648, abs=5e-7)
    assert delta_gaussian(10.0, 1.0 / 0.377648) == pytest.approx(3.362e-3, abs=5e-7)
    published = _gaussian(10.0, 1e-3, calibration="as-published")
    assert published.delta(10.0) == pytest.approx(3.362e-3, rel=1e-3)


def test_model_sized_vectors_pay_for_the_lattice_and_the_sampler() -> None:
    large, small = _gaussian(dimension=2_500_000), _gaussian(dimension=1)
    assert 1.0 < large.sigma / small.sigma < 1.01
    assert large.delta(1.0) <= 1e-6


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (40.0, 1e-6), (8.0, 1e-18)])
def test_the_sampler_adds_to_epsilon_and_scales_delta(epsilon: float, delta: float) -> None:
    draws = 10**9
    left, ideal = left_by_sampler(epsilon, delta, draws)
    assert 0.0 < epsilon - left == pytest.approx(2.0 * draws * 2.0**-48, rel=1e-6)
    assert ideal == pytest.approx(delta, rel=1e-5)  # no tail is missing, so nothing is added that e^epsilon multiplies
    event = GaussianEvent(lattice_mu(epsilon, delta, draws))
    assert lattice_delta(event, epsilon, draws) == pytest.approx(delta, rel=1e-6)
    assert lattice_delta(event, 0.0, draws) >= delta_gaussian(0.0, event.mu) + 2.0 * draws * 2.0**-48


def test_noise_has_its_sigma() -> None:
    mechanism = _gaussian(dimension=50_000)
    noise = mechanism.release(np.zeros(50_000), SeededSource(1)).value / mechanism.sigma
    assert stats.kstest(noise, "norm").pvalue > 1e-6  # false alarm for one seed in a million


def test_each_device_of_a_cohort_gets_its_own_noise() -> None:
    noisy = _gaussian().release(np.zeros((30, 5)), SeededSource(2)).value
    assert len(np.unique(noisy)) == 150


@settings(deadline=None)
@given(arrays(np.float64, (3, 4), elements=st.floats(-1e9, 1e9)), st.floats(0.01, 20.0), st.integers(0, 2**32))
def test_outputs_lie_on_the_lattice(value: Doubles, epsilon: float, seed: int) -> None:
    mechanism = _gaussian(epsilon, 1e-5, dimension=4)
    noisy = mechanism.release(value, SeededSource(seed)).value
    grid = mechanism.sigma / UNITS
    np.testing.assert_array_equal(np.rint(noisy / grid) * grid, noisy)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"epsilon": math.nan},
        {"delta": 0.0},
        {"delta": 1.0},
        {"sensitivity": 0.0},
        {"dimension": 0},
        {"calibration": "guessed"},
        {"epsilon": 1e-9, "dimension": 2_500_000, "delta": 1e-9},
    ],
)
def test_bad_parameters_of_gaussian_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        _gaussian(**wrong)


def _laplace(epsilon: float = 1.0, dimension: int = 5, sensitivity: float = 2.0) -> Laplace:
    return Laplace(dimension=dimension, sensitivity=sensitivity, epsilon=epsilon, unit="user", adjacency="replace-one")


def test_scale_is_l1_sensitivity_over_epsilon() -> None:
    assert _laplace(0.5).scale == pytest.approx(4.0, rel=1e-4)
    assert _laplace(0.5).scale > 4.0


def test_noise_has_its_scale_and_lies_on_the_lattice() -> None:
    mechanism = _laplace(dimension=50_000)
    noisy = mechanism.release(np.full(50_000, math.pi), SeededSource(1)).value
    grid = mechanism.scale / UNITS
    np.testing.assert_array_equal(np.rint(noisy / grid) * grid, noisy)
    assert stats.kstest((noisy - math.pi) / mechanism.scale, "laplace").pvalue > 1e-6  # one seed in a million


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.8, 0.2), (0.4, 0.3, 0.3)])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 0.7])
def test_one_coordinate_is_the_worst_pair(shares: tuple[float, ...], epsilon: float) -> None:
    """Monte Carlo of the exact profile when the distance is spread; 5 standard errors: one seed in a million."""
    generator = np.random.default_rng(1)
    x = generator.laplace(size=(200_000, len(shares)))
    loss = (np.abs(x - np.array(shares)) - np.abs(x)).sum(axis=1)
    excess = np.maximum(-np.expm1(epsilon - loss), 0.0)
    spread = excess.mean() + 5.0 * excess.std() / math.sqrt(len(x))
    assert spread < -math.expm1((epsilon - 1.0) / 2.0)  # the profile of one coordinate with the whole distance


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"epsilon": 1e-9}, {"sensitivity": 0.0}, {"dimension": 0}])
def test_bad_parameters_of_laplace_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput):
        _laplace(**wrong)  # type: ignore[arg-type]
