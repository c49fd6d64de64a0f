from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from veilrec.evaluate.ranking import ranks_among_all, ranks_in_lists, ranks_of_first

from .toys import csr

SCORES = arrays(np.float32, (3, 12), elements=st.integers(-4, 4).map(float))  # few values: many ties


def test_a_tie_costs_half_a_place() -> None:
    scores = np.array([[5, 1, 2], [1, 5, 2], [2, 5, 2], [2, 2, 2]], np.float32)
    assert ranks_of_first(scores).tolist() == [1, 3, 2.5, 2]


def test_excluded_items_are_no_rivals() -> None:
    scores = np.array([[9, 5, 4, 4, 1], [0, 0, 0, 0, 0]], np.float32)
    ranks = ranks_among_all(scores, csr([[2], [0]]), csr([[0, 3], [1]]), one_by_one=False)
    assert ranks.tolist() == [2, 2.5]


def test_positives_are_rivals_unless_ranked_one_by_one() -> None:
    scores = np.array([[9, 5, 4, 3, 4]], np.float32)
    positives, excluded = csr([[1, 2, 4]]), csr([[0]])
    assert ranks_among_all(scores, positives, excluded, one_by_one=False).tolist() == [1, 2.5, 2.5]
    assert ranks_among_all(scores, positives, excluded, one_by_one=True).tolist() == [1, 1, 1]


def test_ranks_within_lists() -> None:
    scores = np.array([1, 3, 2, 7, 7, 7], np.float32)
    ranks = ranks_in_lists(scores, np.array([0, 3, 6]), np.array([1, 0, 1, 0, 1, 0], np.uint8))
    assert ranks.tolist() == [3, 2, 2]


@given(SCORES)
def test_the_three_rankings_agree(scores: np.ndarray) -> None:
    first = ranks_of_first(scores)
    among_all = ranks_among_all(scores, csr([[0]] * 3), csr([[]] * 3), one_by_one=False)
    wanted = np.tile(np.arange(12) == 0, 3).astype(np.uint8)
    in_lists = ranks_in_lists(scores.ravel(), np.arange(0, 37, 12), wanted)
    assert first.tolist() == among_all.tolist() == in_lists.tolist()


@given(SCORES)
def test_the_places_of_all_items_add_up(scores: np.ndarray) -> None:
    ranks = ranks_among_all(scores, csr([range(12)] * 3), csr([[]] * 3), one_by_one=False)
    assert ranks.reshape(3, 12).sum(axis=1).tolist() == [78, 78, 78]
