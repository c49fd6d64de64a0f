"""NRMS: multi-head self-attention over words, and again over clicks (Wu et al., EMNLP 2019)."""

from __future__ import annotations

from torch import Tensor, nn

from veilrec.models.encoders import MultiHeadPooling
from veilrec.models.news_model import NewsInput, NewsModel, NewsShape, NewsSizes


class Nrms(NewsModel):
    """Titles only."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes)
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.title = MultiHeadPooling(sizes.word_dim, sizes)
        self.clicks = MultiHeadPooling(sizes.dim, sizes)

    def encode_news(self, news: NewsInput) -> Tensor:
        """Title vectors."""
        encoded: Tensor = self.title(self.dropout(self.words(news.title)), news.title > 0)
        return encoded

    def encode_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """What the clicked news have in common."""
        encoded: Tensor = self.clicks(history, mask)
        return encoded
