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
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.events import GaussianEvent, LaplaceEvent, repeated
from veilrec.privacy.mechanisms.updates import CohortSum, ElementwiseLaplace, RowwiseLaplace, UpdateNoise
from veilrec.privacy.randomness import SeededSource
from veilrec.privacy.samplers import UNITS

FEDNEWSREC_PARAMETERS = 920_801 + 1_602_002


def _cohort(**options: Any) -> CohortSum:
    right: dict[str, Any] = {
        "dimension": 4,
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "population": 10,
        "cohort": 3,
        "delta": 1e-3,
    }
    return CohortSum(**right | options)


def test_fednewsrec_of_section_4() -> None:
    assert FEDNEWSREC_PARAMETERS == 2_522_803
    published = ElementwiseLaplace(
        dimension=FEDNEWSREC_PARAMETERS, clip_value=0.005, epsilon=2.0 / 3.0, calibration="as-published"
    )
    assert published.scale == pytest.approx(0.015)
    assert epsilon_of(published.event(), 0.0) == pytest.approx(1_681_868.67, rel=1e-8)
    ratio = 2.0 * 0.005 / published.scale
    assert ratio * math.sqrt(FEDNEWSREC_PARAMETERS) == pytest.approx(1058.889, abs=5e-4)
    assert ratio + math.exp(-ratio) - 1.0 == pytest.approx(0.180084, abs=5e-7)  # nats per coordinate
    assert stats.norm.cdf(0.075 / (0.015 * math.sqrt(2.0))) == pytest.approx(0.9998, abs=5e-5)


def test_three_hundred_coordinates_of_section_4() -> None:
    block = ElementwiseLaplace(dimension=300, clip_value=0.005, epsilon=2.0 / 3.0, calibration="as-published")
    assert epsilon_of(block.event(), 0.0) == pytest.approx(200.0)
    assert epsilon_of(block.event(), 1e-6) == pytest.approx(99.80, abs=0.02)


def test_proven_elementwise_noise_pays_for_every_coordinate() -> None:
    proven = ElementwiseLaplace(dimension=300, clip_value=0.005, epsilon=2.0)
    assert proven.scale == pytest.approx(0.01 * 300 / 2.0)


@pytest.mark.parametrize(("published_sensitivity", "factor"), [(2.0, 5.656854), (1.0, 11.313708)])
def test_rowwise_laplace_of_section_7(published_sensitivity: float, factor: float) -> None:
    published = RowwiseLaplace(rows=1, width=32, clip_norm=1.0, epsilon=0.4, calibration="as-published")
    claimed_per_row = epsilon_of(published.event(), 0.0) / 0.4
    assert claimed_per_row * 2.0 / published_sensitivity == pytest.approx(factor, abs=1e-6)


@pytest.mark.parametrize(("items", "expected"), [(545.5, 6172.0), (1195.3, 13_524.0)])
def test_rowwise_laplace_per_round_of_section_7(items: float, expected: float) -> None:
    published = RowwiseLaplace(rows=10, width=32, clip_norm=1.0, epsilon=2.0, calibration="as-published")
    assert epsilon_of(published.event(), 0.0) / 10 * items == pytest.approx(expected, abs=1.0)


def test_epoch_budgets_add_up_harmonically_section_7() -> None:
    # "epsilon_2 / e" with the loop index e
    spent = sum(epsilon_of(LaplaceEvent(2.0 / epoch), 0.0) for epoch in range(1, 6))
    assert spent == pytest.approx(4.566667, abs=5e-7)


def test_rows_compose() -> None:
    three = RowwiseLaplace(rows=3, width=4, clip_norm=1.0, epsilon=6.0)
    assert three.event() == repeated(LaplaceEvent(three.row_sensitivity / three.scale + 8 * 2.0**-48), 3)
    assert epsilon_of(three.event(), 0.0) == pytest.approx(6.0)


@pytest.mark.parametrize(("uploads", "expected"), [(42, 25.8428), (13, 14.3776), (42 * 10, 81.722), (13 * 10, 45.466)])
def test_local_noise_of_section_7(uploads: int, expected: float) -> None:
    # User level (2, 1e-5) over all uploads, sigma in units of the clip norm; mu adds up in squares.
    whole_run = UpdateNoise(dimension=1, clip_norm=1.0, epsilon=2.0, delta=1e-5)
    assert whole_run.sigma * math.sqrt(uploads) == pytest.approx(expected, rel=1e-5)


def test_unit_noise_over_130_uploads_of_section_7() -> None:
    event = repeated(GaussianEvent(2.0), 130)  # replace-one: 2 P over sigma = P
    assert epsilon_of(event, 1e-5) == pytest.approx(356.34, abs=5e-3)
    assert epsilon_of(GaussianEvent(22.8035), 1e-5) == pytest.approx(356.34, abs=5e-3)


