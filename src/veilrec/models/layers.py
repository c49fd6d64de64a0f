"""The sizes of news models, and the layers that they share.

Every layer takes a mask (True = real), and padding never changes its result. They use plain operations only, so that
`torch.func` can differentiate many devices at once.

The moments of torch's Adam as named arrays, so that a training can stop and go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad


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
    basis: int = 5  # B: basis vectors, of models that have them
    attention_clip: float = 1.0  # theta: longest attention over them
    balance: float = 0.0  # how strongly all of them are kept in use; 0: not at all
    train_basis: bool = False  # of the public head: whether its basis vectors learn, too
    taste: int = 100  # of the public head: principal components that everybody's taste is learnt in

    @property
    def dim(self) -> int:
        """Length of a news vector."""
        return self.heads * self.head_dim


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension among the real entries; all zero where there is none."""
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~mask, lowest).softmax(-1) * mask


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real positions: [n, l, d] -> [n, d]; zero where there is none."""
    return (values * mask.unsqueeze(-1)).sum(-2) / mask.sum(-1, keepdim=True).clamp(min=1)


class Dropout(nn.Module):
    """Dropout that draws from its own generator, and does nothing without one."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.generator: torch.Generator | None = None

    def forward(self, values: Tensor) -> Tensor:
        """Drop entries and scale up the rest."""
        if self.generator is None or self.rate == 0.0:
            return values
        kept = torch.rand(values.shape, generator=self.generator) >= self.rate
        return values * kept / (1.0 - self.rate)


class AdditiveAttention(nn.Module):
    """Weights softmax(q . tanh(W x + b)) over a sequence: [n, l, d] -> [n, d]."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(dim, hidden)
        self.query = nn.Linear(hidden, 1, bias=False)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """The weighted mean; zero for a sequence without a real entry."""
        scores = self.query(self.hidden(values).tanh()).squeeze(-1)  # [n, l]
        return (masked_softmax(scores, mask).unsqueeze(-2) @ values).squeeze(-2)


class PersonalAttention(nn.Module):
    """Attention whose query comes from outside: weights softmax(q . tanh(W x + b)), [..., l, d] -> [..., d]."""

    def __init__(self, dim: int, query_dim: int) -> None:
        super().__init__()
        self.keys = nn.Linear(dim, query_dim)

    def forward(self, values: Tensor, mask: Tensor, query: Tensor) -> Tensor:
        """`query` is [..., query_dim], and is broadcast where it has fewer dimensions in front."""
        scores = (self.keys(values).tanh() @ query.unsqueeze(-1)).squeeze(-1)
        return (masked_softmax(scores, mask).unsqueeze(-2) @ values).squeeze(-2)


class SelfAttention(nn.Module):
    """Multi-head self-attention without output projection: [n, l, d] -> [n, l, heads * width]."""

    def __init__(self, dim: int, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.width = width
        self.projections = nn.Linear(dim, 3 * heads * width, bias=False)  # queries, keys, values

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """Each real position looks at all real ones; the others come out zero."""
        n, length, _ = values.shape
        projected = self.projections(values).view(n, length, 3, self.heads, self.width)
        queries, keys, content = projected.permute(2, 0, 3, 1, 4)  # [n, heads, l, width] each
        scores = queries @ keys.transpose(-1, -2) / self.width**0.5  # [n, heads, l, l]
        mixed = masked_softmax(scores, mask[:, None, None, :]) @ content
        joined: Tensor = mixed.transpose(1, 2).reshape(n, length, self.heads * self.width)
        return joined * mask.unsqueeze(-1)


class WordCnn(nn.Module):
    """Convolution over words, same length, then ReLU: [n, l, d] -> [n, l, filters]."""

    def __init__(self, dim: int, filters: int, window: int = 3) -> None:
        super().__init__()
        self.window = window  # odd
        self.kernel = nn.Linear(window * dim, filters)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """Padding counts as zero, before and behind."""
        length, reach = values.shape[1], self.window // 2
        padded = pad(values * mask.unsqueeze(-1), (0, 0, reach, reach))
        seen = torch.cat([padded[:, shift : shift + length] for shift in range(self.window)], -1)
        convolved: Tensor = self.kernel(seen).relu()
        return convolved * mask.unsqueeze(-1)


class Gru(nn.Module):
    """Gated recurrent unit over a sequence; padded steps leave the state as it is."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.inputs = nn.Linear(dim, 3 * hidden)  # reset, update, new
        self.recurrent = nn.Linear(hidden, 3 * hidden)

    def forward(self, values: Tensor, mask: Tensor, start: Tensor | None = None) -> Tensor:
        """The states after every step: [n, l, hidden]; the last one is the result."""
        steps = self.inputs(values).unbind(1)
        state = values.new_zeros(values.shape[0], self.hidden) if start is None else start
        states = []
        for number, step in enumerate(steps):
            reset_in, update_in, new_in = step.chunk(3, -1)
            reset_old, update_old, new_old = self.recurrent(state).chunk(3, -1)
            update = (update_in + update_old).sigmoid()
            new = (new_in + (reset_in + reset_old).sigmoid() * new_old).tanh()
            state = torch.where(mask[:, number, None], new + update * (state - new), state)
            states.append(state)
        return torch.stack(states, 1)


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


def moments_of(optimiser: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The moments and the step count of every parameter that has moved."""
    return {
        f"adam.{name}.{key}": value
        for name, parameter in parameters.items()
        for key, value in optimiser.state[parameter].items()
    }


def load_moments(
    optimiser: torch.optim.Optimizer, parameters: Mapping[str, Tensor], state: Mapping[str, NDArray[Any]]
) -> None:
    """Go on from them."""
    optimiser.state.clear()
    for name, parameter in parameters.items():
        prefix = f"adam.{name}."
        saved = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        if saved:
            optimiser.state[parameter] = {key: torch.tensor(value) for key, value in saved.items()}
