"""Statistical tests run on fixed seeds; if the code is right, one seed in a million (FALSE_ALARM) fails each."""

import math
from decimal import Context, Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from veilrec.core.errors import BadInput
from veilrec.privacy import samplers
from veilrec.privacy.randomness import SeededSource
from veilrec.privacy.samplers import UNITS, Scale

FALSE_ALARM = 1e-6


def _chi_square(counts, masses):
    """p-value; the masses are those of all cells and add up to 1."""
    return float(stats.chisquare(counts, masses * counts.sum() / masses.sum()).pvalue)


def _binned(draws, cdf, edges):
    counts = np.histogram(draws, np.concatenate(([-np.inf], edges, [np.inf])))[0]
    return _chi_square(counts, np.diff(np.concatenate(([0.0], cdf.cdf(edges), [1.0]))))


@pytest.mark.parametrize("sampler", [samplers.lattice_gaussian, samplers.lattice_laplace])
def test_lattice_draws_use_their_lowest_bits_evenly_one_at_a_time_as_many_at_once(sampler):
    draws = sampler(SeededSource(3), 200_000)
    assert _chi_square(np.bincount(draws & 255, minlength=256), np.full(256, 1 / 256)) > FALSE_ALARM
    # Draws one at a time cross the ends of the fetched words, where a careless sampler forgets its state.
    source = SeededSource(4)
    singles = np.concatenate([sampler(source, 1) for _ in range(20_000)])
    many = sampler(SeededSource(5), 20_000)
    assert stats.ks_2samp(singles, many).pvalue > FALSE_ALARM


def test_box_muller_with_53_bits_is_not_within_1e_17_section_8():
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


class _Given:
    """A source that gives these words first, and then the same one for ever."""

    protects = False

    def __init__(self, first, then):
        self._first, self._then = first, then

    def words(self, count):
        given, self._first = self._first[:count], self._first[count:]
        return np.array(given + [self._then] * (count - len(given)), np.uint64)


LAST = 2**64 - 1


@pytest.mark.parametrize(("further", "whole"), [([0], 9), ([LAST, 0], 13), ([LAST] * 9 + [0], 29)])
def test_the_gaussian_tail_has_no_end(further, whole):
    # P[whole part >= k] is about e^(-k^2 / 2) / 1.75; the uniform number is 1 - 2^-64, 1 - 2^-128, 1 - 2^-640.
    proposal = [LAST, 0, 0]  # accepted whatever the whole part is
    fetched = 3 * (1 + 8)  # words for one draw; the exact decisions take theirs from the end of the next batch
    words = proposal + [0] * (fetched - 3) + [0] * (32 - len(further)) + further[::-1]
    assert samplers.lattice_gaussian(_Given(words, 0), 1)[0] == whole * UNITS


def _whole_parts(law, word, further):
    integers = samplers._Integers(_Given([], further))
    return law._whole(samplers._Uniform(integers, word, 64))


@pytest.mark.parametrize("law", [samplers._GAUSSIAN, samplers._LAPLACE])
def test_whole_parts_have_their_exact_probabilities(law):
    weights = [Decimal(-k * k if law is samplers._GAUSSIAN else -2 * k) / 2 for k in range(60)]
    exact = [weight.exp(Context(prec=60)) for weight in weights]
    for k, word in enumerate(law.thresholds.tolist()):
        threshold = sum(exact[: k + 1]) / sum(exact)  # the Laplace tail left out is e^-60
        assert word == int(threshold * 2**64)
        # Below and above it the word decides; on it, the words that follow do.
        assert [_whole_parts(law, word - 1, LAST), _whole_parts(law, word + 1, 0)] == [k, k + 1]
        assert [_whole_parts(law, word, 0), _whole_parts(law, word, LAST)] == [k, k + 1]


SCALES = [samplers._UNITS, Scale(2897, 8), Scale(3789, -10), Scale(4095, 20), Scale(1, 0)]


