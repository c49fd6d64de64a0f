"""The closed form of the public head's gradients is what autograd finds, on each device alone and for all at once."""

from __future__ import annotations

import numpy as np
import torch

from tests.models.test_public_head import NEWS, make, some_news
from veilrec.client.news_data import NONE, ClickExamples
from veilrec.kernels.news_gradients import AutogradModel, PublicHeadGradients

HISTORIES = [[1, 2, 3, 3], [], [NEWS - 1], [5, 6]]
DEVICE, HISTORY_OF = [0, 0, 1, 2, 2], [0, 0, 1, 2, 3]
CANDIDATES = [[4, 5, 6], [7, 1, NONE], [8, 9, 10], [11, 12, 13], [NEWS - 1, 0, 2]]


def examples() -> ClickExamples:
    histories = np.full((len(HISTORIES), 6), NONE, np.int32)
    for row, items in zip(histories, HISTORIES, strict=True):
        row[: len(items)] = items
    return ClickExamples(np.array(DEVICE), np.array(CANDIDATES, np.int32), np.array(HISTORY_OF), histories)


def weights() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1)
    return {"scales": np.array([2, -1, 3], np.float32), "taste": generator.normal(0, 1, 4).astype(np.float32)}


def test_each_device_has_the_gradient_of_autograd() -> None:
    news = some_news()
    model, _ = make(news)
    ours = PublicHeadGradients(model, news).each(weights(), examples(), 3)
    theirs = AutogradModel(model, news).each(weights(), examples(), 3)
    for name, value in theirs.dense.items():
        np.testing.assert_allclose(ours.dense[name], value, atol=2e-6)
        assert np.abs(value).max() > 0.01
    np.testing.assert_allclose(ours.losses, theirs.losses, atol=1e-5)


def test_all_at_once_is_the_weighted_sum() -> None:
    news = some_news()
    model, _ = make(news)
    share = np.linspace(0.1, 0.5, len(DEVICE)).astype(np.float32)
    ours = PublicHeadGradients(model, news).together(weights(), examples(), share)
    theirs = AutogradModel(model, news).together(weights(), examples(), share)
    for name, value in theirs.dense.items():
        np.testing.assert_allclose(ours.dense[name], value, atol=2e-6)
    np.testing.assert_allclose(ours.losses, theirs.losses, atol=1e-5)
    assert not PublicHeadGradients(model, news).count_words(examples(), 3).any()
    assert torch.isfinite(model.whitening).all()


def test_the_gradient_in_the_basis_is_that_of_autograd_and_the_rest_learns_as_before() -> None:
    news = some_news()
    model, frozen = make(news, train_basis=True)
    assert "moves" not in frozen
    learned = weights() | {"moves": np.random.default_rng(2).normal(0, 1, model.moves.shape).astype(np.float32)}
    share = np.linspace(0.1, 0.5, len(DEVICE)).astype(np.float32)
    ours, theirs = PublicHeadGradients(model, news), AutogradModel(model, news)
    for found, wanted in (
        (ours.each(learned, examples(), 3), theirs.each(learned, examples(), 3)),
        (ours.together(learned, examples(), share), theirs.together(learned, examples(), share)),
    ):
        for name, value in wanted.dense.items():
            np.testing.assert_allclose(found.dense[name], value, atol=5e-6)
            assert np.abs(value).max() > 0.01
        np.testing.assert_allclose(found.losses, wanted.losses, atol=1e-5)
    alone = PublicHeadGradients(make(news)[0], news).each(weights(), examples(), 3)
    both = ours.each(learned, examples(), 3)
    for name, value in alone.dense.items():
        np.testing.assert_array_equal(both.dense[name], value)
