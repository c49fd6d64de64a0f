"""EASE, nearest neighbours and the private Gram matrix against their equations."""

import numpy as np
import pytest

from veilrec.audit.contract_subject import histories_of
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.models import item_item

EASE_RIDGE = 3.0


def random_histories(users, n_items):
    used = np.random.default_rng(4).random((users, n_items)) < 0.3
    offsets = np.concatenate([[0], np.cumsum(used.sum(1))])
    items = np.concatenate([np.flatnonzero(row)[::-1] for row in used]).astype(np.int32)  # unsorted, as in time order
    return Csr(offsets, items), used.astype(np.float64)


def test_weights_are_the_closed_form():
    histories, used = random_histories(40, 15)
    inverse = np.linalg.inv(used.T @ used + EASE_RIDGE * np.eye(15))
    expected = -inverse / np.diag(inverse)  # B_ij = -P_ij / P_jj
    np.fill_diagonal(expected, 0.0)
    weights = item_item.ease_weights(histories, 15, EASE_RIDGE)
    assert weights.dtype == np.float32 and np.allclose(weights, expected, rtol=1e-5, atol=1e-7)


def test_scores_are_history_times_weights():
    histories, used = random_histories(40, 15)
    weights = item_item.ease_weights(histories, 15, EASE_RIDGE)
    scorer = item_item.EaseScorer(weights, histories)
    users = np.array([5, 39, 0])
    assert np.allclose(scorer.score_all(users), used[users] @ weights, atol=1e-5)
    items = np.array([[0, 14], [3, 3], [7, 1]], np.int32)
    expected = np.take_along_axis(used[users] @ weights, items.astype(np.int64), axis=1)
    assert np.allclose(scorer.score_some(users, items), expected, atol=1e-5)


def test_a_ridge_that_is_too_small_for_the_data_is_refused():
    twins = Csr(np.arange(5) * 2, np.array([0, 1] * 4, np.int32))  # two items that nothing tells apart
    with pytest.raises(BadInput, match="too small for this data"):
        item_item.ease_weights(twins, 2, 1e-300)


PEOPLE = [[0, 1, 2], [0, 1], [2, 0, 3, 1], [4], []]


def dense(found):
    n = len(found.rest)
    table = np.zeros((n, n))
    table[found.rows.row_numbers(), found.rows.items] = found.values
    return table


def random_people(users=30, n_items=12):
    generator = np.random.default_rng(3)
    return [generator.permutation(n_items)[: generator.integers(1, n_items)].tolist() for _ in range(users)]


@pytest.mark.parametrize(("reach", "fade"), [(1, 1.0), (2, 0.5), (50, 0.9)])
def test_chances_are_smoothed_counts_and_add_up_to_one(reach, fade):
    people = random_people()
    counts = np.zeros((12, 12))
    for own in people:
        for a, item in enumerate(own):
            for gap, later in enumerate(own[a + 1 : a + 1 + reach]):
                counts[item, later] += fade**gap
    found = item_item.transitions(histories_of(people), 12, reach=reach, fade=fade, smoothing=4.0, most=12)
    assert np.allclose(dense(found), counts / (counts.sum(1, keepdims=True) + 4.0), atol=1e-6)
    assert np.allclose(dense(found).sum(1) + found.rest, 1.0, atol=1e-6)
    assert found.popularity.sum() == pytest.approx(1.0)


def test_similarities_are_cosines_of_users():
    people = random_people()
    used = np.array([np.bincount(own, minlength=12) for own in people], np.float64)
    lengths = np.sqrt((used**2).sum(0))
    expected = used.T @ used / (np.outer(lengths, lengths) + 2.0)
    np.fill_diagonal(expected, 0.0)
    found = item_item.similarities(histories_of(people), 12, shrinkage=2.0, most=12)
    assert np.allclose(dense(found), expected, atol=1e-6) and not found.rest.any()


def test_only_the_largest_of_a_row_are_kept():
    people = histories_of(random_people())
    whole, cut = (dense(item_item.similarities(people, 12, shrinkage=0.0, most=most)) for most in (12, 3))
    assert ((cut > 0).sum(1) == 3).all() and np.allclose(np.sort(whole, axis=1)[:, -3:], np.sort(cut, axis=1)[:, -3:])


