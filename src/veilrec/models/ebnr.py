"""EBNR: a vector per news from its bag of words, a GRU over clicks (Okura et al., KDD 2017).

The paper pre-trains the news part as a denoising autoencoder; here it learns from the clicks with the rest.
"""

from __future__ import annotations

from torch import Tensor, nn

from veilrec.models.layers import Gru, masked_mean
from veilrec.models.news_model import NewsInput, NewsModel, NewsShape, NewsSizes


class Ebnr(NewsModel):
    """Titles only."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes)
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.title = nn.Linear(sizes.word_dim, sizes.dim)
        self.clicks = Gru(sizes.dim, sizes.dim)

    def encode_news(self, news: NewsInput) -> Tensor:
        """The mean word through one layer."""
        mean = masked_mean(self.dropout(self.words(news.title)), news.title > 0)
        encoded: Tensor = self.dropout(self.title(mean).tanh())
        return encoded

    def encode_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """The state after the last click."""
        last: Tensor = self.clicks(history, mask)[:, -1]
        return last
