from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from veilrec.errors import BadInput
from veilrec.privacy.mechanisms.bits import frequency_variance
from veilrec.privacy.mechanisms.categories import KaryResponse, SubsetSelection
from veilrec.privacy.randomness import SeededSource

FALSE_ALARM = 1e-6  # on fixed seeds: one seed in a million fails


@pytest.mark.parametrize(("epsilon", "expected"), [(1, 0.4046), (2, 0.6488), (3, 0.8339), (5, 0.9738)])
def test_top_interest_survives_section_1(epsilon: float, expected: float) -> None:
    kept = KaryResponse(categories=5, epsilon=epsilon, unit="history").keep_probability
    assert kept == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(("epsilon", "expected"), [(1, 0.070207), (2, 0.170298), (4, 0.602641)])
def test_label_survives_section_3(epsilon: float, expected: float) -> None:
    kept = KaryResponse(categories=37, epsilon=epsilon, unit="click").keep_probability
    assert kept == pytest.approx(expected, abs=5e-7)


def test_answers_have_the_stated_distribution() -> None:
    mechanism = KaryResponse(categories=6, epsilon=1.0, unit="click")
    told = mechanism.release(np.full(30_000, 2), SeededSource(1)).value
    expected = np.full(6, mechanism.other_probability)
    expected[2] = mechanism.keep_probability
    assert stats.chisquare(np.bincount(told, minlength=6), expected * told.size).pvalue > FALSE_ALARM


def _subset_masses(mechanism: SubsetSelection, category: int) -> dict[tuple[int, ...], float]:
    c, w = mechanism.categories, mechanism.size
    inside = mechanism.keep_probability / math.comb(c - 1, w - 1)
    outside = (1.0 - mechanism.keep_probability) / math.comb(c - 1, w)
    return {s: inside if category in s else outside for s in itertools.combinations(range(c), w)}


@pytest.mark.parametrize(("categories", "epsilon"), [(8, 1.0), (5, 0.3), (10, 2.0), (2, 1.0)])
def test_subset_selection_is_exactly_epsilon_by_enumeration(categories: int, epsilon: float) -> None:
    mechanism = SubsetSelection(categories=categories, epsilon=epsilon, unit="click")
    first, second = _subset_masses(mechanism, 0), _subset_masses(mechanism, 1)
    assert sum(first.values()) == pytest.approx(1.0)
    assert max(math.log(first[s] / second[s]) for s in first) == pytest.approx(epsilon)
    for level in (0.0, 0.5 * epsilon):
        delta = sum(max(first[s] - math.exp(level) * second[s], 0.0) for s in first)
        assert mechanism.delta(level) == pytest.approx(delta)


def test_subset_selection_of_section_3() -> None:
    mechanism = SubsetSelection(categories=8, epsilon=1.0, unit="click")
    assert mechanism.size == 2
    assert mechanism.keep_probability == pytest.approx(0.475367, abs=5e-7)


def test_sets_have_the_stated_distribution() -> None:
    mechanism = SubsetSelection(categories=6, epsilon=0.7, unit="click")
    masses = _subset_masses(mechanism, 3)
    sets = mechanism.release(np.full(30_000, 3), SeededSource(2)).value
    assert (sets.sum(axis=1) == mechanism.size).all()
    codes = sets @ (1 << np.arange(6))
    counts = np.array([(codes == sum(1 << i for i in s)).sum() for s in masses])
    assert stats.chisquare(counts, np.array(list(masses.values())) * len(sets)).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    ("epsilon", "response", "subset"), [(0.5, 87.08, 14.78), (1.0, 12.78, 3.43), (2.0, 1.04, 0.63)]
)
def test_variances_of_section_3(epsilon: float, response: float, subset: float) -> None:
    for kind, expected in ((KaryResponse, response), (SubsetSelection, subset)):
        mechanism = kind(categories=37, epsilon=epsilon, unit="click")
        variance = frequency_variance(
            keep_probability=mechanism.keep_probability, noise_probability=mechanism.other_probability
        )
        assert variance == pytest.approx(expected, abs=5.1e-3)


def test_one_category_sets_are_k_ary_response_section_3() -> None:
    subset = SubsetSelection(categories=37, epsilon=4.0, unit="click")
    assert subset.size == 1
    response = KaryResponse(categories=37, epsilon=4.0, unit="click")
    assert subset.keep_probability == pytest.approx(response.keep_probability)


@pytest.mark.parametrize("kind", [KaryResponse, SubsetSelection])
def test_large_epsilon_tells_the_truth(kind: type[KaryResponse] | type[SubsetSelection]) -> None:
    mechanism = kind(categories=4, epsilon=900.0, unit="click")
    told = mechanism.release(np.arange(4), SeededSource(3)).value
    truth = np.eye(4, dtype=np.bool_) if kind is SubsetSelection else np.arange(4)
    np.testing.assert_array_equal(told, truth)


@pytest.mark.parametrize("kind", [KaryResponse, SubsetSelection])
def test_bad_parameters_are_refused(kind: type[KaryResponse] | type[SubsetSelection]) -> None:
    with pytest.raises(BadInput, match="epsilon"):
        kind(categories=4, epsilon=0.0, unit="click")
    with pytest.raises(BadInput, match="categories"):
        kind(categories=1, epsilon=1.0, unit="click")
