"""Histories, parts of news, and what a model without user vectors says."""

from __future__ import annotations

import pytest
import torch

from veilrec.methods.news.prepare import make_model
from veilrec.models import news_model
from veilrec.models.news_model import NewsShape, NewsSizes, encode_in_parts, latest, news_input
from veilrec.models.news_networks import Fm


@pytest.mark.parametrize("network", ["nrms", "naml", "dkn"])
def test_news_that_are_encoded_in_parts_have_the_same_states(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)

    def codes(*shape: int) -> object:
        return torch.randint(1, 9, shape, generator=generator).numpy()

    news = news_input(codes(10, 6), codes(10, 7), codes(10), codes(10), codes(10, 6))
    sizes = NewsSizes(word_dim=8, heads=2, head_dim=4, attention=4, category_dim=4)
    model = make_model(network, sizes, NewsShape(9, 9, 9, 9), generator)
    whole = model.encode_news(news)
    monkeypatch.setattr(news_model, "_NEWS_AT_ONCE", 4)
    assert torch.allclose(encode_in_parts(model, news), whole, atol=1e-6)


def test_latest_keeps_the_end_of_each_history() -> None:
    history = torch.arange(8.0).view(2, 4, 1)
    mask = torch.tensor([[True] * 4, [True, False, False, False]])
    kept, real = latest(history, mask, 2)
    assert kept[0].flatten().tolist() == [2.0, 3.0]
    assert real.tolist() == [[True, True], [True, False]]
    assert kept[1, 0].item() == 4.0


def test_a_model_that_scores_by_itself_has_no_user_vector() -> None:
    model = object.__new__(Fm)
    with pytest.raises(TypeError, match="Fm scores candidates beside the history"):
        model.encode_user(torch.zeros(1, 2, 4), torch.ones(1, 2, dtype=torch.bool))
