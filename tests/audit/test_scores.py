"""Likelihood ratios, and discrete mechanisms output by output (privacy-math.md, sections 1, 3, 6)."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest

from veilrec.audit.bounds import epsilon_exact
from veilrec.audit.claims import bit_response, fit_p_value, k_ary_response, laplace_ratio, laplace_ratios
from veilrec.core.arrays import Doubles
from veilrec.privacy.mechanisms.responses import LabelPermutation, LabelResponse
from veilrec.privacy.randomness import SeededSource


def delta_exact(first: Doubles, second: Doubles, *, epsilon: float) -> float:
    """The smallest delta at epsilon, in the worse direction."""
    factor = math.exp(epsilon)
    there = np.maximum(first - factor * second, 0.0).sum()
    back = np.maximum(second - factor * first, 0.0).sum()
    return float(max(there, back))


def label_permutation(candidates: int, negatives: int, beta: float, *, click: int) -> Doubles:
    """DPL (PrivateRec): the click and k uniform others are shown as a set, and one of them is named as the click.

    Outputs (S, y) in the order of itertools: sets of k + 1, then members.
    """
    sets = 1.0 / math.comb(candidates - 1, negatives)
    top = math.exp(beta)
    return np.array(
        [
            (sets * (top if y == click else 1.0) / (top + negatives)) if click in shown else 0.0
            for shown, y in _shown(candidates, negatives)
        ]
    )


def response_first(candidates: int, negatives: int, epsilon: float, *, click: int) -> Doubles:
    """The sound order: k-ary response names y first, then k others are drawn around it."""
    named = k_ary_response(candidates, epsilon, value=click)
    sets = 1.0 / math.comb(candidates - 1, negatives)
    return np.array([sets * named[y] for _, y in _shown(candidates, negatives)])


def _shown(candidates: int, negatives: int) -> list[tuple[tuple[int, ...], int]]:
    return [
        (shown, y)
        for shown, place in product(combinations(range(candidates), negatives + 1), range(negatives + 1))
        for y in (shown[place],)
    ]


def published_delta(epsilon: float, candidates: int, negatives: int, beta: float) -> float:
    """Section 3: 1 - k/(C-1) + k/(C-1) (e^beta - e^eps)_+ / (k + e^beta)."""
    both = negatives / (candidates - 1)
    return 1.0 - both + both * max(0.0, math.exp(beta) - math.exp(epsilon)) / (negatives + math.exp(beta))


@pytest.mark.parametrize(("candidates", "negatives", "floor"), [(10, 4, 0.555556), (5, 2, 0.5), (5, 4, 0.0)])
def test_label_permutation_of_section_3(candidates: int, negatives: int, floor: float) -> None:
    beta = 1.3
    first, second = (label_permutation(candidates, negatives, beta, click=click) for click in (0, 1))
    assert first.sum() == pytest.approx(1.0)
    assert delta_exact(first, second, epsilon=50.0) == pytest.approx(floor, abs=5e-7)
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        expected = published_delta(epsilon, candidates, negatives, beta)
        assert delta_exact(first, second, epsilon=epsilon) == pytest.approx(expected)
    assert (epsilon_exact(first, second) == math.inf) == (floor > 0.0)


def test_label_permutation_of_37_candidates_of_section_3() -> None:
    assert published_delta(50.0, 37, 4, 1.0) == pytest.approx(0.888889, abs=5e-7)


@pytest.mark.parametrize("negatives", [1, 3, 5])
def test_response_first_is_exact(negatives: int) -> None:
    first, second = (response_first(7, negatives, 1.3, click=click) for click in (0, 1))
    assert first.sum() == pytest.approx(1.0)
    assert epsilon_exact(first, second) == pytest.approx(1.3)


@pytest.mark.parametrize(("epsilon", "kept"), [(1.0, 0.4046), (2.0, 0.6488), (3.0, 0.8339), (5.0, 0.9738)])
def test_k_ary_response_of_section_1(epsilon: float, kept: float) -> None:
    first, second = (k_ary_response(5, epsilon, value=value) for value in (0, 1))
    assert first[0] == pytest.approx(kept, abs=5e-5)
    assert epsilon_exact(first, second) == pytest.approx(epsilon)


@pytest.mark.parametrize(
    ("other", "changed"), [((0, 1, 0, 0), 0), ((1, 1, 0, 0), 1), ((1, 0, 0, 0), 2), ((1, 0, 1, 1), 4)]
)
def test_bits_add_up_as_section_6_says(other: tuple[int, ...], changed: int) -> None:
    first, second = bit_response((0, 1, 0, 0), 0.7), bit_response(other, 0.7)
    assert epsilon_exact(first, second) == pytest.approx(0.7 * changed)


def test_epsilon_at_a_delta_inverts_delta() -> None:
    first, second = (label_permutation(10, 4, 1.3, click=click) for click in (0, 1))
    for delta in (0.56, 0.58, 0.6, 0.66):
        epsilon = epsilon_exact(first, second, delta=delta)
        assert delta_exact(first, second, epsilon=epsilon) == pytest.approx(delta)
    assert epsilon_exact(first, second, delta=0.9) == 0.0


def test_both_directions_are_looked_at() -> None:
    first, second = np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.4, 0.1])
    assert epsilon_exact(first, second) == math.inf
    assert epsilon_exact(first, second, delta=0.1) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("mechanism_class", [LabelPermutation, LabelResponse])
def test_labels_follow_the_enumerated_tables(mechanism_class) -> None:
    # Chi-square over all 30 pairs of candidates (2 of 5 items, k = 2) and label; wrong by chance once in 1000 seeds.
    mechanism = mechanism_class(items=5, negatives=2, epsilon=1.0)
    told = mechanism.release(np.zeros(60_000, np.int64), SeededSource(3)).value
    if mechanism_class is LabelPermutation:
        table = label_permutation(5, 2, mechanism.beta, click=0)
    else:
        table = response_first(5, 2, 1.0, click=0)
    places = {shown: at for at, shown in enumerate(combinations(range(5), 3))}
    sets = np.array([places[tuple(row)] for row in told.candidates])
    inside = (told.candidates == told.label[:, np.newaxis]).argmax(axis=1)
    assert fit_p_value(3 * sets + inside, table) > 1e-3


def test_laplace_ratios_add_up() -> None:
    first, second = np.zeros(3), np.array([1.0, 0.0, -1.0])
    outputs = np.array([[0.0, 3.0, 0.0], [1.0, 3.0, -5.0], [0.5, 0.0, 9.0]])
    assert laplace_ratios(first, second, 2.0)(outputs).tolist() == [[0.5, 0.5], [-0.5, -0.5], [0.0, 0.5]]
    assert laplace_ratio(first, second, 2.0)(outputs).tolist() == [1.0, -1.0, 0.5]
