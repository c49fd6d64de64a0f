"""DFM: networks of different depth over the same features, fused by attention (Lian et al., IJCAI 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veilrec.models.layers import AdditiveAttention, masked_mean
from veilrec.models.news_model import NewsInput, NewsModel, NewsShape, NewsSizes


class Dfm(NewsModel):
    """Features: words, category, subcategory; the user's are the mean over the clicks."""

    is_dot_product = False
    DEPTHS = (1, 2, 3)

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes, dim=sizes.word_dim + 2 * sizes.category_dim)
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.categories = nn.Embedding(shape.categories, sizes.category_dim)
        self.subcategories = nn.Embedding(shape.subcategories, sizes.category_dim)
        self.towers = nn.ModuleList(_tower(3 * self.dim, sizes.dim, depth) for depth in self.DEPTHS)
        self.fuse = AdditiveAttention(sizes.dim, sizes.attention)
        self.click = nn.Linear(sizes.dim, 1)

    def encode_news(self, news: NewsInput) -> Tensor:
        """The features side by side."""
        title = masked_mean(self.words(news.title), news.title > 0)
        return torch.cat([title, self.categories(news.category), self.subcategories(news.subcategory)], -1)

    def score(self, history: Tensor, mask: Tensor, candidates: Tensor) -> Tensor:
        """Every tower sees user, candidate and their product."""
        user = masked_mean(history, mask).unsqueeze(1).expand_as(candidates)
        seen = self.dropout(torch.cat([user, candidates, user * candidates], -1))
        towers = torch.stack([tower(seen) for tower in self.towers], -2)  # [b, c, towers, dim]
        fused = self.fuse(towers, torch.ones(towers.shape[:-1], dtype=torch.bool))
        scores: Tensor = self.click(fused).squeeze(-1)
        return scores


def _tower(width: int, dim: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number in range(depth):
        layers += [nn.Linear(dim if number else width, dim), nn.ReLU()]
    return nn.Sequential(*layers)
