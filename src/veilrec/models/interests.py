"""News models whose user vector is decomposed over B public basis vectors (PrivateRec, Algorithms 1 and 2).

A device sends its attention over the basis, not its user vector; the server puts the user vector together again. The
modules by the paper's names: user encoder (UE) with behaviour padding, interest decomposer (ID), interest reconstructor
(IR). The noise of the private attention (DPA) comes from `veilrec.privacy` and is only added here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veilrec.models.layers import NewsSizes
from veilrec.models.news_model import Batch, NewsModel, NewsShape
from veilrec.models.news_networks import Naml, Nrms, PlmNr

_SMALLEST_TOTAL = 1e-12  # of the attention that ReLU leaves; less is nothing


class Interests(NewsModel):
    """Joins a model with a user vector: what it adds are the basis vectors b and the vector of a padded click."""

    basis: nn.Parameter  # [B, dim]
    pad: nn.Parameter  # [dim], r0: what a padded click looks like

    def add_interests(self, count: int) -> None:
        """The parameters that PrivateRec adds; a subclass calls it when all others are there."""
        self.basis = nn.Parameter(torch.zeros(count, self.dim))
        self.pad = nn.Parameter(torch.zeros(self.dim))

    def start(self, generator: torch.Generator) -> None:
        """Basis vectors of the length of a news vector: short ones never learn."""
        super().start(generator)
        with torch.no_grad():
            self.basis.normal_(0.0, 1.0, generator=generator)
            self.pad.zero_()

    def pad_state(self) -> Tensor:
        """r0, the state of a padded click: [dim]."""
        return self.pad

    def whole_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """UE: the user vector before it is decomposed, [b, dim]."""
        return super().user(history, mask)

    def attention(self, user: Tensor) -> Tensor:
        """ID, Algorithm 2, line 7: [b, dim] -> [b, B]."""
        weights: Tensor = (user @ self.basis.T / self.dim**0.5).softmax(-1)
        return weights

    def reconstruct(self, attention: Tensor) -> Tensor:
        """IR, Algorithm 1, line 3: [b, B] -> [b, dim]."""
        return attention @ self.basis

    def user(self, history: Tensor, mask: Tensor) -> Tensor:
        """What the server ranks with where nothing is noisy."""
        return self.reconstruct(self.attention(self.whole_user(history, mask)))

    def learning_user(self, history: Tensor, batch: Batch) -> Tensor:
        """UE with padding, ID, DPA, IR as in training (Algorithm 3, lines 14 and 15): [u, dim]."""
        if batch.noise is None or batch.padded is None:
            return self.user(history, batch.history_mask)
        clipped = clip(self.padded_attention(history, batch.history_mask, batch.padded), self.sizes.attention_clip)
        return self.reconstruct(on_simplex(clipped + batch.noise))

    def padded_attention(self, history: Tensor, mask: Tensor, padded: Tensor) -> Tensor:
        """Attention of histories in which some clicks are the pad: what a mechanism is given."""
        kept = torch.where(padded.unsqueeze(-1), self.pad_state(), history)
        return self.attention(self.whole_user(kept, mask))


def clip(attention: Tensor, norm: float) -> Tensor:
    """Algorithm 2, line 8."""
    too_long: Tensor = torch.linalg.vector_norm(attention, dim=-1, keepdim=True) / norm
    return attention / too_long.clamp(min=1.0)


def on_simplex(noisy: Tensor) -> Tensor:
    """ReLU and division by the sum (line 10, in training); uniform where ReLU leaves nothing, and then no gradient."""
    raised = noisy.relu()
    total = raised.sum(-1, keepdim=True)
    left = total > _SMALLEST_TOTAL
    return torch.where(left, raised / torch.where(left, total, 1.0), 1.0 / noisy.shape[-1])


class InterestNrms(Interests, Nrms):
    """NRMS with basis vectors."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes, shape)
        self.add_interests(sizes.basis)


class InterestNaml(Interests, Naml):
    """NAML with basis vectors."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes, shape)
        self.add_interests(sizes.basis)


class InterestPlmNr(Interests, PlmNr):
    """PLM-NR with basis vectors."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes, shape)
        self.add_interests(sizes.basis)