@pytest.mark.parametrize(
    ("law", "scale"), [(samplers._LAPLACE, samplers._UNITS), *((samplers._GAUSSIAN, scale) for scale in SCALES)]
)
def test_the_kernel_decides_as_exact_arithmetic_does(law, scale):
    words = SeededSource(18).words(3 * 500)
    exact, carry = [], np.zeros(1, np.int64)
    for at in range(0, len(words), 3):
        drawn = law.propose(words[at : at + 3], samplers._Integers(SeededSource(0)), carry, scale)
        exact += [] if drawn is None else [drawn]
    out = np.empty(500, np.int64)
    filled, stopped = law.fill(words, 0, law.thresholds, out, np.zeros(1, np.int64), scale.factor, scale.shift)
    assert stopped == len(words)
    np.testing.assert_array_equal(out[:filled], exact)


@pytest.mark.parametrize("units", [0.6, 1.3, 7.01])
def test_a_gaussian_of_few_units_is_a_rounded_one(units):
    scale = Scale.above(units)
    draws = samplers.lattice_gaussian(SeededSource(6), 300_000, scale)
    reach = math.ceil(4 * units)
    assert _binned(draws, stats.norm(scale=scale.units), np.arange(-reach - 0.5, reach + 1)) > FALSE_ALARM


@given(st.floats(0.5, 2.0**31))
def test_a_scale_is_never_below_what_was_asked_for_and_hardly_above(units):
    scale = Scale.above(units)
    assert units <= scale.units <= units * (1 + 2.0**-11)


def test_what_63_or_64_bits_leave_open_is_decided_by_more():
    # Of 3 units, 0.5 units are a sixth: the cell of 2^-63 around 1/6 holds the boundary between 0 and 1.
    scale, cell = Scale(3, 0), 2**63 // 6
    assert not samplers._rounded(0, np.uint64(2 * cell), scale.factor, scale.shift)[1]
    assert samplers._rounded(0, np.uint64(2 * cell - 2), scale.factor, scale.shift) == (0, True)
    assert samplers._rounded(0, np.uint64(2 * cell + 2), scale.factor, scale.shift) == (1, True)
    for further, units in ((0, 0), (LAST, 1)):
        part = samplers._Uniform(samplers._Integers(_Given([], further)), cell, 63)
        assert scale.rounded(0, part) == units
    # A whole draw: the kernel stops at it, and exact arithmetic goes on with the words that follow.
    fetched = 3 * (1 + 8)
    for further, units in ((0, 0), (LAST, 1)):
        words = [0, 2 * cell, 0] + [0] * (fetched - 3)
        assert samplers.lattice_gaussian(_Given(words, further), 1, scale)[0] == units
    probability = math.floor(Decimal(-1).exp(Context(prec=40)) * 2**64)  # of a Laplace fraction next to 1
    for further, accepted in ((0, True), (LAST, False)):
        integers = samplers._Integers(_Given([], further))
        part = samplers._Uniform(samplers._Integers(_Given([], LAST)), 2**63 - 1, 63)
        uniform = samplers._Uniform(integers, probability, 64)
        assert samplers._LAPLACE._accepted(0, part, uniform) is accepted


