from dataclasses import replace

import numpy as np
import pytest

from tests.evaluation.served import DIM, NEWS, MeanModel, categories, impressions, texts
from veilrec.client.queries import Serving
from veilrec.core.csr import Csr
from veilrec.evaluation.metrics import impression_metrics, places_in_lists
from veilrec.evaluation.serving import serve, skew
from veilrec.serving.answering import scores_in_lists

ASKED = impressions()


def _served(model, asked=ASKED, **how):
    return serve(Serving(**how), model, asked, _plain(model, asked), texts(), categories())


def _plain(model, asked=ASKED):
    return scores_in_lists(model.users(asked.histories), model.news, asked.history_of.astype(np.int64), asked.shown)


def _auc(scores):
    ranks = places_in_lists(scores, ASKED.shown.offsets, ASKED.clicked)
    offsets = 3 * np.arange(len(ASKED) + 1)
    return float(impression_metrics(ranks, offsets, ASKED.shown.lengths())["auc"].mean())


def test_nothing_sent_gives_what_the_model_gives():
    model = MeanModel()
    served = _served(model, mode="none-sent")
    np.testing.assert_array_equal(served.scores, _plain(model))
    assert (served.recall, served.skew, served.bytes_up, served.plan) == (1.0, 0.0, 0, None)
    ids = sum(len(f"N{item}") for item in range(NEWS))
    assert served.bytes_down == NEWS * (4 * DIM + len("a title")) + ids
    plain = _served(model, mode="plain")
    assert plain.bytes_up == 7 + 4 * DIM
    assert plain.bytes_down < served.bytes_down


@pytest.mark.parametrize(
    ("basis", "how"),
    [
        (4, {"mode": "attention"}),
        (None, {"mode": "pooled", "delta": 1e-6}),
        (None, {"mode": "interest", "interests": 4, "pool": 40}),
        (4, {"mode": "interest", "pool": 40}),
        (None, {"mode": "vector", "delta": 1e-6}),
    ],
)
def test_hardly_any_noise_serves_like_the_model_and_much_like_chance(basis, how):
    model = MeanModel(basis)
    own = _auc(_plain(model))
    little, much = _served(model, epsilon=100.0, **how), _served(model, epsilon=0.01, **how)
    assert _auc(little.scores) > own - 0.03
    assert _auc(much.scores) < 0.62
    assert little.recall > much.recall
    assert little.skew < much.skew


def test_every_impression_has_noise_of_its_own():
    asked = impressions(300)
    one = {"histories": asked.histories.take(np.array([5])), "history_of": np.zeros(300, np.int32)}
    shown = Csr(np.arange(301, dtype=np.int64), np.full(300, 7, np.int32))  # everywhere the same item and history
    scores, again, other = (
        _served(MeanModel(), replace(asked, shown=shown, **one), mode="vector", epsilon=1.0, seed=seed).scores
        for seed in (0, 0, 1)
    )
    assert len(np.unique(scores)) == 300
    np.testing.assert_array_equal(scores, again)
    assert not np.array_equal(scores, other)


def test_a_pool_is_ranked_as_the_model_ranks_and_all_else_behind_it():
    model = MeanModel()
    served = _served(model, mode="interest", epsilon=1.0, pool=NEWS)
    assert (served.skew, served.recall) == (0.0, 1.0)
    assert _auc(served.scores) == _auc(_plain(model))
    served = _served(model, mode="interest", epsilon=1.0, pool=1)
    assert (served.scores >= 1.0).reshape(-1, 12).sum(axis=1).max() == 1
    assert served.recall <= 0.01 + 1e-9
    assert served.bytes_down == pytest.approx(4 * DIM + len("a title") + 3, abs=1)


def test_sensitive_clicks_and_padding():
    how = {"mode": "pooled", "epsilon": 0.1, "delta": 1e-6}
    whole, some = _served(MeanModel(), **how), _served(MeanModel(), sensitive=("subject-1",), **how)
    assert some.bytes_up == whole.bytes_up + 4 * 8
    assert some.plan.asking.question.kind == "pooled-and-clear"
    for calibration in ("proven", "as-published"):
        how = {"mode": "attention", "epsilon": 50.0, "padding": 0.3, "calibration": calibration}
        assert _auc(_served(MeanModel(basis=4), **how).scores) > 0.75


def test_skew_counts_the_places_that_hold_another_item():
    lists = Csr(np.array([0, 3, 3, 5]), np.zeros(5, np.int32))
    plain = np.array([3.0, 2.0, 1.0, 1.0, 0.0], np.float32)
    assert skew(plain, plain, lists) == 0.0
    turned = np.array([1.0, 2.0, 3.0, 1.0, 0.0], np.float32)  # the middle one of three stays
    assert skew(plain, turned, lists) == pytest.approx((2 / 3 + 0) / 2)
    ties = np.array([3.0, 2.0, 1.0, 5.0, 5.0], np.float32)  # in the order of the list
    assert skew(plain, ties, lists) == 0.0
    assert skew(plain[:0], plain[:0], Csr(np.array([0, 0]), np.zeros(0, np.int32))) == 0.0


def test_one_candidate_no_click_and_no_history_are_answered():
    model, asked = MeanModel(basis=4), impressions(3)
    odd = replace(
        asked,
        shown=Csr(np.array([0, 1, 1, 3]), np.array([4, 5, 6], np.int32)),
        clicked=np.zeros(3, np.uint8),
        histories=Csr(np.zeros(4, np.int64), np.zeros(0, np.int32)),
    )
    for how in ({"mode": "attention"}, {"mode": "pooled", "delta": 1e-6}, {"mode": "interest"}, {"mode": "vector"}):
        served = _served(model, odd, epsilon=1.0, **how)
        assert served.scores.shape == (3,)
        assert np.isfinite(served.scores).all()
