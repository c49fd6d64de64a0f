from __future__ import annotations

import itertools
import math
import time
from typing import Literal

import numpy as np
import pytest
from scipy import stats

from veilrec.errors import BadInput
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.mechanisms.bits import (
    RandomisedResponse,
    UnaryEncoding,
    estimate_frequency,
    flip_probability,
    frequency_variance,
)
from veilrec.privacy.randomness import SecureSource, SeededSource
from veilrec.privacy.sensitivity import BitChange

FALSE_ALARM = 1e-6  # on fixed seeds: one seed in a million fails


@pytest.mark.parametrize(
    ("change", "items", "epsilon", "per_bit"),
    [("one bit", 1, 2.0, 2.0), ("swap", 1, 4.0, 2.0), ("set", 4, 16.0, 2.0), ("vector", 1, 3364.0, 2.0)],
)
def test_epsilon_per_bit_of_section_6(change: BitChange, items: int, epsilon: float, per_bit: float) -> None:
    mechanism = RandomisedResponse(length=1682, epsilon=epsilon, change=change, items=items)
    assert mechanism.epsilon_per_bit == pytest.approx(per_bit)
    assert epsilon_of(mechanism.event(), 0.0) == pytest.approx(epsilon)


def test_published_claim_is_off_by_the_number_of_bits_section_6() -> None:
    for length, expected in ((1682, 3364.0), (3900, 7800.0)):
        published = RandomisedResponse(length=length, epsilon=2.0, change="vector", calibration="as-published")
        assert epsilon_of(published.event(), 0.0) == pytest.approx(expected)


def test_opendp_agrees_on_sets_section_6() -> None:
    opendp = pytest.importorskip("opendp.prelude")
    opendp.enable_features("contrib")
    space = opendp.bitvector_domain(max_weight=4), opendp.discrete_distance()
    response = opendp.m.make_randomized_response_bitvec(*space, f=2.0 / (1.0 + math.exp(2.0)))
    ours = RandomisedResponse(length=1682, epsilon=16.0, change="set", items=4)
    assert response.map(1) == pytest.approx(16.0)
    assert ours.epsilon_per_bit == pytest.approx(2.0)


def test_bits_are_turned_round_as_often_as_stated() -> None:
    mechanism = RandomisedResponse(length=100, epsilon=1.0, change="one bit")
    value = np.arange(100) % 2 == 0
    told = mechanism.release(np.tile(value, (2000, 1)), SeededSource(1)).value
    flips = int((told != value).sum())
    assert stats.binomtest(flips, told.size, flip_probability(1.0)).pvalue > FALSE_ALARM
    per_bit = (told != value).sum(axis=0)
    assert stats.chisquare(per_bit).pvalue > FALSE_ALARM


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 30.0, 800.0])
def test_flip_probability_never_overflows(epsilon: float) -> None:
    mechanism = RandomisedResponse(length=3, epsilon=epsilon, change="one bit")
    assert 0.0 <= mechanism.flip_probability < 0.5
    assert mechanism.release(np.ones(3, np.bool_), SeededSource(1)).value.shape == (3,)


def _enumerated_epsilon(ones: list[tuple[float, float]]) -> float:
    """Largest log-ratio over all outcomes of bits that are 1 with the paired probabilities."""
    ratios = []
    for outcome in itertools.product((True, False), repeat=len(ones)):
        ratio = 1.0
        for (p, q), told in zip(ones, outcome, strict=True):
            ratio *= p / q if told else (1.0 - p) / (1.0 - q)
        ratios.append(abs(math.log(ratio)))
    return max(ratios)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
@pytest.mark.parametrize("change", ["one bit", "swap"])
def test_unary_encoding_is_tight_by_enumeration(epsilon: float, change: Literal["one bit", "swap"]) -> None:
    mechanism = UnaryEncoding(length=4, epsilon=epsilon, change=change)
    p, q = mechanism.keep_probability, mechanism.noise_probability
    pairs = [(p, q)] if change == "one bit" else [(p, q), (q, p)]
    assert _enumerated_epsilon(pairs) == pytest.approx(epsilon)
    assert mechanism.delta(0.5 * epsilon) > 0.0


