"""Places, and what is made of them, beside hand-made cases and scikit-learn."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import average_precision_score, ndcg_score, roc_auc_score

from tests.evaluation.toys import csr
from veilrec.evaluation import metrics as per_case
from veilrec.evaluation.metrics import holm, places_among_all, places_in_lists, places_of_first, sign_flip_test


def means(values):
    return {name: float(np.mean(of_cases)) for name, of_cases in values.items()}


SCORES = arrays(np.float32, (3, 12), elements=st.integers(-4, 4).map(float))  # few values: many ties


def test_places_by_hand():
    scores = np.array([[5, 1, 2], [1, 5, 2], [2, 5, 2], [2, 2, 2]], np.float32)
    assert places_of_first(scores).tolist() == [1, 3, 2.5, 2]  # a tie costs half a place
    scores = np.array([[9, 5, 4, 4, 1], [0, 0, 0, 0, 0]], np.float32)  # excluded items are no rivals
    assert places_among_all(scores, csr([[2], [0]]), csr([[0, 3], [1]]), one_by_one=False).tolist() == [2, 2.5]
    scores = np.array([[9, 5, 4, 3, 4]], np.float32)  # positives are rivals unless ranked one by one
    for one_by_one, places in ((False, [1, 2.5, 2.5]), (True, [1, 1, 1])):
        assert places_among_all(scores, csr([[1, 2, 4]]), csr([[0]]), one_by_one=one_by_one).tolist() == places
    scores = np.array([1, 3, 2, 7, 7, 7], np.float32)
    wanted = np.array([1, 0, 1, 0, 1, 0], np.uint8)
    assert places_in_lists(scores, np.array([0, 3, 6]), wanted).tolist() == [3, 2, 2]


@given(SCORES)
def test_the_three_rankings_agree(scores):
    first = places_of_first(scores)
    among_all = places_among_all(scores, csr([[0]] * 3), csr([[]] * 3), one_by_one=False)
    wanted = np.tile(np.arange(12) == 0, 3).astype(np.uint8)
    in_lists = places_in_lists(scores.ravel(), np.arange(0, 37, 12), wanted)
    assert first.tolist() == among_all.tolist() == in_lists.tolist()
    ranks = places_among_all(scores, csr([range(12)] * 3), csr([[]] * 3), one_by_one=False)
    assert ranks.reshape(3, 12).sum(axis=1).tolist() == [78, 78, 78]


def test_lists_by_hand():
    metrics = means(per_case.list_metrics(np.array([10.5, 2.5]), np.arange(3)))
    assert metrics["hr@10"] == 0.5  # half a place too far is no hit
    assert metrics["ndcg@10"] == pytest.approx(1 / np.log2(3.5) / 2)
    metrics = means(per_case.list_metrics(np.arange(1.0, 13.0), np.array([0, 12])))  # more positives than places
    assert metrics["ndcg@5"] == metrics["ndcg@10"] == metrics["ndcg@30"] == pytest.approx(1.0)


def test_one_by_one_is_the_mean_within_a_user_then_over_users():
    # User A: places 1 and 6; user B: place 2.
    metrics = means(per_case.one_by_one_metrics(np.array([1.0, 6.0, 2.0]), np.array([0, 2, 3])))
    assert (metrics["hr@5"], metrics["hr@10"]) == ((0.5 + 1) / 2, 1.0)
    assert metrics["ndcg@5"] == pytest.approx((0.5 + 1 / np.log2(3)) / 2)
    assert metrics["ndcg@10"] == pytest.approx(((1 + 1 / np.log2(7)) / 2 + 1 / np.log2(3)) / 2)
    values = per_case.further_one_by_one_metrics(np.array([1.0, 6.0, 2.0]), np.array([0, 2, 3]), (5,))
    assert (values["recall@5"].tolist(), values["precision@5"].tolist()) == ([0.5, 1], pytest.approx([0.1, 0.2]))
    assert values["map@5"].tolist() == values["mrr@5"].tolist() == pytest.approx([0.5, 0.5])


def lists(draw, *, ties):
    size = draw(st.integers(2, 30))
    values = st.integers(0, 5) if ties else st.integers(0, 10_000)
    scores = draw(st.lists(values, min_size=size, max_size=size, unique=not ties))
    clicks = draw(st.integers(1, size - 1))
    labels = np.array(draw(st.permutations([1] * clicks + [0] * (size - clicks))), np.uint8)
    return np.array(scores, np.float32), labels


tied_lists = st.composite(lists)(ties=True)
untied_lists = st.composite(lists)(ties=False)


def ours(scores, labels):
    ranks = places_in_lists(scores, np.array([0, len(scores)]), labels)
    return means(per_case.impression_metrics(ranks, np.array([0, len(ranks)]), np.array([len(scores)])))


@given(tied_lists)
def test_auc_is_scikit_learns_ties_and_all_and_no_metric_is_above_one(case):
    scores, labels = case
    metrics = ours(scores, labels)
    assert metrics["auc"] == pytest.approx(roc_auc_score(labels, scores))
    assert all(0 <= value <= 1 + 1e-12 for value in metrics.values())


@given(untied_lists)
def test_ndcg_is_scikit_learns_and_mrr_is_minds(case):
    scores, labels = case
    metrics = ours(scores, labels)
    assert metrics["ndcg@5"] == pytest.approx(ndcg_score([labels], [scores], k=5))
    assert metrics["ndcg@10"] == pytest.approx(ndcg_score([labels], [scores], k=10))
    in_order = labels[np.argsort(-scores)]
    assert metrics["mrr"] == pytest.approx(np.sum(in_order / np.arange(1, len(labels) + 1)) / labels.sum())


def further(scores, labels, cutoffs):
    ranks = places_in_lists(scores, np.array([0, len(scores)]), labels)
    return means(per_case.further_metrics(ranks, np.array([0, len(ranks)]), cutoffs))


@given(untied_lists)
def test_further_metrics_without_ties_are_those_of_a_sorted_list(case):
    scores, labels = case
    metrics = further(scores, labels, (3, 40))
    assert metrics["map@40"] == pytest.approx(average_precision_score(labels, scores))
    for k in (3, 40):
        in_order = labels[np.argsort(-scores)][:k].tolist()
        n = int(labels.sum())
        assert metrics[f"recall@{k}"] == pytest.approx(sum(in_order) / n)
        assert metrics[f"precision@{k}"] == pytest.approx(sum(in_order) / k)
        assert metrics[f"mrr@{k}"] == pytest.approx(1 / (in_order.index(1) + 1) if any(in_order) else 0)
        at_hits = [sum(in_order[: place + 1]) / (place + 1) for place, hit in enumerate(in_order) if hit]
        assert metrics[f"map@{k}"] == pytest.approx(sum(at_hits) / min(n, k))


@given(tied_lists)
def test_further_metrics_with_ties_are_what_the_definitions_say(case):
    scores, labels = case
    positives = scores[labels > 0]

    def place(score, among):
        return 1 + float((among > score).sum()) + (float((among == score).sum()) - 1) / 2

    places = [place(score, scores) for score in positives]
    own = [place(score, positives) for score in positives]
    metrics = further(scores, labels, (4,))
    hits = sum(at <= 4 for at in places)
    average = sum(mine / at for mine, at in zip(own, places, strict=True) if at <= 4) / min(len(places), 4)
    assert metrics["recall@4"] == pytest.approx(hits / len(places))
    assert metrics["precision@4"] == pytest.approx(min(hits / 4, 1))
    assert metrics["mrr@4"] == pytest.approx(1 / min(places) if min(places) <= 4 else 0)
    assert metrics["map@4"] == pytest.approx(min(average, 1))


@given(st.lists(tied_lists, min_size=1, max_size=5))
def test_cases_do_not_touch_each_other(some):
    ranks = [places_in_lists(scores, np.array([0, len(scores)]), labels) for scores, labels in some]
    offsets = np.concatenate([[0], np.cumsum([len(of) for of in ranks])])
    together = per_case.further_metrics(np.concatenate(ranks), offsets, (3, 5))
    for number, (scores, labels) in enumerate(some):
        assert {name: values[number] for name, values in together.items()} == further(scores, labels, (3, 5))


def exact(differences):
    """All ways to flip."""
    signs = np.array(list(product((-1.0, 1.0), repeat=len(differences))))
    return float(np.mean(np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12))


def test_the_p_value_is_that_of_all_flips_columns_are_tests_of_their_own_and_both_sides_count():
    columns = np.random.default_rng(0).normal(0.3, 1.0, (12, 4))
    for differences, p_value in zip(columns.T, sign_flip_test(columns), strict=True):
        expected = exact(differences)
        # Each within 5 standard deviations of 9,999 flips: one fails by chance in 400,000 seeds.
        assert p_value == pytest.approx(expected, abs=5 * np.sqrt(expected * (1 - expected) / 9_999) + 1e-4)
    differences = np.column_stack([np.ones(30), -np.ones(30), np.zeros(30), np.tile([1.0, -1.0], 15)])
    up, down, nothing, balanced = sign_flip_test(differences)
    assert up == down == pytest.approx(1e-4)  # never below 1 / (flips + 1)
    assert nothing == balanced == 1.0


def test_equally_good_methods_are_told_apart_as_seldom_as_promised():
    generator = np.random.default_rng(5)
    differences = generator.normal(size=(60, 2000)) * generator.exponential(size=(60, 1))  # heavy tails, no favourite
    share = np.mean(sign_flip_test(differences, flips=999) <= 0.05)
    assert share == pytest.approx(0.05, abs=0.025)  # 5 standard deviations: 4 in 10 million seeds fail


def test_many_users_are_flipped_in_parts(monkeypatch):
    differences = np.random.default_rng(1).normal(0.1, 1.0, (500, 2))
    monkeypatch.setattr("veilrec.evaluation.metrics._AT_ONCE", 500 * 7)
    parts = sign_flip_test(differences, flips=2_000)
    monkeypatch.undo()
    assert parts == pytest.approx(sign_flip_test(differences, flips=2_000), abs=0.06)


def test_holm_multiplies_by_what_is_left_and_never_falls():
    # Worked by hand: sorted .005 .01 .03 .04 times 4 3 2 1, then the largest so far.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
