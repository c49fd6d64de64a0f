"""News encoders over titles that more than one model uses."""

from __future__ import annotations

from torch import Tensor, nn

from veilrec.models.layers import AdditiveAttention, Dropout, SelfAttention, WordCnn
from veilrec.models.news_model import NewsSizes


class CnnEncoder(nn.Module):
    """Words, CNN, additive attention: word codes [n, l] -> [n, dim]."""

    def __init__(self, sizes: NewsSizes, dim: int) -> None:
        super().__init__()
        self.dropout = Dropout(sizes.dropout)
        self.cnn = WordCnn(sizes.word_dim, dim, sizes.window)
        self.attention = AdditiveAttention(dim, sizes.attention)

    def forward(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """One vector per text."""
        convolved = self.dropout(self.cnn(self.dropout(vectors), mask))
        pooled: Tensor = self.attention(convolved, mask)
        return pooled


class MultiHeadPooling(nn.Module):
    """Self-attention, then additive attention: [n, l, d] -> [n, heads * head_dim]."""

    def __init__(self, dim: int, sizes: NewsSizes) -> None:
        super().__init__()
        self.dropout = Dropout(sizes.dropout)
        self.mix = SelfAttention(dim, sizes.heads, sizes.head_dim)
        self.attention = AdditiveAttention(sizes.dim, sizes.attention)

    def forward(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """One vector per sequence."""
        pooled: Tensor = self.attention(self.dropout(self.mix(vectors, mask)), mask)
        return pooled
