"""What any weights can bring among the k best is in the set, whatever the values."""

import numpy as np
import pytest

from tests.serving.index.test_search import KINDS, drawn
from veilrec.serving.index.blocks import best_of, scores_of
from veilrec.serving.index.reachable import reachable_rows


def many_weights(interests, generator, count):
    for corner in np.eye(interests):
        yield corner.astype(np.float32)
    yield np.full(interests, 1 / interests, np.float32)
    for turn in range(count):
        weights = generator.dirichlet(np.full(interests, 10.0 ** generator.uniform(-1.5, 1)))
        if turn % 4 == 0:  # an edge
            weights[generator.permutation(interests)[2:]] = 0.0
        if turn % 4 == 1:  # the borders of cells
            weights = np.round(weights * 8) / 8
        if weights.sum() > 0:
            yield (weights / weights.sum()).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("interests", "k"), [(1, 3), (2, 10), (3, 1), (5, 10), (8, 5)])
def test_nothing_is_missed(kind, interests, k):
    generator = np.random.default_rng(interests)
    values = drawn(kind, 1500, interests, generator)
    found = reachable_rows(values, k, deepest=8)
    assert (np.diff(found) > 0).all()
    known = set(found.tolist())
    for weights in many_weights(interests, generator, 400):
        assert set(best_of(scores_of(values, weights), k).tolist()) <= known


def test_it_is_small_and_smaller_the_longer_one_looks():
    values = drawn("clusters", 20_000, 3, np.random.default_rng(0))
    sizes = [len(reachable_rows(values, 10, deepest=deepest)) for deepest in (2, 6, 12)]
    assert sizes[0] > sizes[1] >= sizes[2]
    assert 10 <= sizes[2] < 400


def test_little_work_gives_a_larger_set_that_is_safe_as_well():
    values = drawn("clusters", 5000, 5, np.random.default_rng(1))
    small, large = set(reachable_rows(values, 10).tolist()), set(reachable_rows(values, 10, work=1e5).tolist())
    assert small < large
    assert set(reachable_rows(values, 10, work=0.0).tolist()) == set(range(5000))


def test_of_equal_items_only_the_first_count_and_few_items_are_all_reached():
    values = np.repeat(drawn("normal", 5, 3, np.random.default_rng(2)), 100, axis=0)
    found = reachable_rows(values, 4)
    assert max(np.bincount(found // 100)) == 4
    assert set((found % 100).tolist()) == {0, 1, 2, 3}
    values = drawn("normal", 7, 3, np.random.default_rng(3))
    assert reachable_rows(values, 10).tolist() == list(range(7))
    assert reachable_rows(np.zeros((0, 3), np.float32), 10).tolist() == []
    assert reachable_rows(values[:, :0], 10).tolist() == list(range(7))[:10]
