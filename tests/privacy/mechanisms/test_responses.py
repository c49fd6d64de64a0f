"""Answers about bits, categories and labels."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.events import NonPrivateEvent, PureEvent
from veilrec.privacy.mechanisms import responses
from veilrec.privacy.mechanisms.responses import (
    KaryResponse,
    LabelPermutation,
    LabelPerturbation,
    LabelResponse,
    RandomisedResponse,
)
from veilrec.privacy.randomness import SeededSource

FALSE_ALARM = 1e-6  # on fixed seeds: one seed in a million fails


def test_opendp_agrees_on_sets_section_6():
    opendp = pytest.importorskip("opendp.prelude")
    opendp.enable_features("contrib")
    space = opendp.bitvector_domain(max_weight=4), opendp.discrete_distance()
    response = opendp.m.make_randomized_response_bitvec(*space, f=2.0 / (1.0 + math.exp(2.0)))
    ours = RandomisedResponse(length=1682, epsilon=16.0, change="set", items=4)
    assert response.map(1) == pytest.approx(16.0)
    assert ours.epsilon_per_bit == pytest.approx(2.0)


def test_bits_and_answers_have_the_stated_distribution():
    mechanism = RandomisedResponse(length=100, epsilon=1.0, change="one bit")
    value = np.arange(100) % 2 == 0
    told = mechanism.release(np.tile(value, (2000, 1)), SeededSource(1)).value
    flips = int((told != value).sum())
    assert stats.binomtest(flips, told.size, responses.flip_probability(1.0)).pvalue > FALSE_ALARM
    per_bit = (told != value).sum(axis=0)
    assert stats.chisquare(per_bit).pvalue > FALSE_ALARM
    mechanism = KaryResponse(categories=6, epsilon=1.0, unit="click")
    told = mechanism.release(np.full(30_000, 2), SeededSource(1)).value
    expected = np.full(6, mechanism.other_probability)
    expected[2] = mechanism.keep_probability
    assert stats.chisquare(np.bincount(told, minlength=6), expected * told.size).pvalue > FALSE_ALARM


def test_estimates_find_the_frequencies_back():
    mechanism = RandomisedResponse(length=3, epsilon=2.0, change="swap")
    truth, n = np.array([0.0, 0.3, 1.0]), 40_000
    bits = np.random.default_rng(3).random((n, 3)) < truth
    counts = mechanism.release(bits, SeededSource(3)).value.sum(axis=0)
    found = responses.estimate_frequency(
        counts, n, keep_probability=mechanism.keep_probability, noise_probability=mechanism.flip_probability
    )
    np.testing.assert_allclose(found, truth, atol=5.0 * math.sqrt(1.0 / n))  # 5 standard deviations or more


Masses = dict[tuple[tuple[int, ...], int], float]


def _permutation_masses(items, negatives, beta, click):
    masses = {}
    others = [item for item in range(items) if item != click]
    for drawn in itertools.combinations(others, negatives):
        candidates = tuple(sorted((*drawn, click)))
        for label in candidates:
            weight = math.exp(beta) if label == click else 1.0
            masses[candidates, label] = weight / (negatives + math.exp(beta)) / math.comb(items - 1, negatives)
    return masses


def _response_masses(mechanism, click):
    masses = {}
    for label in range(mechanism.items):
        response = mechanism.response
        told = response.keep_probability if label == click else response.other_probability
        others = [item for item in range(mechanism.items) if item != label]
        for drawn in itertools.combinations(others, mechanism.negatives):
            candidates = tuple(sorted((*drawn, label)))
            masses[candidates, label] = told / math.comb(mechanism.items - 1, mechanism.negatives)
    return masses


def _hockey_stick(first, second, epsilon):
    return sum(max(mass - math.exp(epsilon) * second.get(outcome, 0.0), 0.0) for outcome, mass in first.items())


@pytest.mark.parametrize(("items", "negatives"), [(5, 2), (5, 4), (8, 3), (10, 4)])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 3.0])
def test_profile_of_the_permutation_by_enumeration(items, negatives, epsilon):
    mechanism = LabelPermutation(items=items, negatives=negatives, epsilon=1.0)
    first, second = (_permutation_masses(items, negatives, mechanism.beta, click) for click in (0, 1))
    assert mechanism.delta(epsilon) == pytest.approx(_hockey_stick(first, second, epsilon), abs=1e-12)


@pytest.mark.parametrize(("items", "negatives"), [(5, 2), (6, 3)])
@pytest.mark.parametrize("level", [0.0, 0.4, 1.0])
def test_response_first_is_exactly_private_by_enumeration(items, negatives, level):
    mechanism = LabelResponse(items=items, negatives=negatives, epsilon=1.0)
    first, second = (_response_masses(mechanism, click) for click in (0, 1))
    assert max(abs(math.log(first[key] / second[key])) for key in first) == pytest.approx(1.0)
    assert mechanism.delta(level) == pytest.approx(_hockey_stick(first, second, level), abs=1e-12)


def _codes(released, items):
    return np.asarray((1 << released.candidates).sum(axis=-1) * items + released.label)


@pytest.mark.parametrize("kind", [LabelPermutation, LabelResponse])
def test_releases_have_the_enumerated_distribution(kind):
    mechanism = kind(items=5, negatives=2, epsilon=1.5)
    if isinstance(mechanism, LabelPermutation):
        masses = _permutation_masses(5, 2, mechanism.beta, 3)
    else:
        masses = _response_masses(mechanism, 3)
    codes = _codes(mechanism.release(np.full(30_000, 3), SeededSource(1)).value, 5)
    counts = np.array([(codes == sum(1 << i for i in s) * 5 + label).sum() for s, label in masses])
    assert counts.sum() == 30_000
    assert stats.chisquare(counts, np.array(list(masses.values())) * 30_000).pvalue > FALSE_ALARM


def test_bits_of_section_6():
    table = [("one bit", 1, 2), ("swap", 1, 4), ("set", 4, 16), ("vector", 1, 3364)]
    for change, items, epsilon in table:
        mechanism = RandomisedResponse(length=1682, epsilon=epsilon, change=change, items=items)
        assert mechanism.epsilon_per_bit == pytest.approx(2.0)
        assert epsilon_of(mechanism.event(), 0.0) == pytest.approx(epsilon)
    for length, expected in ((1682, 3364.0), (3900, 7800.0)):  # the published claim is off by the number of bits
        published = RandomisedResponse(length=length, epsilon=2.0, change="vector", calibration="as-published")
        assert epsilon_of(published.event(), 0.0) == pytest.approx(expected)
    keep = 1.0 - responses.flip_probability(2.0)
    estimates = responses.estimate_frequency(
        np.array([300.0, 100.0]), 1000, keep_probability=keep, noise_probability=1.0 - keep
    )
    np.testing.assert_allclose(estimates, [0.237393, 0.0], atol=5e-7)
    for extreme in (1e-3, 1.0, 30.0, 800.0):  # nothing overflows
        one = RandomisedResponse(length=3, epsilon=extreme, change="one bit")
        assert 0.0 <= one.flip_probability < 0.5
        assert one.release(np.ones(3, np.bool_), SeededSource(1)).value.shape == (3,)


def test_categories_and_labels_of_sections_1_and_3():
    table = [(5, 1, 0.4046), (5, 2, 0.6488), (5, 3, 0.8339), (5, 5, 0.9738), (37, 1, 0.070207), (37, 4, 0.602641)]
    for count, epsilon, expected in table:
        kept = KaryResponse(categories=count, epsilon=epsilon, unit="history").keep_probability
        assert kept == pytest.approx(expected, abs=5e-5)
    truthful = KaryResponse(categories=4, epsilon=900.0, unit="click")
    np.testing.assert_array_equal(truthful.release(np.arange(4), SeededSource(3)).value, np.arange(4))
    for items, negatives, floor in ((10, 4, 0.555556), (37, 4, 0.888889), (5, 2, 0.5), (5, 4, 0.0)):
        published = LabelPermutation(items=items, negatives=negatives, epsilon=1.0)
        assert published.delta(20.0) == pytest.approx(floor, abs=5e-7)  # whatever epsilon is
        assert isinstance(published.event(), PureEvent if negatives == items - 1 else NonPrivateEvent)
    for items, negatives, epsilon, expected in ((37, 4, 1.0, 2.197225), (20, 4, 1.0, 1.558145), (8, 3, 0.1, 0.847298)):
        assert responses.label_only_epsilon(epsilon, items=items, negatives=negatives) == pytest.approx(
            expected, abs=5e-7
        )
    for epsilon in (3.0, 4.0):  # wherever beta > 0 both orders tell the label equally often
        weight = math.exp(LabelPermutation(items=37, negatives=4, epsilon=epsilon).beta)
        proven = LabelResponse(items=37, negatives=4, epsilon=epsilon)
        assert weight > 1.0
        assert proven.response.keep_probability == pytest.approx(weight / (4.0 + weight))
        assert weight / (4.0 + weight) == pytest.approx(math.exp(epsilon) / (math.exp(epsilon) + 36.0), rel=1e-12)


ITEMS = np.tile(np.array([2, 5, 9], np.int64), 4000)


@pytest.mark.parametrize("way", [LabelPermutation, LabelResponse])
def test_every_length_lies_as_often_as_its_own_mechanism(way):
    labels = LabelPerturbation(way, negatives=4, epsilon=1.5)
    clicks = np.ones(len(ITEMS), np.int64)
    told = labels.release(clicks, ITEMS, SeededSource(3))
    assert told.shape == (len(ITEMS), 5)
    for items in (2, 5, 9):
        rows = told[items == ITEMS]
        alone = labels.of(items).release(np.ones(4000, np.int64), SeededSource(4)).value
        kept, wanted = (rows[:, 0] == 1).mean(), (alone.label == 1).mean()
        assert kept == pytest.approx(wanted, abs=0.06)  # 4,000 coins each: five standard errors
        real = min(5, items)
        assert (rows[:, :real] >= 0).all()
        assert (rows[:, :real] < items).all()
        assert (rows[:, real:] == -1).all()
        assert all(len(set(row[:real])) == real for row in rows[:50].tolist())