def test_the_latest_items_are_followed_older_ones_for_less():
    found = item_item.transitions(histories_of(PEOPLE), 5, reach=1, fade=1.0, smoothing=1.0, most=5)
    table = dense(found) + np.outer(found.rest, found.popularity)
    model = item_item.NeighbourScorer(found, histories_of([[4, 2, 0], [0, 2], []]), decay=0.5, latest=2)
    scores = model.score_all(np.arange(3))
    small = 1e-4 * found.popularity
    assert np.allclose(scores[0], table[0] + 0.5 * table[2] + small, atol=1e-6)
    assert np.allclose(scores[1], table[2] + 0.5 * table[0] + small, atol=1e-6)
    assert np.argmax(scores[2]) == np.argmax(found.popularity)
    items = np.array([[3, 1], [0, 0], [2, 4]], np.int32)
    assert np.allclose(model.score_some(np.arange(3), items), np.take_along_axis(scores, items.astype(np.int64), 1))


def test_nobody_with_two_items_leaves_popularity():
    alone = Csr(np.array([0, 1, 2, 3]), np.array([1, 1, 0], np.int32))
    for found in (
        item_item.transitions(alone, 3, reach=3, fade=1.0, smoothing=1.0, most=3),
        item_item.similarities(alone, 3, shrinkage=0.0, most=3),
    ):
        scores = item_item.NeighbourScorer(found, alone, decay=0.5, latest=3).score_all(np.arange(3))
        assert (np.argsort(-scores, axis=1) == [1, 0, 2]).all()


SIZE, SIGMA = 300, 2.0


def noise(seed):
    return SIGMA * np.random.default_rng(seed).normal(size=(SIZE, SIZE))


def test_pure_noise_has_no_tastes():
    """Of 40 matrices: an eigenvalue beyond the margin comes about once in 25."""
    found = [item_item.tastes_of(noise(seed), sigma=SIGMA, people=1000).directions.shape[1] for seed in range(40)]
    assert sum(found) <= 8


def test_a_direction_is_found_and_as_long_as_it_was_beside_its_noise():
    generator = np.random.default_rng(0)
    direction = generator.normal(size=SIZE)
    direction /= np.linalg.norm(direction)
    strength, people = 300.0, 1000
    found = item_item.tastes_of(strength * np.outer(direction, direction) + noise(7), sigma=SIGMA, people=people)
    assert found.directions.shape[1] == 1
    # l - K s^2 / l, the nearest multiple, and the cosine of the angle: 1 - K s^2 / l^2, with s = sigma / sqrt(2).
    spread = SIZE * SIGMA**2 / 2.0
    nearest = strength - spread / strength
    expected = nearest / (nearest + item_item.RIDGE * people / SIZE)
    assert abs(found.gains[0] - expected) < 0.03
    assert abs((found.directions[:, 0] @ direction) ** 2 - (1.0 - spread / strength**2)) < 0.02


def test_items_beyond_the_matrix_are_ranked_by_popularity():
    popularity = np.array([5.0, 4.0, 1.0, 3.0, 0.5], np.float32)
    scaling = item_item.Scaling.of(popularity, 3, 0.1)
    assert scaling.top.tolist() == [0, 1, 3]
    nobody = item_item.Tastes(np.zeros((3, 0), np.float32), np.zeros(0, np.float32))
    scorer = item_item.GramScorer(popularity, scaling, nobody, Csr(np.array([0, 0, 2]), np.array([1, 4], np.int32)))
    scores = scorer.score_all(np.array([0, 1]))
    assert np.allclose(scores / scores[:, :1], popularity / popularity[0])
    some = scorer.score_some(np.array([1, 0]), np.array([[2, 0], [4, 1]], np.int32))
    assert np.allclose(some, [[scores[1, 2], scores[1, 0]], [scores[0, 4], scores[0, 1]]])


def test_popularity_below_the_noise_is_taken_for_the_noise():
    scaling = item_item.Scaling.of(np.array([-3.0, 0.2, 16.0], np.float32), 3, 1.0)
    assert np.allclose(scaling.scales, [1.0, 1.0, 0.5])
