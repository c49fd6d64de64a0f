"""The compiled gradients of titles are those of autograd, device by device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from veilrec.core.arrays import Offsets
from veilrec.kernels.title_encoder import WORDS, encode_titles
from veilrec.kernels.title_gradients import CompiledTitles, Pairs, pull_back
from veilrec.models.federated_news import FedNewsRec
from veilrec.models.news_model import NewsInput, NewsShape, NewsSizes

VOCABULARY, LONGEST = 40, 7
PAIRS = Pairs(np.array([0, 3, 4, 4, 6]), np.array([0, 2, 3, 2, 1, 0]))  # the third device has no news


def titles(empty: int = 3) -> Offsets:
    """Five titles of different lengths, one of them without a word."""
    codes = np.random.default_rng(1).integers(1, VOCABULARY, (5, LONGEST))
    for title, length in enumerate((7, 4, 1, 5, 2)):
        codes[title, length:] = 0
    codes[empty] = 0
    return codes


def model(window: int) -> FedNewsRec:
    sizes = NewsSizes(word_dim=6, heads=2, head_dim=5, attention=4, window=window, dropout=0.0)
    made = FedNewsRec(sizes, NewsShape(VOCABULARY, 2, 2, 2))
    made.start(torch.Generator().manual_seed(2))
    with torch.no_grad():
        for value in made.parameters():
            value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(3)), alpha=0.3)
    return made


def news(codes: Offsets) -> NewsInput:
    none = torch.zeros(len(codes), 0, dtype=torch.int64)
    return NewsInput(torch.from_numpy(codes), none, none, none, none, none.float())


@pytest.mark.parametrize("window", [1, 3, 5])
def test_gradients_are_those_of_autograd(window: int) -> None:
    made, codes = model(window), titles()
    weights = {name: value.detach().numpy() for name, value in made.named_parameters()}
    encoded = encode_titles(weights, codes, made.sizes.heads)
    assert np.allclose(encoded.vectors, made.encode_news(news(codes)).detach().numpy(), atol=1e-6)
    slopes = np.random.default_rng(4).normal(size=(len(PAIRS.title), made.dim)).astype(np.float32)
    dense, words = pull_back(weights, encoded, PAIRS, slopes, learns_words=True)
    counted = CompiledTitles(made, news(codes), frozenset(weights)).count_words(np.arange(len(codes)), PAIRS)
    assert np.array_equal(np.diff(words.offsets), counted)
    for device in range(len(PAIRS.offsets) - 1):
        own = slice(PAIRS.offsets[device], PAIRS.offsets[device + 1])
        made.zero_grad()
        (made.encode_news(news(codes[PAIRS.title[own]])) * torch.from_numpy(slopes[own])).sum().backward()
        rows = slice(words.offsets[device], words.offsets[device + 1])
        table = np.zeros_like(weights[WORDS])
        table[words.index[rows]] = words.values[rows]
        assert np.all(np.diff(words.index[rows]) > 0)
        for name, found in {WORDS: table, **{name: value[device] for name, value in dense.items()}}.items():
            gradient = made.get_parameter(name).grad
            expected = np.zeros_like(found) if gradient is None else gradient.numpy()
            assert np.allclose(found, expected, atol=2e-6, rtol=1e-5), name


def test_words_that_stay_have_no_rows() -> None:
    made, codes = model(3), titles()
    weights = {name: value.detach().numpy() for name, value in made.named_parameters()}
    slopes = np.ones((len(PAIRS.title), made.dim), np.float32)
    encoded = encode_titles(weights, codes, made.sizes.heads)
    _, words = pull_back(weights, encoded, PAIRS, slopes, learns_words=False)
    assert len(words.index) == len(words.values) == 0
