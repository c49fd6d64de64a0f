"""Random scores: uniform, keyed by user and item, at chance."""

from __future__ import annotations

import numpy as np
from scipy.stats import kstest

from veilrec.methods.random_scores import RandomModel

from .tastes import measured


def test_scores_are_uniform_and_differ_between_users_items_and_seeds() -> None:
    scores = RandomModel(seed=7, n_items=200).score_all(np.arange(100))
    assert scores.min() >= 0.0
    assert scores.max() < 1.0
    assert kstest(scores.ravel(), "uniform").pvalue > 1e-6  # false alarm: one seed in a million, and ours is fixed
    assert len(np.unique(scores)) > 0.99 * scores.size
    assert not np.array_equal(scores, RandomModel(seed=8, n_items=200).score_all(np.arange(100)))
    assert abs(np.corrcoef(scores[0], scores[1])[0, 1]) < 0.35  # 5 standard errors


def test_a_score_depends_on_user_and_item_alone() -> None:
    model = RandomModel(seed=7, n_items=200)
    alone = model.score_some(np.array([42]), np.array([[9]], np.int32))
    assert alone[0, 0] == model.score_all(np.arange(100))[42, 9]


def test_stands_at_chance() -> None:
    # 500 cases: 0.1 within 5 standard errors of 0.0134.
    assert abs(measured("random", "loo-99")["hr@10"] - 0.1) < 0.067
