"""Networks of the centralised baselines in torch: NeuMF (He et al. 2017) and SASRec (Kang and McAuley 2018).

The scores that clients rank with, without torch, are in `veilrec.models.scores`.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilrec.models.scores import NORM_EPSILON, NeumfShape

if TYPE_CHECKING:
    from torch import Tensor


class NeuMF(nn.Module):
    """Generalised matrix factorisation beside a tower of layers (He et al. 2017)."""

    def __init__(self, n_users: int, n_items: int, shape: NeumfShape) -> None:
        super().__init__()
        self.shape = shape
        self.users = nn.Embedding(n_users, shape.row)  # [gmf | mlp]
        self.items = nn.Embedding(n_items, shape.row)
        widths = (2 * shape.mlp, *shape.layers)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.output = nn.Linear(shape.gmf + widths[-1], 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Logits of (user, item) pairs: [n] from [n] and [n]."""
        sizes = [self.shape.gmf, self.shape.mlp]
        user_gmf, user_mlp = self.users(users).split(sizes, dim=1)
        item_gmf, item_mlp = self.items(items).split(sizes, dim=1)
        hidden = torch.cat([user_mlp, item_mlp], dim=1)  # [n, 2 mlp]
        for layer in self.layers:
            hidden = torch.relu(layer(hidden))
        logits: Tensor = self.output(torch.cat([user_gmf * item_gmf, hidden], dim=1))
        return logits.squeeze(1)

    def public(self) -> dict[str, Tensor]:
        """Everything but the users, by the names that `NeumfShape.network` gives; views of the parameters."""
        tensors: dict[str, Tensor] = {"items": self.items.weight}
        for number, layer in enumerate(self.layers, start=1):
            for name, parameter in layer.named_parameters():
                tensors[f"layer{number}.{name}"] = parameter
        return tensors | {"output.weight": self.output.weight[0], "output.bias": self.output.bias}


class KeyedDropout(nn.Module):
    """Draws from a generator that is handed in, and does nothing without one."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.generator: torch.Generator | None = None

    def forward(self, values: Tensor) -> Tensor:
        """Drop entries and scale up the rest."""
        if self.generator is None or self.rate == 0.0:
            return values
        kept = torch.empty_like(values).bernoulli_(1.0 - self.rate, generator=self.generator)
        return values * kept.mul_(1.0 / (1.0 - self.rate))


class Block(nn.Module):
    """Self-attention, then two layers at every position; each adds to the layer norm of what it got."""

    def __init__(self, dim: int, dropout: KeyedDropout) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim, eps=NORM_EPSILON)
        self.queries, self.keys, self.values = (nn.Linear(dim, dim) for _ in range(3))
        self.forward_norm = nn.LayerNorm(dim, eps=NORM_EPSILON)
        self.inner, self.outer = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.dropout = dropout

    def forward(self, sequence: Tensor, hidden: Tensor, mask: Tensor) -> Tensor:
        """`hidden` is 0 where a position may look and lowest elsewhere, [n, l, l]; `mask` marks items, [n, l, 1]."""
        queries = self.attention_norm(sequence)  # [n, l, d]
        q = self.queries(queries) * (1.0 / math.sqrt(sequence.shape[-1]))
        weights = torch.baddbmm(hidden, q, self.keys(sequence).transpose(1, 2)).softmax(-1)
        attended = self.dropout(weights) @ self.values(sequence) + queries
        normed = self.forward_norm(attended)
        inner = self.dropout(functional.relu(self.inner(normed)))
        result: Tensor = (self.dropout(self.outer(inner)) + normed) * mask
        return result


class SasRec(nn.Module):
    """The vector of a user after every item of a sequence, to be multiplied with item vectors."""

    def __init__(self, n_items: int, *, dim: int, blocks: int, longest: int, dropout: float) -> None:
        super().__init__()
        self.dropout = KeyedDropout(dropout)
        self.items = nn.Parameter(torch.empty(n_items, dim))
        self.positions = nn.Parameter(torch.empty(longest, dim))
        self.blocks = nn.ModuleList(Block(dim, self.dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(dim, eps=NORM_EPSILON)

    def forward(self, sequences: Tensor) -> Tensor:
        """Items [n, l], the latest last, -1 before the first: [n, l, d]."""
        length, width = sequences.shape[1], self.items.shape[1]
        real = sequences >= 0
        mask = real.unsqueeze(-1)
        vectors = functional.embedding(sequences.clamp(min=0), self.items) * math.sqrt(width)
        state = self.dropout(vectors + self.positions[-length:]) * mask
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        # A position before the first item looks at nothing in particular: what it gives is masked.
        unseen = later | ~real.unsqueeze(1)
        hidden = torch.zeros(unseen.shape).masked_fill_(unseen, torch.finfo(torch.float32).min)
        for block in self.blocks:
            state = block(state, hidden, mask)
        result: Tensor = self.norm(state)
        return result

    def start(self, generator: torch.Generator) -> None:
        """Glorot's uniform numbers, as the authors' code starts by default; norms and biases are neutral."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2:
                    bound = math.sqrt(6.0 / sum(parameter.shape))
                    parameter.uniform_(-bound, bound, generator=generator)
                elif name.endswith("bias"):
                    parameter.zero_()
                else:
                    parameter.fill_(1.0)
