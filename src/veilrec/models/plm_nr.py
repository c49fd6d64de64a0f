"""PLM-NR with a frozen language model: sentence vectors are public and fixed, what is learned is small."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veilrec.models.encoders import MultiHeadPooling
from veilrec.models.layers import AdditiveAttention
from veilrec.models.news_model import NewsInput, NewsModel, NewsShape, NewsSizes


class PlmNr(NewsModel):
    """A layer over the sentence vector; NRMS's user model over it."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes)
        self.title = nn.Linear(shape.sentence_dim, sizes.dim)
        self.clicks = MultiHeadPooling(sizes.dim, sizes)

    def encode_news(self, news: NewsInput) -> Tensor:
        """The projected sentence."""
        encoded: Tensor = self.title(self.dropout(news.sentence))
        return encoded

    def encode_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """What the clicked news have in common."""
        encoded: Tensor = self.clicks(history, mask)
        return encoded


class SentenceHead(NewsModel):
    """The least that can be learned over frozen sentence vectors: few parameters need little noise.

    A news vector is x + U D x beside its category and subcategory, a user vector the attended mean of the clicks. With
    U = 0 and even attention it starts as the cosine of a candidate with the mean of the history, and a bonus for
    categories that the user has read.
    """

    START_SCALE, START_BONUS = 5.0, 0.3

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes, dim=shape.sentence_dim + shape.categories + shape.subcategories)
        self.n_categories, self.n_subcategories = shape.categories, shape.subcategories
        self.down = nn.Linear(shape.sentence_dim, sizes.attention, bias=False)
        self.up = nn.Linear(sizes.attention, shape.sentence_dim, bias=False)
        self.clicks = AdditiveAttention(self.dim, sizes.attention)
        self.scale = nn.Parameter(torch.zeros(1))
        self.bonus = nn.Parameter(torch.zeros(2))  # of the category and of the subcategory

    def start(self, generator: torch.Generator) -> None:
        """The cosine with the mean."""
        super().start(generator)
        with torch.no_grad():
            for weight in (self.up.weight, self.clicks.query.weight, self.newcomer):
                weight.zero_()
            self.scale.fill_(self.START_SCALE)
            self.bonus.fill_(self.START_BONUS)

    def encode_news(self, news: NewsInput) -> Tensor:
        """The sentence in the changed space, and the categories as unit vectors."""
        sentence = news.sentence + self.up(self.down(self.dropout(news.sentence)))
        category = _unit_vectors(news.category, self.n_categories, sentence.dtype) * self.bonus[0]
        subcategory = _unit_vectors(news.subcategory, self.n_subcategories, sentence.dtype) * self.bonus[1]
        return torch.cat([sentence, category, subcategory], -1)

    def encode_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """Attention over clicks."""
        encoded: Tensor = self.clicks(history, mask)
        return encoded * self.scale


def _unit_vectors(codes: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """[n] -> [n, count]; zero for padding and the unknown, whose codes are 0 and 1."""
    known = codes.unsqueeze(-1) > 1
    return ((codes.unsqueeze(-1) == torch.arange(count)) & known).to(dtype)
