from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from veilrec.device.numerics import add_scaled, add_scaled_rows, dot, mean_logistic_loss, row_dots, sigmoids

SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 101]


def sigmoids_of(values: np.ndarray) -> np.ndarray:
    result = values.astype(np.float32)
    sigmoids(result, len(result), np.empty(len(result), np.int32))
    return result


def test_sigmoids_to_four_units_in_the_last_place() -> None:
    x = np.linspace(-87.0, 87.0, 400_001).astype(np.float32)
    exact = expit(x.astype(np.float64))
    assert np.max(np.abs(sigmoids_of(x) / exact - 1.0)) < 4 * np.finfo(np.float32).eps


def test_sigmoids_are_flat_but_finite_beyond_87() -> None:
    below, above = np.array([-1e30, -1000.0, -100.0, -88.0]), np.array([88.0, 100.0, 1000.0, 1e30])
    assert np.max(np.abs(sigmoids_of(below) - expit(below))) < 2e-38
    assert np.max(np.abs(sigmoids_of(above) - expit(above))) <= np.finfo(np.float32).eps


def test_sigmoids_touch_only_the_first_values() -> None:
    values = np.full(6, 3.0, np.float32)
    sigmoids(values, 4, np.empty(6, np.int32))
    assert values[4:].tolist() == [3.0, 3.0]
    assert np.allclose(values[:4], expit(3.0))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dim", [1, 3, 8, 33])
def test_row_dots_and_scaled_rows_for_every_remainder(size: int, dim: int) -> None:
    generator = np.random.default_rng(size * 100 + dim)
    rows = generator.standard_normal((20, dim)).astype(np.float32)
    vector = generator.standard_normal(dim).astype(np.float32)
    scales = generator.standard_normal(size).astype(np.float32)
    slots = generator.integers(0, 20, size).astype(np.int32)
    exact = rows.astype(np.float64)[slots]

    dots = np.full(size + 1, 7.0, np.float32)
    row_dots(rows, slots, vector, dots)
    assert np.allclose(dots[:size], exact @ vector, rtol=1e-5, atol=1e-5)
    assert dots[size] == 7.0

    total = vector.copy()
    add_scaled_rows(rows, slots, scales, total)
    assert np.allclose(total, vector + scales.astype(np.float64) @ exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_dot_and_add_scaled(size: int) -> None:
    left, right = np.random.default_rng(size).standard_normal((2, size)).astype(np.float32)
    assert dot(left, right) == pytest.approx(left.astype(np.float64) @ right, rel=1e-5, abs=1e-5)
    exact = left + 0.3 * right.astype(np.float64)
    add_scaled(left, right, np.float32(0.3))
    assert np.allclose(left, exact, rtol=1e-6, atol=1e-6)


def test_mean_logistic_loss() -> None:
    scores = np.array([-3.0, 0.5, 2.0, 4.0])
    labels = np.array([0.0, 1.0, 0.0, 1.0])
    exact = np.mean(np.logaddexp(0.0, -(2.0 * labels - 1.0) * scores))
    errors = (expit(scores) - labels).astype(np.float32)
    assert mean_logistic_loss(errors) == pytest.approx(exact, rel=1e-5)
    assert mean_logistic_loss(errors[:0]) == 0.0
    assert np.isfinite(mean_logistic_loss(np.array([1.0, -1.0], np.float32)))
