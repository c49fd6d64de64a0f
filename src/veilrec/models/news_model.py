"""What every news model is: news -> states, history of states -> user, user and candidates -> scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from veilrec.models.layers import Dropout

EMBEDDING_SPREAD = 0.5  # standard deviation of starting vectors, like that of GloVe: smaller ones learn slowly


@dataclass(frozen=True)
class NewsSizes:
    """How large a model is; the defaults suit one core."""

    word_dim: int = 50
    heads: int = 4
    head_dim: int = 16  # news and user vectors have heads * head_dim entries
    attention: int = 32  # width of additive attention
    window: int = 3  # words that the CNN sees at once
    category_dim: int = 16
    recent: int = 20  # the latest clicks that short-term models look at
    dropout: float = 0.1  # in centralised training only

    @property
    def dim(self) -> int:
        """Length of a news vector."""
        return self.heads * self.head_dim


@dataclass(frozen=True)
class NewsShape:
    """How many codes the text has, and how wide given vectors are."""

    words: int
    categories: int
    subcategories: int
    entities: int
    entity_dim: int = 32
    sentence_dim: int = 0  # 0: no sentence vectors


@dataclass(frozen=True)
class NewsInput:
    """Codes of n news; 0 is padding."""

    title: Tensor  # [n, words]
    abstract: Tensor  # [n, words]
    category: Tensor  # [n]
    subcategory: Tensor  # [n]
    entities: Tensor  # [n, words], at the words of the title
    sentence: Tensor  # [n, sentence_dim], frozen


class NewsModel(nn.Module, ABC):
    """Base of the models; a subclass gives `encode_news` and `encode_user`, or its own `score`."""

    is_dot_product = True  # score = user . news, so that users can be encoded without candidates
    newcomer: nn.Parameter

    def __init__(self, sizes: NewsSizes, dim: int | None = None) -> None:
        super().__init__()
        self.sizes = sizes
        self.dim = sizes.dim if dim is None else dim
        self.dropout = Dropout(sizes.dropout)
        if self.is_dot_product:
            self.newcomer = nn.Parameter(torch.zeros(self.dim))  # the user vector of an empty history

    @abstractmethod
    def encode_news(self, news: NewsInput) -> Tensor:
        """States of the news: [n, dim], or any shape behind n that the model's `score` understands."""

    def encode_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """User vectors of histories, oldest first: [b, h, dim], [b, h] -> [b, dim]."""
        raise TypeError(f"{type(self).__name__} scores candidates beside the history: it has no user vector")

    def user(self, history: Tensor, mask: Tensor) -> Tensor:
        """User vectors, also of those without a history."""
        known = mask.any(-1, keepdim=True)
        return torch.where(known, self.encode_user(history, mask), self.newcomer)

    def project_clicks(self, states: Tensor) -> Tensor:
        """What `user_from` needs of every news, so that it is computed once: the states, or more."""
        return states

    def user_from(self, projected: Tensor, items: Tensor, mask: Tensor) -> Tensor:
        """`user` for ranking: histories are rows of the projected news, [b, h]."""
        return self.user(projected[items], mask)

    def score(self, history: Tensor, mask: Tensor, candidates: Tensor) -> Tensor:
        """Scores of candidates: states [b, c, ...] -> [b, c]."""
        return (candidates @ self.user(history, mask).unsqueeze(-1)).squeeze(-1)

    def start(self, generator: torch.Generator) -> None:
        """Draw the starting weights; a subclass sets those that start otherwise after this."""
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Embedding):
                    module.weight.normal_(0.0, EMBEDDING_SPREAD, generator=generator)
                elif isinstance(module, nn.Linear):
                    nn.init.xavier_uniform_(module.weight, generator=generator)
                    if module.bias is not None:
                        module.bias.zero_()
            if self.is_dot_product:
                self.newcomer.normal_(0.0, 0.1, generator=generator)


def latest(history: Tensor, mask: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The last `count` real entries of every history, which are padded behind: [b, h, d] -> [b, count, d]."""
    if history.shape[1] <= count:
        return history, mask
    begin = (mask.sum(-1, keepdim=True) - count).clamp(min=0)  # [b, 1]
    places = begin + torch.arange(count)  # [b, count]
    chosen = places.unsqueeze(-1).expand(-1, -1, history.shape[2])
    return history.gather(1, chosen), mask.gather(1, places)
