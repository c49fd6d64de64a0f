"""DKN: a CNN over words and their entities, candidate-aware attention over clicks (Wang et al., WWW 2018).

The network that scores a candidate sees, besides it and the user, their product: likeness is then easy to learn.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veilrec.models.layers import WordCnn, masked_softmax
from veilrec.models.news_model import NewsInput, NewsModel, NewsShape, NewsSizes


class KnowledgeCnn(nn.Module):
    """KCNN: words and entities as channels of one convolution, the largest value over the words."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.entities = nn.Embedding(shape.entities, shape.entity_dim)
        self.to_words = nn.Linear(shape.entity_dim, sizes.word_dim)  # from the entities' space
        self.cnn = WordCnn(2 * sizes.word_dim, sizes.dim, sizes.window)

    def forward(self, news: NewsInput) -> Tensor:
        """[n, dim]."""
        mask = news.title > 0
        known = (news.entities > 0).unsqueeze(-1)
        entities = self.to_words(self.entities(news.entities)).tanh() * known
        convolved: Tensor = self.cnn(torch.cat([self.words(news.title), entities], -1), mask)
        return convolved.amax(1)  # after ReLU padding is 0, the least value there is


class Dkn(NewsModel):
    """The user vector differs from candidate to candidate."""

    is_dot_product = False

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes)
        self.news = KnowledgeCnn(sizes, shape)
        self.of_click = nn.Linear(sizes.dim, sizes.attention)  # the attention network's first layer, in two parts
        self.of_candidate = nn.Linear(sizes.dim, sizes.attention, bias=False)
        self.weigh = nn.Linear(sizes.attention, 1)
        self.click = nn.Sequential(nn.Linear(3 * sizes.dim, sizes.dim), nn.ReLU(), nn.Linear(sizes.dim, 1))

    def encode_news(self, news: NewsInput) -> Tensor:
        """KCNN."""
        encoded: Tensor = self.dropout(self.news(news))
        return encoded

    def score(self, history: Tensor, mask: Tensor, candidates: Tensor) -> Tensor:
        """A network over each candidate and the clicks that it attends to."""
        hidden = self.of_click(history).unsqueeze(1) + self.of_candidate(candidates).unsqueeze(2)
        weights = masked_softmax(self.weigh(hidden.relu()).squeeze(-1), mask.unsqueeze(1))  # [b, c, h]
        users = weights @ history  # [b, c, dim]
        scores: Tensor = self.click(torch.cat([users, candidates, users * candidates], -1)).squeeze(-1)
        return scores
