from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from veilrec._arrays import Doubles
from veilrec.errors import BadInput
from veilrec.privacy.gaussian import delta_gaussian
from veilrec.privacy.mechanism import Calibration
from veilrec.privacy.mechanisms.gaussian import Gaussian, classical_sigma, lattice_mu
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
        {"delta": 1e-18},  # below what the sampler itself spends
        {"sensitivity": 0.0},
        {"dimension": 0},
        {"calibration": "guessed"},
        {"epsilon": 1e-9, "dimension": 2_500_000, "delta": 1e-9},
    ],
)
def test_bad_parameters_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        _gaussian(**wrong)
