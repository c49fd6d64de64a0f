"""DAN: CNNs over title and entities, attention over clicks beside a recurrent net over them (Zhu et al., AAAI 2019).

A GRU takes the place of the paper's LSTM, and a scaled dot product that of the cosine: vectors pooled from ReLUs point
nearly the same way to begin with, and their cosines hardly learn.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veilrec.models.layers import Gru, WordCnn, masked_softmax
from veilrec.models.news_model import NewsInput, NewsModel, NewsShape, NewsSizes


class Dan(NewsModel):
    """Attention is candidate-aware."""

    is_dot_product = False

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes)
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.entities = nn.Embedding(shape.entities, shape.entity_dim)
        self.title = WordCnn(sizes.word_dim, sizes.dim, sizes.window)
        self.entity = WordCnn(shape.entity_dim, sizes.dim, sizes.window)
        self.join = nn.Linear(2 * sizes.dim, sizes.dim)
        self.sequence = Gru(sizes.dim, sizes.dim)
        self.query = nn.Linear(sizes.dim, sizes.dim, bias=False)
        self.taste = nn.Linear(2 * sizes.dim, sizes.dim)

    def start(self, generator: torch.Generator) -> None:
        """A candidate asks for clicks like itself, and is scored by its likeness to what it finds."""
        super().start(generator)
        with torch.no_grad():
            same = torch.eye(self.dim)
            self.query.weight.copy_(same)
            self.taste.weight.copy_(torch.cat([same, same], 1))

    def encode_news(self, news: NewsInput) -> Tensor:
        """Both CNNs, the largest value over the words, joined by a layer."""
        mask = news.title > 0
        title = self.title(self.dropout(self.words(news.title)), mask).amax(1)
        entity = self.entity(self.entities(news.entities), news.entities > 0).amax(1)
        joined: Tensor = self.join(self.dropout(torch.cat([title, entity], -1)))
        return joined

    def score(self, history: Tensor, mask: Tensor, candidates: Tensor) -> Tensor:
        """Interests and their sequence, both attended to by the candidate."""
        states = self.sequence(history, mask)  # [b, h, dim]
        asked = self.query(candidates) / self.dim**0.5  # [b, c, dim]
        there = mask.unsqueeze(1)
        interest = masked_softmax(asked @ history.transpose(1, 2), there) @ history
        sequence = masked_softmax(asked @ states.transpose(1, 2), there) @ states
        users = self.taste(torch.cat([interest, sequence], -1))
        scores: Tensor = (users * candidates).sum(-1) / self.dim**0.5
        return scores
