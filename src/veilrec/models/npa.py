"""NPA: attention over words and clicks whose query is the user's own (Wu et al., KDD 2019), without user ids.

The paper makes the query from a vector per user id; here from the mean of the clicked news, each pooled evenly.
Word weights differ between users, so a news has no vector of its own: its state keeps the vectors of its words.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veilrec.models.layers import PersonalAttention, WordCnn, masked_mean
from veilrec.models.news_model import NewsInput, NewsModel, NewsShape, NewsSizes


class Npa(NewsModel):
    """State of a news: [words, dim + 1], the last entry 1 for a real word."""

    is_dot_product = False

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes)
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.cnn = WordCnn(sizes.word_dim, sizes.dim, sizes.window)
        self.interest = nn.Linear(sizes.dim, sizes.dim)
        self.word_query = nn.Linear(sizes.dim, sizes.attention)
        self.click_query = nn.Linear(sizes.dim, sizes.attention)
        self.word_attention = PersonalAttention(sizes.dim, sizes.attention)
        self.click_attention = PersonalAttention(sizes.dim, sizes.attention)

    def encode_news(self, news: NewsInput) -> Tensor:
        """Contextual word vectors."""
        mask = news.title > 0
        convolved = self.dropout(self.cnn(self.dropout(self.words(news.title)), mask))
        return torch.cat([convolved, mask.unsqueeze(-1).to(convolved.dtype)], -1)

    def score(self, history: Tensor, mask: Tensor, candidates: Tensor) -> Tensor:
        """Pool words, then clicks, by the user's queries; then the dot product."""
        plain = masked_mean(history[..., :-1], history[..., -1] > 0)  # [b, h, dim]
        interest = self.interest(masked_mean(plain, mask)).relu()
        word_query = self.word_query(interest).unsqueeze(1)  # [b, 1, attention]
        clicked = self.word_attention(history[..., :-1], history[..., -1] > 0, word_query)
        offered = self.word_attention(candidates[..., :-1], candidates[..., -1] > 0, word_query)
        user = self.click_attention(clicked, mask, self.click_query(interest))
        scores: Tensor = (offered @ user.unsqueeze(-1)).squeeze(-1)
        return scores
