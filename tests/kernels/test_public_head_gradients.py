"""The closed form of the public head's gradients is what autograd finds, on each client alone and for all at once."""

import numpy as np
import pytest

from tests.models.test_public_head import NEWS, make, some_news
from veilrec.client.news_data import NONE, ClickExamples
from veilrec.kernels.news_gradients import AutogradModel, PublicHeadGradients

HISTORIES = [[1, 2, 3, 3], [], [NEWS - 1], [5, 6]]
CLIENT, HISTORY_OF = [0, 0, 1, 2, 2], [0, 0, 1, 2, 3]
CANDIDATES = [[4, 5, 6], [7, 1, NONE], [8, 9, 10], [11, 12, 13], [NEWS - 1, 0, 2]]


def examples():
    histories = np.full((len(HISTORIES), 6), NONE, np.int32)
    for row, items in zip(histories, HISTORIES, strict=True):
        row[: len(items)] = items
    return ClickExamples(np.array(CLIENT), np.array(CANDIDATES, np.int32), np.array(HISTORY_OF), histories)


def weights():
    generator = np.random.default_rng(1)
    return {"scales": np.array([2, -1, 3], np.float32), "taste": generator.normal(0, 1, 4).astype(np.float32)}


@pytest.mark.parametrize("train_basis", [False, True])
def test_gradients_are_those_of_autograd(train_basis):
    news = some_news()
    model, frozen = make(news, train_basis=train_basis)
    assert "moves" not in frozen or not train_basis
    learned = weights()
    if train_basis:
        learned["moves"] = np.random.default_rng(2).normal(0, 1, model.moves.shape).astype(np.float32)
    share = np.linspace(0.1, 0.5, len(CLIENT)).astype(np.float32)
    ours, theirs = PublicHeadGradients(model, news), AutogradModel(model, news)
    assert not ours.count_words(examples(), 3).any()
    for found, wanted in (
        (ours.each(learned, examples(), 3), theirs.each(learned, examples(), 3)),
        (ours.together(learned, examples(), share), theirs.together(learned, examples(), share)),
    ):
        for name, value in wanted.dense.items():
            np.testing.assert_allclose(found.dense[name], value, atol=5e-6)
            assert np.abs(value).max() > 0.01
        np.testing.assert_allclose(found.losses, wanted.losses, atol=1e-5)


def test_a_basis_that_learns_changes_no_other_gradient():
    news = some_news()
    alone, both = (PublicHeadGradients(make(news, train_basis=train)[0], news) for train in (False, True))
    moves = {"moves": np.zeros(make(news, train_basis=True)[0].moves.shape, np.float32)}
    found = both.each(weights() | moves, examples(), 3)
    for name, value in alone.each(weights(), examples(), 3).dense.items():
        np.testing.assert_array_equal(found.dense[name], value)
