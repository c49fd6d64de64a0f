"""Transitions and similarities against counting by hand, and how a history follows them."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec.audit.contract_subject import histories_of
from veilrec.core.arrays import Csr
from veilrec.models.item_item import Neighbours, NeighbourScorer, similarities, transitions

PEOPLE = [[0, 1, 2], [0, 1], [2, 0, 3, 1], [4], []]


def dense(found: Neighbours) -> np.ndarray:
    n = len(found.rest)
    table = np.zeros((n, n))
    table[found.rows.row_numbers(), found.rows.items] = found.values
    return table


def random_people(users: int = 30, n_items: int = 12) -> list[list[int]]:
    generator = np.random.default_rng(3)
    return [generator.permutation(n_items)[: generator.integers(1, n_items)].tolist() for _ in range(users)]


@pytest.mark.parametrize(("reach", "fade"), [(1, 1.0), (2, 0.5), (50, 0.9)])
def test_chances_are_smoothed_counts_and_add_up_to_one(reach: int, fade: float) -> None:
    people = random_people()
    counts = np.zeros((12, 12))
    for own in people:
        for a, item in enumerate(own):
            for gap, later in enumerate(own[a + 1 : a + 1 + reach]):
                counts[item, later] += fade**gap
    found = transitions(histories_of(people), 12, reach=reach, fade=fade, smoothing=4.0, most=12)
    assert np.allclose(dense(found), counts / (counts.sum(1, keepdims=True) + 4.0), atol=1e-6)
    assert np.allclose(dense(found).sum(1) + found.rest, 1.0, atol=1e-6)
    assert found.popularity.sum() == pytest.approx(1.0)


def test_similarities_are_cosines_of_users() -> None:
    people = random_people()
    used = np.array([np.bincount(own, minlength=12) for own in people], np.float64)
    lengths = np.sqrt((used**2).sum(0))
    expected = used.T @ used / (np.outer(lengths, lengths) + 2.0)
    np.fill_diagonal(expected, 0.0)
    found = similarities(histories_of(people), 12, shrinkage=2.0, most=12)
    assert np.allclose(dense(found), expected, atol=1e-6)
    assert not found.rest.any()


def test_only_the_largest_of_a_row_are_kept() -> None:
    people = histories_of(random_people())
    whole, cut = (dense(similarities(people, 12, shrinkage=0.0, most=most)) for most in (12, 3))
    assert ((cut > 0).sum(1) == 3).all()
    assert np.allclose(np.sort(whole, axis=1)[:, -3:], np.sort(cut, axis=1)[:, -3:])


def test_the_latest_items_are_followed_older_ones_for_less() -> None:
    found = transitions(histories_of(PEOPLE), 5, reach=1, fade=1.0, smoothing=1.0, most=5)
    table = dense(found) + np.outer(found.rest, found.popularity)
    model = NeighbourScorer(found, histories_of([[4, 2, 0], [0, 2], []]), decay=0.5, latest=2)
    scores = model.score_all(np.arange(3))
    small = 1e-4 * found.popularity
    assert np.allclose(scores[0], table[0] + 0.5 * table[2] + small, atol=1e-6)
    assert np.allclose(scores[1], table[2] + 0.5 * table[0] + small, atol=1e-6)
    assert np.argmax(scores[2]) == np.argmax(found.popularity)
    items = np.array([[3, 1], [0, 0], [2, 4]], np.int32)
    assert np.allclose(model.score_some(np.arange(3), items), np.take_along_axis(scores, items.astype(np.int64), 1))


def test_nobody_with_two_items_leaves_popularity() -> None:
    alone = Csr(np.array([0, 1, 2, 3]), np.array([1, 1, 0], np.int32))
    for found in (
        transitions(alone, 3, reach=3, fade=1.0, smoothing=1.0, most=3),
        similarities(alone, 3, shrinkage=0.0, most=3),
    ):
        scores = NeighbourScorer(found, alone, decay=0.5, latest=3).score_all(np.arange(3))
        assert (np.argsort(-scores, axis=1) == [1, 0, 2]).all()
