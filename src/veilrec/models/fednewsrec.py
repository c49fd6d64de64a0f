"""The model of FedNewsRec (Qi et al. 2020, section 3.1)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, scaled_dot_product_attention

from veilrec.models.layers import AdditiveAttention, Dropout, Gru, MultiHeadPooling, NewsSizes, WordCnn
from veilrec.models.news_model import NewsInput, NewsModel, NewsShape, latest

Interests = Literal["both", "long", "short"]


class FedNewsRec(NewsModel):
    """News: words, CNN, self-attention, attention (Fig. 1); user: long and short term (Fig. 2)."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape, interests: Interests = "both") -> None:
        super().__init__(sizes)
        self.words = nn.Embedding(shape.words, sizes.word_dim)
        self.cnn = WordCnn(sizes.word_dim, sizes.dim, sizes.window)
        self.title = MultiHeadPooling(sizes.dim, sizes)
        self.clicks = LongAndShortTerm(sizes, interests)

    def encode_news(self, news: NewsInput) -> Tensor:
        """t of Fig. 1."""
        mask = news.title > 0
        convolved = self.dropout(self.cnn(self.dropout(self.words(news.title)), mask))
        encoded: Tensor = self.title(convolved, mask)
        return encoded

    def encode_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """u of Fig. 2."""
        encoded: Tensor = self.clicks(history, mask)
        return encoded

    def project_clicks(self, states: Tensor) -> Tensor:
        """What the linear layers that come first in the user model make of a news."""
        return self.clicks.project(states)

    def user_from(self, projected: Tensor, items: Tensor, mask: Tensor) -> Tensor:
        """u of Fig. 2 from projected news: no learning, so fused and changed in place."""
        known = mask.any(-1, keepdim=True)
        return torch.where(known, self.clicks.from_projected(projected, items, mask), self.newcomer)


class LongAndShortTerm(nn.Module):
    """Self-attention and attention over all clicks, a GRU over the recent ones, joined by attention."""

    def __init__(self, sizes: NewsSizes, interests: Interests = "both") -> None:
        super().__init__()
        self.interests = interests  # Fig. 7 leaves one of them out
        self.recent = sizes.recent
        self.dropout = Dropout(sizes.dropout)
        if interests != "short":
            self.long_term = MultiHeadPooling(sizes.dim, sizes)
        if interests != "long":
            self.short_term = Gru(sizes.dim, sizes.dim)
        if interests == "both":
            self.join = AdditiveAttention(sizes.dim, sizes.attention)

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """[b, h, dim] -> [b, dim]."""
        interests = []
        if self.interests != "short":
            interests.append(self.long_term(history, mask))
        if self.interests != "long":
            interests.append(self.short_term(*latest(history, mask, self.recent))[:, -1])
        return self._joined(interests)

    def _joined(self, interests: list[Tensor]) -> Tensor:
        if len(interests) == 1:
            return interests[0]
        both = torch.stack(interests, 1)  # [b, 2, dim]
        joined: Tensor = self.join(both, torch.ones_like(both[..., 0], dtype=torch.bool))
        return joined

    def project(self, states: Tensor) -> Tensor:
        """[n, dim] -> [n, 3 dim] for each kind of interest: what depends on one news alone."""
        parts = []
        if self.interests != "short":
            parts.append(self.long_term.mix.projections(states))
        if self.interests != "long":
            parts.append(self.short_term.inputs(states))
        return torch.cat(parts, -1)

    def from_projected(self, projected: Tensor, items: Tensor, mask: Tensor) -> Tensor:
        """The same as `forward`, from what `project` gives; each kind of interest gathers only what it looks at."""
        real = None if bool(mask.all()) else mask  # histories of one length need no mask
        interests = []
        width = projected.shape[-1] // (2 if self.interests == "both" else 1)
        if self.interests != "short":
            interests.append(_attend(self.long_term, embedding(items, projected[:, :width]), mask, real))
        if self.interests != "long":
            recent, mask = latest(items.unsqueeze(-1), mask, self.recent)
            steps = embedding(recent.squeeze(-1), projected[:, -width:])
            interests.append(_remember(self.short_term, steps, None if real is None else mask))
        return self._joined(interests)


def _attend(pooling: MultiHeadPooling, projected: Tensor, mask: Tensor, real: Tensor | None) -> Tensor:
    """Self-attention and attention over queries, keys and values that are there: [b, h, 3 dim] -> [b, dim]."""
    b, length, _ = projected.shape
    heads, head_dim = pooling.mix.heads, pooling.mix.width
    queries, keys, content = projected.view(b, length, 3, heads, head_dim).permute(2, 0, 3, 1, 4)
    seen = None if real is None else real[:, None, None, :]
    mixed = scaled_dot_product_attention(queries, keys, content, attn_mask=seen)
    pooled: Tensor = pooling.attention(mixed.transpose(1, 2).reshape(b, length, heads * head_dim), mask)
    return pooled


def _remember(gru: Gru, steps: Tensor, real: Tensor | None) -> Tensor:
    """The last state of a GRU whose inputs are projected: [b, h, 3 hidden] -> [b, hidden]."""
    state = steps.new_zeros(steps.shape[0], gru.hidden)
    for number, step in enumerate(steps.unbind(1)):
        old = gru.recurrent(state)
        gates = (step[:, : 2 * gru.hidden] + old[:, : 2 * gru.hidden]).sigmoid_()
        reset, update = gates.chunk(2, -1)
        new = step[:, 2 * gru.hidden :].addcmul(reset, old[:, 2 * gru.hidden :]).tanh_()
        after = torch.lerp(new, state, update)
        state = after if real is None else torch.where(real[:, number, None], after, state)
    return state
