"""The model of FedNewsRec (Qi et al. 2020, section 3.1)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from veilrec.models.encoders import MultiHeadPooling
from veilrec.models.layers import AdditiveAttention, Dropout, Gru, WordCnn
from veilrec.models.news_model import NewsInput, NewsModel, NewsShape, NewsSizes, latest

Interests = Literal["both", "long", "short"]


class FedNewsRec(NewsModel):
    """News: words, CNN, self-attention, attention (Fig. 1); user: long and short term (Fig. 2)."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape, interests: Interests = "both") -> None:
        super().__init__(sizes)
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.cnn = WordCnn(sizes.word_dim, sizes.dim, sizes.window)
        self.title = MultiHeadPooling(sizes.dim, sizes)
        self.clicks = LongAndShortTerm(sizes, interests)

    def encode_news(self, news: NewsInput) -> Tensor:
        """t of Fig. 1."""
        mask = news.title > 0
        convolved = self.dropout(self.cnn(self.dropout(self.words(news.title)), mask))
        encoded: Tensor = self.title(convolved, mask)
        return encoded

    def encode_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """u of Fig. 2."""
        encoded: Tensor = self.clicks(history, mask)
        return encoded


class LongAndShortTerm(nn.Module):
    """Self-attention and attention over all clicks, a GRU over the recent ones, joined by attention."""

    def __init__(self, sizes: NewsSizes, interests: Interests = "both") -> None:
        super().__init__()
        self.interests = interests  # Fig. 7 leaves one of them out
        self.recent = sizes.recent
        self.dropout = Dropout(sizes.dropout)
        if interests != "short":
            self.long_term = MultiHeadPooling(sizes.dim, sizes)
        if interests != "long":
            self.short_term = Gru(sizes.dim, sizes.dim)
        if interests == "both":
            self.join = AdditiveAttention(sizes.dim, sizes.attention)

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """[b, h, dim] -> [b, dim]."""
        interests = []
        if self.interests != "short":
            interests.append(self.long_term(history, mask))
        if self.interests != "long":
            interests.append(self.short_term(*latest(history, mask, self.recent))[:, -1])
        if len(interests) == 1:
            only: Tensor = interests[0]
            return only
        both = torch.stack(interests, 1)  # [b, 2, dim]
        joined: Tensor = self.join(both, torch.ones_like(both[..., 0], dtype=torch.bool))
        return joined
