"""Gradients of news models are those of autograd on each device alone, whatever its history and its titles are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from veilrec.client.news_data import NONE, ClickExamples
from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.kernels.news_gradients import Gradients, differentiation
from veilrec.kernels.title_encoder import WORDS
from veilrec.models.federated_news import FedNewsRec
from veilrec.models.news_model import NewsInput, NewsShape, NewsSizes, losses, make_batch, take_news

VOCABULARY, LONGEST_TITLE, LONGEST_HISTORY, NEWS = 60, 30, 50, 70
LONG, EMPTY = list(range(NEWS))[-LONGEST_HISTORY:], []
ONE_WORD = [10, 11, 12]  # news with titles of one word
NO_WORD = 13
HISTORIES = [LONG, EMPTY, ONE_WORD, [NO_WORD], [5, 5, 6, 5], [1, 2, 3], EMPTY]
HISTORY_OF = [0, 0, 1, 2, 3, 4, 5, 6]
DEVICE = [0, 0, 1, 2, 3, 4, 4, 4]  # the last device has three histories, one of them empty
CANDIDATES = [
    [1, 2, 3, 4, 5],
    [20, 21, 22, 23, 24],
    [1, 2, NONE, NONE, NONE],
    [10, 11, NONE, NONE, NONE],
    [NO_WORD, 10, 4, NONE, NONE],
    [5, 6, 7, 8, 9],
    [1, 2, 3, 4, 5],
    [30, NO_WORD, 31, 32, 33],
]


def examples() -> ClickExamples:
    histories = np.full((len(HISTORIES), LONGEST_HISTORY), NONE, np.int32)
    for row, items in zip(histories, HISTORIES, strict=True):
        row[: len(items)] = items
    return ClickExamples(np.array(DEVICE), np.array(CANDIDATES, np.int32), np.array(HISTORY_OF), histories)


def news() -> NewsInput:
    """Titles of all lengths from 1 to the longest, and one without a word."""
    generator = np.random.default_rng(1)
    codes = generator.integers(1, VOCABULARY, (NEWS, LONGEST_TITLE))
    lengths = np.r_[LONGEST_TITLE, generator.integers(1, LONGEST_TITLE + 1, NEWS - 1)]
    lengths[ONE_WORD], lengths[NO_WORD] = 1, 0
    codes[np.arange(LONGEST_TITLE) >= lengths[:, np.newaxis]] = 0
    none = torch.zeros(NEWS, 0, dtype=torch.int64)
    return NewsInput(torch.from_numpy(codes), none, none, none, none, none.float())


def model(heads: int, width: int) -> FedNewsRec:
    sizes = NewsSizes(word_dim=6, heads=heads, head_dim=width, attention=4, dropout=0.0)
    made = FedNewsRec(sizes, NewsShape(VOCABULARY, 2, 2, 2))
    made.start(torch.Generator().manual_seed(2))
    return made


def losses_of(made: FedNewsRec, rows: Offsets) -> Tensor:
    """By torch alone, of some examples."""
    every = examples()
    batch = make_batch(every.histories, every.history_of[rows], every.candidates[rows])
    return losses(made, take_news(news(), batch.news), batch)


def weights_of(made: FedNewsRec) -> dict[str, Floats]:
    return {name: value.detach().numpy() for name, value in made.named_parameters()}


def table(found: Gradients, device: int) -> Floats:
    assert found.words is not None
    rows = slice(found.words.offsets[device], found.words.offsets[device + 1])
    whole = np.zeros((VOCABULARY, found.words.values.shape[1]), np.float32)
    index: Indices = found.words.index[rows]
    whole[index] = found.words.values[rows]
    return whole


def assert_those_of_autograd(found: Gradients, device: int, made: FedNewsRec, loss: Tensor) -> None:
    made.zero_grad()
    loss.backward()
    parts = {name: value[device] for name, value in found.dense.items()} | {WORDS: table(found, device)}
    assert parts.keys() == dict(made.named_parameters()).keys()
    for name, part in parts.items():
        gradient = made.get_parameter(name).grad
        expected = np.zeros_like(part) if gradient is None else gradient.numpy()
        assert np.allclose(part, expected, atol=1e-6, rtol=1e-5), (device, name)


SHAPES = pytest.mark.parametrize(("heads", "width"), [(2, 5), (3, 8), (2, 16)])


@SHAPES
def test_every_device_has_the_gradient_that_it_has_alone(heads: int, width: int) -> None:
    made, n = model(heads, width), max(DEVICE) + 1
    found = differentiation(made, news(), frozenset()).each(weights_of(made), examples(), n)
    for device in range(n):
        loss = losses_of(made, np.flatnonzero(np.array(DEVICE) == device)).mean()
        assert found.losses[device] == pytest.approx(loss.item(), rel=1e-5)
        assert_those_of_autograd(found, device, made, loss)


@SHAPES
def test_one_pass_gives_the_weighted_sum(heads: int, width: int) -> None:
    made, share = model(heads, width), np.linspace(0.1, 0.8, len(DEVICE), dtype=np.float32)
    found = differentiation(made, news(), frozenset()).together(weights_of(made), examples(), share)
    loss = (losses_of(made, np.arange(len(DEVICE))) * torch.from_numpy(share)).sum()
    assert_those_of_autograd(found, 0, made, loss)


def test_only_users_without_history_move_the_newcomer() -> None:
    made = model(2, 8)
    found = differentiation(made, news(), frozenset()).each(weights_of(made), examples(), max(DEVICE) + 1)
    moved = np.abs(found.dense["newcomer"]).sum(1) > 0
    assert moved.tolist() == [False, True, False, False, True]