def test_one_bit_epsilon_of_unary_encoding_section_6() -> None:
    mechanism = UnaryEncoding(length=4, epsilon=4.0, change="swap")
    one_bit = _enumerated_epsilon([(mechanism.keep_probability, mechanism.noise_probability)])
    assert one_bit == pytest.approx(3.325, abs=5e-4)


@pytest.mark.parametrize(("epsilon", "unary", "symmetric"), [(4.0, 0.076022, 0.181015), (2.0, 0.724062, 0.920674)])
def test_variances_of_section_6(epsilon: float, unary: float, symmetric: float) -> None:
    oue = UnaryEncoding(length=10, epsilon=epsilon, change="swap")
    assert frequency_variance(
        keep_probability=oue.keep_probability, noise_probability=oue.noise_probability
    ) == pytest.approx(unary, abs=5e-7)
    sue = RandomisedResponse(length=10, epsilon=epsilon, change="swap")
    assert frequency_variance(
        keep_probability=sue.keep_probability, noise_probability=sue.flip_probability
    ) == pytest.approx(symmetric, abs=5e-7)


def test_unary_encoding_tells_ones_and_zeros_as_often_as_stated() -> None:
    mechanism = UnaryEncoding(length=2, epsilon=2.0)
    told = mechanism.release(np.tile([True, False], (20_000, 1)), SeededSource(2)).value.sum(axis=0)
    assert stats.binomtest(int(told[0]), 20_000, 0.5).pvalue > FALSE_ALARM
    assert stats.binomtest(int(told[1]), 20_000, mechanism.noise_probability).pvalue > FALSE_ALARM


def test_estimator_of_section_6() -> None:
    keep = 1.0 - flip_probability(2.0)
    estimates = estimate_frequency(np.array([300.0, 100.0]), 1000, keep_probability=keep, noise_probability=1.0 - keep)
    np.testing.assert_allclose(estimates, [0.237393, 0.0], atol=5e-7)
    assert (0.1 - (1.0 - keep)) / (2.0 * keep - 1.0) == pytest.approx(-0.025214, abs=5e-7)  # before the cut


def test_estimates_find_the_frequencies_back() -> None:
    mechanism = RandomisedResponse(length=3, epsilon=2.0, change="swap")
    truth, n = np.array([0.0, 0.3, 1.0]), 40_000
    bits = np.random.default_rng(3).random((n, 3)) < truth
    counts = mechanism.release(bits, SeededSource(3)).value.sum(axis=0)
    found = estimate_frequency(
        counts, n, keep_probability=mechanism.keep_probability, noise_probability=mechanism.flip_probability
    )
    np.testing.assert_allclose(found, truth, atol=5.0 * math.sqrt(1.0 / n))  # 5 standard deviations or more


def test_noise_of_dp_sub_section_6() -> None:
    variance = frequency_variance(keep_probability=1.0 - flip_probability(2.0), noise_probability=flip_probability(2.0))
    assert math.sqrt(variance / 100) == pytest.approx(0.04255, abs=5e-6)
    assert stats.norm.sf(0.063 / math.sqrt(variance / 100)) == pytest.approx(0.069, abs=1e-3)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_bad_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(BadInput, match="epsilon"):
        RandomisedResponse(length=3, epsilon=epsilon, change="one bit")
    with pytest.raises(BadInput, match="epsilon"):
        UnaryEncoding(length=3, epsilon=epsilon)


def test_unary_encoding_refuses_other_changes() -> None:
    with pytest.raises(BadInput, match="swap"):
        UnaryEncoding(length=3, epsilon=1.0, change="set")  # type: ignore[arg-type]


def test_a_catalogue_of_bits_is_fast() -> None:
    mechanism, value = RandomisedResponse(length=3900, epsilon=2.0, change="swap"), np.zeros(3900, np.bool_)
    source = SecureSource()
    fastest = math.inf
    for _ in range(20):
        start = time.perf_counter()
        mechanism.release(value, source)
        fastest = min(fastest, time.perf_counter() - start)
    assert fastest < 1e-3
