"""NAML: title, abstract, category and subcategory as views that attention joins (Wu et al., IJCAI 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veilrec.models.encoders import CnnEncoder
from veilrec.models.layers import AdditiveAttention
from veilrec.models.news_model import NewsInput, NewsModel, NewsShape, NewsSizes


class Naml(NewsModel):
    """A view that is empty (a news without abstract) is left out of the attention."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes)
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.title = CnnEncoder(sizes, sizes.dim)
        self.abstract = CnnEncoder(sizes, sizes.dim)
        self.categories = nn.Embedding(shape.categories, sizes.category_dim)
        self.subcategories = nn.Embedding(shape.subcategories, sizes.category_dim)
        self.category = nn.Linear(sizes.category_dim, sizes.dim)
        self.subcategory = nn.Linear(sizes.category_dim, sizes.dim)
        self.views = AdditiveAttention(sizes.dim, sizes.attention)
        self.clicks = AdditiveAttention(sizes.dim, sizes.attention)

    def encode_news(self, news: NewsInput) -> Tensor:
        """One vector of all views."""
        title_mask, abstract_mask = news.title > 0, news.abstract > 0
        views = torch.stack(
            [
                self.title(self.words(news.title), title_mask),
                self.abstract(self.words(news.abstract), abstract_mask),
                self.category(self.categories(news.category)).relu(),
                self.subcategory(self.subcategories(news.subcategory)).relu(),
            ],
            1,
        )  # [n, 4, dim]
        always = torch.ones_like(news.category, dtype=torch.bool)
        there = torch.stack([title_mask.any(-1), abstract_mask.any(-1), always, always], 1)
        encoded: Tensor = self.views(views, there)
        return encoded

    def encode_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """Attention over clicks."""
        encoded: Tensor = self.clicks(history, mask)
        return encoded