def test_sums_of_laplace_draws_at_once_have_the_law_of_draws_one_by_one():
    clients, n = 7, 40_000
    at_once = samplers.simulated_laplace_sum(np.random.default_rng(8), (n,), scale=2.0, clients=clients)
    one_by_one = np.random.default_rng(9).laplace(scale=2.0, size=(clients, n)).sum(axis=0)
    assert stats.ks_2samp(at_once, one_by_one).pvalue > FALSE_ALARM
    edges = np.quantile(one_by_one, np.linspace(0.05, 0.95, 19))
    tables = [np.histogram(x, np.concatenate(([-np.inf], edges, [np.inf])))[0] for x in (at_once, one_by_one)]
    assert stats.chi2_contingency(tables).pvalue > FALSE_ALARM
    assert at_once.var() == pytest.approx(2.0 * clients * 2.0**2, rel=0.05)
    # What clients draw one by one, against what the simulator draws at once.
    clients, n = 5, 20_000
    real = samplers.lattice_laplace(SeededSource(10), clients * n).reshape(clients, n).sum(axis=0) / UNITS
    simulated = samplers.simulated_laplace_sum(np.random.default_rng(11), (n,), scale=1.0, clients=clients)
    assert stats.ks_2samp(real, simulated).pvalue > FALSE_ALARM
    clients = np.array([[0], [1], [10]])
    noise = samplers.simulated_laplace_sum(np.random.default_rng(17), (3, 20_000), scale=1.0, clients=clients)
    assert (noise[0] == 0.0).all()
    np.testing.assert_allclose(noise[1:].var(axis=1), [2.0, 20.0], rtol=0.1)  # over 4 standard errors


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8), st.floats(1e-3, 1e6), st.integers(0, 2**32), st.booleans()
)
def test_noisy_values_lie_on_a_lattice_that_does_not_depend_on_them(values, scale, seed, laplace):
    source, value = SeededSource(seed), np.array(values)
    if laplace:
        noisy = samplers.add_laplace(value, scale=scale, source=source)
    else:
        noisy = samplers.add_gaussian(value, sigma=scale, source=source)
    grid = scale / UNITS
    assert np.isfinite(noisy).all()
    np.testing.assert_array_equal(np.rint(noisy / grid) * grid, noisy)


def test_float_noise_separates_values_and_lattice_noise_does_not_section_8():
    """The event of section 8: |y| < 1/2 and y 2^53 is not whole. It never happens for x = 1 with float noise."""

    def rate(noisy):
        return float(((np.abs(noisy) < 0.5) & (noisy * 2.0**53 % 1.0 != 0.0)).mean())

    generator = np.random.default_rng(13)
    for noise, expected in ((generator.laplace(size=200_000), 0.272), (generator.normal(size=200_000), 0.258)):
        assert rate(1.0 + noise) == 0.0
        assert rate(0.0 + noise) == pytest.approx(expected, abs=0.01)
    source = SeededSource(14)
    for x in (0.0, 1.0):
        noisy = samplers.add_laplace(np.full(100_000, x), scale=1.0, source=source)
        assert rate(noisy) == 0.0  # all multiples of 2^-20, whatever x is


def test_lattice_noise_has_its_law_and_is_compiled_without_liberties():
    draws = samplers.lattice_gaussian(SeededSource(1), 400_000) / UNITS
    assert _binned(draws, stats.norm, np.linspace(-4.0, 4.0, 161)) > FALSE_ALARM
    draws = samplers.lattice_laplace(SeededSource(2), 400_000) / UNITS
    assert _binned(draws, stats.laplace, np.linspace(-9.0, 9.0, 181)) > FALSE_ALARM
    assert abs(draws).max() > 10.0  # the whole part goes on beyond one table of thresholds
    fast = samplers.simulated_gaussian(np.random.default_rng(12), (300, 100), sigma=3.0)
    assert stats.kstest(fast.ravel() / 3.0, "norm").pvalue > FALSE_ALARM
    for kernel in (samplers._fill_gaussian, samplers._fill_laplace, samplers._accept, samplers._rounded):
        assert kernel.options["fastmath"] is False


def test_cutting_never_raises_a_norm_and_what_lies_beyond_is_refused():
    value = np.random.default_rng(15).normal(size=(100, 9))
    cut = samplers.to_lattice(value, 0.01) * 0.01
    assert (np.abs(cut) <= np.abs(value) * (1.0 + 1e-15)).all()
    with pytest.raises(BadInput, match="too far"):
        samplers.add_gaussian(np.array([1e300]), sigma=1.0, source=SeededSource(16))
    for units in (2.0**33, 1e-9):
        with pytest.raises(BadInput, match="cannot be drawn"):
            Scale.above(units)
