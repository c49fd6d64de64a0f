from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from veilrec._arrays import Offsets
from veilrec.errors import BadInput
from veilrec.privacy.events import NonPrivateEvent, PureEvent
from veilrec.privacy.mechanisms.labels import (
    Labelled,
    LabelPermutation,
    LabelResponse,
    forward_corrected,
    label_only_epsilon,
)
from veilrec.privacy.randomness import SeededSource

FALSE_ALARM = 1e-6  # on fixed seeds: one seed in a million fails
Masses = dict[tuple[tuple[int, ...], int], float]


def _permutation_masses(items: int, negatives: int, beta: float, click: int) -> Masses:
    masses: Masses = {}
    others = [item for item in range(items) if item != click]
    for drawn in itertools.combinations(others, negatives):
        candidates = tuple(sorted((*drawn, click)))
        for label in candidates:
            weight = math.exp(beta) if label == click else 1.0
            masses[candidates, label] = weight / (negatives + math.exp(beta)) / math.comb(items - 1, negatives)
    return masses


def _response_masses(mechanism: LabelResponse, click: int) -> Masses:
    masses: Masses = {}
    for label in range(mechanism.items):
        response = mechanism.response
        told = response.keep_probability if label == click else response.other_probability
        others = [item for item in range(mechanism.items) if item != label]
        for drawn in itertools.combinations(others, mechanism.negatives):
            candidates = tuple(sorted((*drawn, label)))
            masses[candidates, label] = told / math.comb(mechanism.items - 1, mechanism.negatives)
    return masses


def _hockey_stick(first: Masses, second: Masses, epsilon: float) -> float:
    return sum(max(mass - math.exp(epsilon) * second.get(outcome, 0.0), 0.0) for outcome, mass in first.items())


@pytest.mark.parametrize(("items", "negatives"), [(5, 2), (5, 4), (8, 3), (10, 4)])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 3.0])
def test_profile_of_the_permutation_by_enumeration(items: int, negatives: int, epsilon: float) -> None:
    mechanism = LabelPermutation(items=items, negatives=negatives, epsilon=1.0)
    first, second = (_permutation_masses(items, negatives, mechanism.beta, click) for click in (0, 1))
    assert mechanism.delta(epsilon) == pytest.approx(_hockey_stick(first, second, epsilon), abs=1e-12)


@pytest.mark.parametrize(
    ("items", "negatives", "floor"), [(10, 4, 0.555556), (37, 4, 0.888889), (5, 2, 0.5), (5, 4, 0.0)]
)
def test_no_epsilon_helps_below_this_delta_section_3(items: int, negatives: int, floor: float) -> None:
    mechanism = LabelPermutation(items=items, negatives=negatives, epsilon=1.0)
    assert mechanism.delta(20.0) == pytest.approx(floor, abs=5e-7)
    sound = negatives == items - 1
    assert isinstance(mechanism.event(), PureEvent if sound else NonPrivateEvent)


@pytest.mark.parametrize(
    ("items", "negatives", "epsilon", "expected"),
    [(37, 4, 1.0, 2.197225), (20, 4, 1.0, 1.558145), (8, 3, 0.1, 0.847298)],
)
def test_label_only_epsilon_of_section_3(items: int, negatives: int, epsilon: float, expected: float) -> None:
    assert label_only_epsilon(epsilon, items=items, negatives=negatives) == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize(("items", "negatives"), [(5, 2), (6, 3)])
@pytest.mark.parametrize("level", [0.0, 0.4, 1.0])
def test_response_first_is_exactly_private_by_enumeration(items: int, negatives: int, level: float) -> None:
    mechanism = LabelResponse(items=items, negatives=negatives, epsilon=1.0)
    first, second = (_response_masses(mechanism, click) for click in (0, 1))
    assert max(abs(math.log(first[key] / second[key])) for key in first) == pytest.approx(1.0)
    assert mechanism.delta(level) == pytest.approx(_hockey_stick(first, second, level), abs=1e-12)


def _codes(released: Labelled, items: int) -> Offsets:
    return np.asarray((1 << released.candidates).sum(axis=-1) * items + released.label)


@pytest.mark.parametrize("kind", [LabelPermutation, LabelResponse])
def test_releases_have_the_enumerated_distribution(kind: type[LabelPermutation] | type[LabelResponse]) -> None:
    mechanism = kind(items=5, negatives=2, epsilon=1.5)
    if isinstance(mechanism, LabelPermutation):
        masses = _permutation_masses(5, 2, mechanism.beta, 3)
    else:
        masses = _response_masses(mechanism, 3)
    codes = _codes(mechanism.release(np.full(30_000, 3), SeededSource(1)).value, 5)
    counts = np.array([(codes == sum(1 << i for i in s) * 5 + label).sum() for s, label in masses])
    assert counts.sum() == 30_000
    assert stats.chisquare(counts, np.array(list(masses.values())) * 30_000).pvalue > FALSE_ALARM


def test_both_orders_tell_the_label_equally_often_section_3() -> None:
    for epsilon in (3.0, 4.0):  # wherever beta > 0
        published = LabelPermutation(items=37, negatives=4, epsilon=epsilon)
        proven = LabelResponse(items=37, negatives=4, epsilon=epsilon)
        assert published.beta > 0.0
        weight = math.exp(published.beta)
        assert weight / (4.0 + weight) == pytest.approx(math.exp(epsilon) / (math.exp(epsilon) + 36.0), rel=1e-12)
        assert proven.response.keep_probability == pytest.approx(weight / (4.0 + weight))


def test_forward_correction_is_the_distribution_of_the_told_label() -> None:
    mechanism = LabelResponse(items=6, negatives=2, epsilon=1.0)
    clicked = np.random.default_rng(2).dirichlet(np.ones(6))
    corrected = forward_corrected(
        clicked,
        keep_probability=mechanism.response.keep_probability,
        other_probability=mechanism.response.other_probability,
    )
    assert corrected.sum() == pytest.approx(1.0)
    channel = np.full((6, 6), mechanism.response.other_probability)
    np.fill_diagonal(channel, mechanism.response.keep_probability)
    np.testing.assert_allclose(corrected, clicked @ channel)


@pytest.mark.parametrize("kind", [LabelPermutation, LabelResponse])
def test_bad_parameters_are_refused(kind: type[LabelPermutation] | type[LabelResponse]) -> None:
    with pytest.raises(BadInput, match="epsilon"):
        kind(items=5, negatives=2, epsilon=0.0)
    with pytest.raises(BadInput, match="negatives"):
        kind(items=5, negatives=5, epsilon=1.0)
    with pytest.raises(BadInput, match="click"):
        kind(items=5, negatives=2, epsilon=1.0).release(np.array([5]), SeededSource(3))
