"""Places, and what is made of them, beside hand-made cases and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import ndcg_score, roc_auc_score

from veilrec.evaluate.metrics import (
    impression_metrics,
    list_metrics,
    one_by_one_metrics,
    ranks_among_all,
    ranks_in_lists,
    ranks_of_first,
)

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


LOG2_3 = np.log2(3)


def test_one_positive_a_list() -> None:
    metrics = list_metrics(np.array([1.0, 3.0, 10.0, 50.0]), np.arange(5))
    assert metrics["hr@5"] == 0.5
    assert metrics["hr@10"] == metrics["hr@20"] == metrics["hr@30"] == 0.75
    assert metrics["ndcg@5"] == pytest.approx((1 + 1 / 2) / 4)
    assert metrics["ndcg@10"] == pytest.approx((1 + 1 / 2 + 1 / np.log2(11)) / 4)


def test_half_a_place_too_far_is_no_hit() -> None:
    metrics = list_metrics(np.array([10.5, 2.5]), np.arange(3))
    assert metrics["hr@10"] == 0.5
    assert metrics["ndcg@10"] == pytest.approx(1 / np.log2(3.5) / 2)


def test_several_positives_in_a_list() -> None:
    metrics = list_metrics(np.array([2.0, 3.0]), np.array([0, 2]))
    assert metrics["hr@5"] == 1.0
    assert metrics["ndcg@5"] == pytest.approx((1 / LOG2_3 + 1 / 2) / (1 + 1 / LOG2_3))


def test_a_perfect_list_has_ndcg_one_even_with_more_positives_than_places() -> None:
    metrics = list_metrics(np.arange(1.0, 13.0), np.array([0, 12]))
    assert metrics["ndcg@5"] == metrics["ndcg@10"] == metrics["ndcg@30"] == pytest.approx(1.0)


def test_one_by_one_is_the_mean_within_a_user_then_over_users() -> None:
    # User A: places 1 and 6; user B: place 2.
    metrics = one_by_one_metrics(np.array([1.0, 6.0, 2.0]), np.array([0, 2, 3]))
    assert metrics["hr@5"] == (0.5 + 1) / 2
    assert metrics["hr@10"] == 1.0
    assert metrics["ndcg@5"] == pytest.approx((0.5 + 1 / LOG2_3) / 2)
    assert metrics["ndcg@10"] == pytest.approx(((1 + 1 / np.log2(7)) / 2 + 1 / LOG2_3) / 2)


def test_impressions_by_hand() -> None:
    # Shown 4, clicks at places 1 and 3: of the 4 pairs (click, no click) one is in the wrong order.
    metrics = impression_metrics(np.array([1.0, 3.0]), np.array([0, 2]), np.array([4]))
    assert metrics["auc"] == 0.75
    assert metrics["mrr"] == pytest.approx((1 + 1 / 3) / 2)
    assert metrics["ndcg@5"] == pytest.approx((1 + 1 / 2) / (1 + 1 / LOG2_3))


def lists(draw: st.DrawFn, *, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    size = draw(st.integers(2, 30))
    values = st.integers(0, 5) if ties else st.integers(0, 10_000)
    scores = draw(st.lists(values, min_size=size, max_size=size, unique=not ties))
    clicks = draw(st.integers(1, size - 1))
    labels = np.array(draw(st.permutations([1] * clicks + [0] * (size - clicks))), np.uint8)
    return np.array(scores, np.float32), labels


tied_lists = st.composite(lists)(ties=True)
untied_lists = st.composite(lists)(ties=False)


def ours(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    ranks = ranks_in_lists(scores, np.array([0, len(scores)]), labels)
    return impression_metrics(ranks, np.array([0, len(ranks)]), np.array([len(scores)]))


@given(tied_lists)
@settings(deadline=None)
def test_auc_is_scikit_learns_ties_and_all(case: tuple[np.ndarray, np.ndarray]) -> None:
    scores, labels = case
    assert ours(scores, labels)["auc"] == pytest.approx(roc_auc_score(labels, scores))


@given(untied_lists)
@settings(deadline=None)
def test_ndcg_is_scikit_learns_and_mrr_is_minds(case: tuple[np.ndarray, np.ndarray]) -> None:
    scores, labels = case
    metrics = ours(scores, labels)
    assert metrics["ndcg@5"] == pytest.approx(ndcg_score([labels], [scores], k=5))
    assert metrics["ndcg@10"] == pytest.approx(ndcg_score([labels], [scores], k=10))
    in_order = labels[np.argsort(-scores)]
    assert metrics["mrr"] == pytest.approx(np.sum(in_order / np.arange(1, len(labels) + 1)) / labels.sum())


@given(tied_lists)
def test_no_metric_is_above_one(case: tuple[np.ndarray, np.ndarray]) -> None:
    assert all(0 <= value <= 1 + 1e-12 for value in ours(*case).values())
