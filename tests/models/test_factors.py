from __future__ import annotations

import numpy as np

from veilrec.models.scores import FactorScores


def test_scores_are_dot_products() -> None:
    generator = np.random.default_rng(0)
    users = generator.standard_normal((7, 33)).astype(np.float32)
    items = generator.standard_normal((11, 33)).astype(np.float32)
    model = FactorScores(users, items)
    expected = users.astype(np.float64) @ items.astype(np.float64).T
    chosen = np.array([4, 0, 4])
    assert model.n_items == 11
    assert np.allclose(model.score_all(chosen), expected[chosen], rtol=1e-5, atol=1e-5)
    candidates = generator.integers(0, 11, (3, 5)).astype(np.int32)
    some = model.score_some(chosen, candidates)
    assert some.shape == (3, 5)
    assert np.allclose(some, expected[chosen[:, np.newaxis], candidates], rtol=1e-5, atol=1e-5)


def test_columns_of_a_larger_array_can_be_scored() -> None:
    generator = np.random.default_rng(1)
    model = FactorScores(np.eye(4, dtype=np.float32), generator.standard_normal((6, 4)).astype(np.float32))
    wide = generator.integers(0, 6, (4, 8)).astype(np.int32)
    users = np.arange(8)[::2] // 2  # neither array is contiguous
    assert np.array_equal(model.score_some(users, wide[:, ::2]), model.score_some(users, wide[:, ::2].copy()))
