"""FM: factorisation machine over words, category and subcategory of the candidate and of the clicks (Rendle 2012).

Features of a candidate have weight 1 (words 1 / their number), those of the history the mean over its clicks. Pairs
of two user features are the same for all candidates and are left out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veilrec.models.layers import masked_mean
from veilrec.models.news_model import EMBEDDING_SPREAD, NewsInput, NewsModel, NewsShape, NewsSizes


class Fm(NewsModel):
    """State of a news: sum of its vectors as a candidate, as a click, and its score on its own."""

    is_dot_product = False
    SPREAD = 0.1  # standard deviation of starting vectors

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes)
        fields = (shape.words, shape.categories, shape.subcategories)
        self.as_candidate = nn.ModuleList(nn.Embedding(n, sizes.dim) for n in fields)
        self.as_click = nn.ModuleList(nn.Embedding(n, sizes.dim) for n in fields)
        self.weights = nn.ModuleList(nn.Embedding(n, 1) for n in fields)

    def start(self, generator: torch.Generator) -> None:
        """Pairs of many vectors add up, so that these start small (Rendle: 0.1)."""
        super().start(generator)
        with torch.no_grad():
            for table in (*self.as_candidate, *self.as_click, *self.weights):
                table.weight.mul_(self.SPREAD / EMBEDDING_SPREAD)

    def _fields(self, tables: nn.ModuleList, news: NewsInput) -> Tensor:
        words, categories, subcategories = tables
        mean = masked_mean(words(news.title), news.title > 0)
        return torch.stack([mean, categories(news.category), subcategories(news.subcategory)], 1)

    def encode_news(self, news: NewsInput) -> Tensor:
        """[n, 2 dim + 1]."""
        offered = self._fields(self.as_candidate, news)  # [n, 3, dim]
        total = offered.sum(1)
        pairs = (total.square() - offered.square().sum(1)).sum(-1, keepdim=True) / 2
        alone = self._fields(self.weights, news).sum(1) + pairs
        return torch.cat([total, self._fields(self.as_click, news).sum(1), alone], -1)

    def score(self, history: Tensor, mask: Tensor, candidates: Tensor) -> Tensor:
        """The candidate alone, and its pairs with the user's features."""
        user = masked_mean(history[..., self.dim : 2 * self.dim], mask)
        pairs = (candidates[..., : self.dim] @ user.unsqueeze(-1)).squeeze(-1)
        return candidates[..., -1] + pairs
