"""LSTUR: long- and short-term interests (An et al., ACL 2019), without user ids.

The paper's long-term part is a vector per user id, which nobody outside the training has and no server should hold.
Here it is attention over the whole history; the short-term part is the paper's GRU over recent clicks.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from veilrec.models.encoders import CnnEncoder
from veilrec.models.layers import AdditiveAttention, Gru
from veilrec.models.news_model import NewsInput, NewsModel, NewsShape, NewsSizes, latest


class Lstur(NewsModel):
    """ini: the long-term vector starts the GRU; con: both vectors side by side, as wide as a news vector."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape, join: Literal["ini", "con"] = "ini") -> None:
        super().__init__(sizes, dim=sizes.dim + 2 * sizes.category_dim)
        self.join = join
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.title = CnnEncoder(sizes, sizes.dim)
        self.categories = nn.Embedding(shape.categories, sizes.category_dim)
        self.subcategories = nn.Embedding(shape.subcategories, sizes.category_dim)
        self.long_term = AdditiveAttention(self.dim, sizes.attention)
        self.short_term = Gru(self.dim, self.dim if join == "ini" else self.dim // 2)
        self.narrow = nn.Linear(self.dim, self.dim - self.dim // 2) if join == "con" else nn.Identity()

    def encode_news(self, news: NewsInput) -> Tensor:
        """Title, category and subcategory side by side."""
        title = self.title(self.words(news.title), news.title > 0)
        return torch.cat([title, self.categories(news.category), self.subcategories(news.subcategory)], -1)

    def encode_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """Both interests."""
        long_term = self.narrow(self.long_term(history, mask))
        recent, real = latest(history, mask, self.sizes.recent)
        if self.join == "ini":
            last: Tensor = self.short_term(recent, real, long_term)[:, -1]
            return last
        return torch.cat([long_term, self.short_term(recent, real)[:, -1]], -1)
