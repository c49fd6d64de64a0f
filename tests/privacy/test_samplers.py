"""Statistical tests run on fixed seeds; if the code is right, one seed in a million (FALSE_ALARM) fails each."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from veilrec._arrays import Doubles, Offsets
from veilrec.errors import BadInput
from veilrec.privacy import samplers
from veilrec.privacy.mechanisms.discrete import discrete_gaussian_masses
from veilrec.privacy.randomness import SeededSource
from veilrec.privacy.samplers import UNITS

FALSE_ALARM = 1e-6


def _chi_square(counts: NDArray[np.int64], masses: Doubles) -> float:
    """p-value; the masses are those of all cells and add up to 1."""
    return float(stats.chisquare(counts, masses * counts.sum() / masses.sum()).pvalue)


def _binned(draws: Doubles, cdf: stats.rv_continuous, edges: Doubles) -> float:
    counts = np.histogram(draws, np.concatenate(([-np.inf], edges, [np.inf])))[0]
    return _chi_square(counts, np.diff(np.concatenate(([0.0], cdf.cdf(edges), [1.0]))))


def test_lattice_gaussian_is_gaussian() -> None:
    draws = samplers.lattice_gaussian(SeededSource(1), 400_000) / UNITS
    assert _binned(draws, stats.norm, np.linspace(-4.0, 4.0, 161)) > FALSE_ALARM
    assert _binned(np.abs(draws), stats.halfnorm, np.array([0.5, 1.0, 2.0, 3.0, 4.0])) > FALSE_ALARM


def test_lattice_laplace_is_laplace() -> None:
    draws = samplers.lattice_laplace(SeededSource(2), 400_000) / UNITS
    assert _binned(draws, stats.laplace, np.linspace(-9.0, 9.0, 181)) > FALSE_ALARM
    assert abs(draws).max() > 10.0  # the whole part goes on beyond one table of thresholds


@pytest.mark.parametrize("sampler", [samplers.lattice_gaussian, samplers.lattice_laplace])
def test_lowest_bits_of_the_lattice_are_used_evenly(sampler: object) -> None:
    draws: Offsets = sampler(SeededSource(3), 200_000)  # type: ignore[operator]
    assert _chi_square(np.bincount(draws & 255, minlength=256), np.full(256, 1 / 256)) > FALSE_ALARM


@pytest.mark.parametrize("sampler", [samplers.lattice_gaussian, samplers.lattice_laplace])
def test_single_draws_follow_the_same_law_as_many(sampler: object) -> None:
    # Draws one at a time cross the ends of the fetched words, where a careless sampler forgets its state.
    source = SeededSource(4)
    singles = np.concatenate([sampler(source, 1) for _ in range(20_000)])  # type: ignore[operator]
    many = sampler(SeededSource(5), 20_000)  # type: ignore[operator]
    assert stats.ks_2samp(singles, many).pvalue > FALSE_ALARM


def test_box_muller_with_53_bits_is_not_within_1e_17_section_8() -> None:
    """Section 8 says that 53-bit Box-Muller costs 1e-17 per coordinate; for a pair it costs at least 1e-12.

    Radii are sqrt(-2 log(k / 2^53)). A pair rounded to the lattice lies within 2^-20 / sqrt 2 of such a
    circle, and its rounding hides as much again, so between circles k and k + 1, which hold 2^-53 of an ideal
    pair's mass, all but a band of sqrt 2 * 2^-20 on each side is never hit (the density varies by less than 2
    for k > 1).
    """
    k = np.arange(2.0, 200_000.0)
    radii = np.sqrt(-2.0 * np.log(k * 2.0**-53))
    gaps = radii[:-1] - radii[1:]
    never_hit = np.maximum(0.0, 1.0 - 2.0 * 2.0 * math.sqrt(2.0) / UNITS / gaps)
    variation = 2.0**-53 * never_hit.sum()
    assert variation > 1e-12
    assert variation * 2_500_000 / 2 > 1e-6  # a whole delta, for a model of 2.5 million coordinates


def test_gaussian_tail_error_is_what_is_stated() -> None:
    beyond = 2.0 * stats.norm.sf(10.0)  # whole parts 0 to 9
    thresholds = 10 * 2.0**-64  # whole parts are chosen with 64-bit words
    assert beyond + thresholds < samplers.TAIL_ERROR


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(1), Fraction(10, 3), Fraction(100)])
def test_discrete_gaussian_is_exact(variance: Fraction) -> None:
    draws = samplers.discrete_gaussian(SeededSource(6), 20_000, variance=variance)
    support, masses = discrete_gaussian_masses(float(variance))
    assert _tally(draws, support, masses) > FALSE_ALARM
    zero = masses[support == 0][0]
    assert stats.binomtest(int((draws == 0).sum()), draws.size, zero).pvalue > FALSE_ALARM


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(1), Fraction(7, 2)])
def test_discrete_laplace_is_exact(scale: Fraction) -> None:
    draws = samplers.discrete_laplace(SeededSource(7), 20_000, scale=scale)
    support = np.arange(-200, 201)
    ratio = math.exp(-1.0 / scale)
    masses = (1.0 - ratio) / (1.0 + ratio) * ratio ** np.abs(support)
    assert _tally(draws, support, masses) > FALSE_ALARM
    assert stats.binomtest(int((draws == 0).sum()), draws.size, (1 - ratio) / (1 + ratio)).pvalue > FALSE_ALARM


def _tally(draws: Offsets, support: Offsets, masses: Doubles) -> float:
    """Chi-square over the values that are expected at least ten times; the rest is one cell."""
    common = masses * draws.size >= 10.0
    counts = np.array([(draws == value).sum() for value in support[common]])
    rest = max(1.0 - masses[common].sum(), 0.0)
    if rest * draws.size < 1.0:
        return _chi_square(counts, masses[common])
    return _chi_square(np.append(counts, draws.size - counts.sum()), np.append(masses[common], rest))


def test_sum_of_laplace_draws_at_once_has_the_same_law() -> None:
    devices, n = 7, 40_000
    at_once = samplers.simulated_laplace_sum(np.random.default_rng(8), (n,), scale=2.0, devices=devices)
    one_by_one = np.random.default_rng(9).laplace(scale=2.0, size=(devices, n)).sum(axis=0)
    assert stats.ks_2samp(at_once, one_by_one).pvalue > FALSE_ALARM
    edges = np.quantile(one_by_one, np.linspace(0.05, 0.95, 19))
    tables = [np.histogram(x, np.concatenate(([-np.inf], edges, [np.inf])))[0] for x in (at_once, one_by_one)]
    assert stats.chi2_contingency(tables).pvalue > FALSE_ALARM
    assert at_once.var() == pytest.approx(2.0 * devices * 2.0**2, rel=0.05)


def test_sum_of_lattice_laplace_draws_has_the_simulated_law() -> None:
    # What devices draw one by one, against what the simulator draws at once.
    devices, n = 5, 20_000
    real = samplers.lattice_laplace(SeededSource(10), devices * n).reshape(devices, n).sum(axis=0) / UNITS
    simulated = samplers.simulated_laplace_sum(np.random.default_rng(11), (n,), scale=1.0, devices=devices)
    assert stats.ks_2samp(real, simulated).pvalue > FALSE_ALARM


def test_rows_sent_by_different_numbers_of_devices_get_as_many_draws() -> None:
    devices = np.array([[0], [1], [10]])
    noise = samplers.simulated_laplace_sum(np.random.default_rng(17), (3, 20_000), scale=1.0, devices=devices)
    assert (noise[0] == 0.0).all()
    np.testing.assert_allclose(noise[1:].var(axis=1), [2.0, 20.0], rtol=0.1)  # over 4 standard errors


def test_simulated_gaussian_has_its_sigma_and_is_seeded() -> None:
    first = samplers.simulated_gaussian(np.random.default_rng(12), (300, 100), sigma=3.0)
    again = samplers.simulated_gaussian(np.random.default_rng(12), (300, 100), sigma=3.0)
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, again)
    assert stats.kstest(first.ravel() / 3.0, "norm").pvalue > FALSE_ALARM


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8), st.floats(1e-3, 1e6), st.integers(0, 2**32), st.booleans()
)
def test_noisy_values_lie_on_a_lattice_that_does_not_depend_on_them(
    values: list[float], scale: float, seed: int, laplace: bool
) -> None:
    source, value = SeededSource(seed), np.array(values)
    if laplace:
        noisy = samplers.add_laplace(value, scale=scale, source=source)
    else:
        noisy = samplers.add_gaussian(value, sigma=scale, source=source)
    grid = scale / UNITS
    assert np.isfinite(noisy).all()
    np.testing.assert_array_equal(np.rint(noisy / grid) * grid, noisy)


def test_float_noise_separates_values_and_lattice_noise_does_not_section_8() -> None:
    """The event of section 8: |y| < 1/2 and y 2^53 is not whole. It never happens for x = 1 with float noise."""

    def rate(noisy: Doubles) -> float:
        return float(((np.abs(noisy) < 0.5) & (noisy * 2.0**53 % 1.0 != 0.0)).mean())

    generator = np.random.default_rng(13)
    for noise, expected in ((generator.laplace(size=200_000), 0.272), (generator.normal(size=200_000), 0.258)):
        assert rate(1.0 + noise) == 0.0
        assert rate(0.0 + noise) == pytest.approx(expected, abs=0.01)
    source = SeededSource(14)
    for x in (0.0, 1.0):
        noisy = samplers.add_laplace(np.full(100_000, x), scale=1.0, source=source)
        assert rate(noisy) == 0.0  # all multiples of 2^-20, whatever x is


def test_cutting_to_the_lattice_never_raises_a_norm() -> None:
    value = np.random.default_rng(15).normal(size=(100, 9))
    cut = samplers.to_lattice(value, 0.01) * 0.01
    assert (np.abs(cut) <= np.abs(value) * (1.0 + 1e-15)).all()


def test_values_beyond_the_lattice_are_refused() -> None:
    with pytest.raises(BadInput, match="too far"):
        samplers.add_gaussian(np.array([1e300]), sigma=1.0, source=SeededSource(16))
