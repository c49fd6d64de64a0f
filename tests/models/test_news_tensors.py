"""Batches of news."""

from __future__ import annotations

import pytest
import torch

from veilrec.models import news_tensors
from veilrec.models.news_model import NewsShape, NewsSizes
from veilrec.models.news_registry import make_model
from veilrec.models.news_tensors import encode_in_parts, news_input


@pytest.mark.parametrize("network", ["nrms", "naml", "dkn"])
def test_news_that_are_encoded_in_parts_have_the_same_states(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)

    def codes(*shape: int) -> object:
        return torch.randint(1, 9, shape, generator=generator).numpy()

    news = news_input(codes(10, 6), codes(10, 7), codes(10), codes(10), codes(10, 6))
    sizes = NewsSizes(word_dim=8, heads=2, head_dim=4, attention=4, category_dim=4)
    model = make_model(network, sizes, NewsShape(9, 9, 9, 9), generator)
    whole = model.encode_news(news)
    monkeypatch.setattr(news_tensors, "_NEWS_AT_ONCE", 4)
    assert torch.allclose(encode_in_parts(model, news), whole, atol=1e-6)