def test_secure_histogram_of_section_6() -> None:
    # At most 100 items per user: one user moves the counts by 10 in L2, added or removed.
    whole = UpdateNoise(dimension=1, clip_norm=5.0, epsilon=2.0, delta=1e-6)
    assert whole.sensitivity.value == 10.0
    assert whole.sigma == pytest.approx(22.305, abs=5e-4)


@settings(deadline=None, max_examples=50)
@given(arrays(np.float64, (2, 6), elements=st.floats(-1e12, 1e12)), st.floats(1e-3, 1e3), st.integers(0, 2**32))
def test_messages_are_finite_and_on_the_lattice(update: Doubles, clip_norm: float, seed: int) -> None:
    gaussian = UpdateNoise(dimension=6, clip_norm=clip_norm, epsilon=1.0, delta=1e-6)
    laplace = ElementwiseLaplace(dimension=6, clip_value=clip_norm, epsilon=1.0)
    rows = RowwiseLaplace(rows=2, width=3, clip_norm=clip_norm, epsilon=1.0)
    source = SeededSource(seed)
    for grid, noisy in (
        (gaussian.sigma / UNITS, gaussian.release(update, source).value),
        (laplace.scale / UNITS, laplace.release(update, source).value),
        (rows.scale / UNITS, rows.release(update.reshape(2, 2, 3), source).value),
    ):
        np.testing.assert_array_equal(np.rint(noisy / grid) * grid, noisy)


def test_each_cohort_member_is_clipped_by_itself() -> None:
    mechanism = _cohort(noise_multiplier=1e-3, population=3, cohort=3)
    updates = np.array([[100.0, 0, 0, 0], [0, 0.5, 0, 0], [0, 0, -7.0, 0]])
    total = mechanism.release(updates, SeededSource(1)).value
    np.testing.assert_allclose(total, [1.0, 0.5, -1.0, 0.0], atol=0.02)


def test_fixed_cohorts_have_their_size_and_everybody_the_same_chance() -> None:
    mechanism = _cohort(noise_multiplier=1e-6)
    updates = np.zeros((10, 4))
    updates[:, 0] = 1.0
    updates[0, 1] = 1.0
    source = SeededSource(2)
    sums = np.array([mechanism.release(updates * 0.5, source).value for _ in range(3000)])
    np.testing.assert_allclose(sums[:, 0], 1.5, atol=1e-3)
    # 5 standard deviations: one seed in a million
    assert (sums[:, 1] > 0.25).mean() == pytest.approx(0.3, abs=5.0 * math.sqrt(0.21 / 3000))


def test_poisson_cohorts_are_binomial() -> None:
    mechanism = _cohort(noise_multiplier=1e-6, sampling="poisson")
    source = SeededSource(3)
    value = np.tile([0.5, 0.0, 0.0, 0.0], (10, 1))
    sizes = np.rint([2.0 * mechanism.release(value, source).value[0] for _ in range(3000)]).astype(int)
    expected = stats.binom.pmf(np.arange(8), 10, 0.3)
    counts = np.append(np.bincount(sizes, minlength=11)[:8], (sizes > 7).sum())
    assert stats.chisquare(counts, np.append(expected, 1.0 - expected.sum()) * 3000).pvalue > 1e-6


def test_noise_on_the_sum_has_its_sigma() -> None:
    mechanism = _cohort(dimension=20_000, clip_norm=2.0, noise_multiplier=1.5)
    noise = mechanism.release(np.zeros((10, 20_000)), SeededSource(4)).value
    assert mechanism.sigma == pytest.approx(1.5 * 4.0)  # replace-one: twice the clip norm
    assert stats.kstest(noise / mechanism.sigma, "norm").pvalue > 1e-6


def test_everybody_in_the_cohort_is_no_sampling() -> None:
    assert epsilon_of(_cohort(cohort=10).event(), 1e-3) > epsilon_of(_cohort(cohort=3).event(), 1e-3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip_norm": 0.0},
        {"noise_multiplier": 0.0},
        {"cohort": 11},
        {"delta": 0.0},
        {"sampling": "alphabetical"},
        {"population": 0},
    ],
)
def test_bad_cohorts_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        _cohort(**wrong)


def test_a_fixed_cohort_needs_everybody_to_choose_from() -> None:
    with pytest.raises(BadInput, match="fixed-size"):
        _cohort().release(np.zeros((9, 4)), SeededSource(5))


@pytest.mark.parametrize("wrong", [{"clip_norm": 0.0}, {"epsilon": 0.0}, {"rows": 0}, {"width": 0}])
def test_bad_rows_are_refused(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"rows": 2, "width": 3, "clip_norm": 1.0, "epsilon": 1.0}
    with pytest.raises(BadInput, match=next(iter(wrong))):
        RowwiseLaplace(**right | wrong)
    with pytest.raises(BadInput, match="2 rows"):
        RowwiseLaplace(**right).release(np.zeros((3, 3)), SeededSource(6))
