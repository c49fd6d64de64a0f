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
    """The least that can be learned over frozen sentence vectors.

    It starts as the cosine of a candidate with the mean of the history, and learns from there: a change of the
    space, x + W x with W = 0 at first, and which clicks matter. Few parameters need little noise.
    """

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes, dim=shape.sentence_dim)
        self.change = nn.Linear(shape.sentence_dim, shape.sentence_dim, bias=False)
        self.clicks = AdditiveAttention(shape.sentence_dim, sizes.attention)

    def start(self, generator: torch.Generator) -> None:
        """The cosine with the mean."""
        super().start(generator)
        with torch.no_grad():
            self.change.weight.zero_()
            self.clicks.query.weight.zero_()
            self.newcomer.zero_()

    def encode_news(self, news: NewsInput) -> Tensor:
        """The sentence in the changed space."""
        changed: Tensor = news.sentence + self.change(self.dropout(news.sentence))
        return changed

    def encode_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """Attention over clicks."""
        encoded: Tensor = self.clicks(history, mask)
        return encoded
