"""EASE against its defining equations."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec.core.arrays import Csr
from veilrec.core.errors import BadInput
from veilrec.models.item_item import EaseScorer, ease_weights

RIDGE = 3.0


def random_histories(users: int, n_items: int) -> tuple[Csr, np.ndarray]:
    used = np.random.default_rng(4).random((users, n_items)) < 0.3
    offsets = np.concatenate([[0], np.cumsum(used.sum(1))])
    items = np.concatenate([np.flatnonzero(row)[::-1] for row in used]).astype(np.int32)  # unsorted, as in time order
    return Csr(offsets, items), used.astype(np.float64)


def test_weights_are_the_closed_form() -> None:
    histories, used = random_histories(40, 15)
    inverse = np.linalg.inv(used.T @ used + RIDGE * np.eye(15))
    expected = -inverse / np.diag(inverse)  # B_ij = -P_ij / P_jj
    np.fill_diagonal(expected, 0.0)
    weights = ease_weights(histories, 15, RIDGE)
    assert weights.dtype == np.float32
    assert np.allclose(weights, expected, rtol=1e-5, atol=1e-7)


def test_no_item_without_its_own_weight_predicts_the_history_better() -> None:
    """The weights minimise |X - XB|^2 + ridge |B|^2 with a zero diagonal: any small step away costs more."""
    histories, used = random_histories(40, 15)
    best = ease_weights(histories, 15, RIDGE).astype(np.float64)

    def loss(weights: np.ndarray) -> float:
        return float(((used - used @ weights) ** 2).sum() + RIDGE * (weights**2).sum())

    generator = np.random.default_rng(5)
    for _ in range(20):
        step = 0.01 * generator.standard_normal(best.shape)
        np.fill_diagonal(step, 0.0)
        assert loss(best + step) > loss(best)


def test_scores_are_history_times_weights() -> None:
    histories, used = random_histories(40, 15)
    weights = ease_weights(histories, 15, RIDGE)
    scorer = EaseScorer(weights, histories)
    users = np.array([5, 39, 0])
    assert np.allclose(scorer.score_all(users), used[users] @ weights, atol=1e-5)
    items = np.array([[0, 14], [3, 3], [7, 1]], np.int32)
    expected = np.take_along_axis(used[users] @ weights, items.astype(np.int64), axis=1)
    assert np.allclose(scorer.score_some(users, items), expected, atol=1e-5)


def test_a_ridge_that_is_too_small_for_the_data_is_refused() -> None:
    twins = Csr(np.arange(5) * 2, np.array([0, 1] * 4, np.int32))  # two items that nothing tells apart
    with pytest.raises(BadInput, match="too small for this data"):
        ease_weights(twins, 2, 1e-300)
