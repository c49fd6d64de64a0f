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
_SMALLEST_SHARE = 1e-3  # that is told from a smaller one
_SWIFT = 10.0  # what FedAdam does to any parameter in a round is a tenth of what a share may change in it


class Interests(NewsModel):
    """Joins a model with a user vector: what it adds are the basis vectors b and the vector of a padded click.

    Both may come with a dimension in front, a copy for every history: each history then has a gradient of its own.
    """

    basis: nn.Parameter  # [B, dim]
    pad: nn.Parameter  # [dim], r0: what a padded click looks like
    shares: (
        nn.Parameter
    )  # [B], a tenth of the mean attention of devices lately, where basis vectors are kept in balance

    def add_interests(self, sizes: NewsSizes) -> None:
        """The parameters that PrivateRec adds; a subclass calls it when all others are there."""
        self.basis = nn.Parameter(torch.zeros(sizes.basis, self.dim))
        self.pad = nn.Parameter(torch.zeros(self.dim))
        if sizes.balance > 0.0:
            self.shares = nn.Parameter(torch.zeros(sizes.basis))

    def start(self, generator: torch.Generator) -> None:
        """Basis vectors of the length of a news vector: short ones never learn."""
        super().start(generator)
        with torch.no_grad():
            self.basis.normal_(0.0, 1.0, generator=generator)
            self.pad.zero_()
            if self.sizes.balance > 0.0:
                self.shares.fill_(1.0 / (_SWIFT * self.sizes.basis))

    def basis_vectors(self) -> Tensor:
        """b, what attention is over: [B, dim]."""
        return self.basis

    def pad_state(self) -> Tensor:
        """r0, the state of a padded click: [dim]."""
        return self.pad

    def whole_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """UE: the user vector before it is decomposed, [b, dim]."""
        return super().user(history, mask)

    def attention(self, user: Tensor) -> Tensor:
        """ID, Algorithm 2, line 7: [b, dim] -> [b, B]."""
        products = (self.basis_vectors() @ user.unsqueeze(-1)).squeeze(-1)
        weights: Tensor = (products / self.dim**0.5).softmax(-1)
        return weights

    def reconstruct(self, attention: Tensor) -> Tensor:
        """IR, Algorithm 1, line 3: [b, B] -> [b, dim]."""
        return (attention.unsqueeze(-2) @ self.basis_vectors()).squeeze(-2)

    def user(self, history: Tensor, mask: Tensor) -> Tensor:
        """What the server ranks with where nothing is noisy."""
        return self.reconstruct(self.attention(self.whole_user(history, mask)))

    def learning_users(self, history: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """UE with padding, ID, DPA, IR as in training (Algorithm 3, lines 14 and 15): [u, dim].

        Of attention that was released already, only IR is left: nothing of the history is looked at.
        """
        if batch.noise is None and self.sizes.balance == 0.0:
            return self.user(history, batch.history_mask), None
        if batch.noise is None:
            attention = used = self.attention(self.whole_user(history, batch.history_mask))
        elif batch.padded is None:
            attention = used = on_simplex(batch.noise)
        else:
            attention = self.padded_attention(history, batch.history_mask, batch.padded)
            attention = attention if batch.row_of is None else attention[batch.row_of]
            used = on_simplex(clip(attention, self.sizes.attention_clip) + batch.noise)
        return self.reconstruct(used), self._balance(attention) if self.sizes.balance > 0.0 else None

    def _balance(self, attention: Tensor) -> Tensor:
        """Gradients, without a loss, that keep every basis vector in use: [u].

        With m the mean attention of all devices, that of sum(m log m) in the attention of one of them is log m (and a
        constant). What they share of m is the parameter `shares`, which follows the mean from round to round.
        """
        shares = _SWIFT * self.shares
        evenly = (attention * shares.detach().clamp(min=_SMALLEST_SHARE).log()).sum(-1)
        follow = (shares - attention.detach()).square().sum(-1) / (2.0 * _SWIFT)
        both = self.sizes.balance * evenly + follow
        return both - both.detach()

    def padded_attention(self, history: Tensor, mask: Tensor, padded: Tensor) -> Tensor:
        """Attention of histories in which some clicks are the pad: what a mechanism is given."""
        kept = torch.where(padded.unsqueeze(-1), self.pad_state().unsqueeze(-2), history)
        return self.attention(self.whole_user(kept, mask))


def clip(attention: Tensor, norm: float) -> Tensor:
    """Scale attention to a norm of at most `norm` (Algorithm 2, line 8), with gradients.

    `AttentionNoise.clipped` is the definition; a test keeps both equal.
    """
    too_long: Tensor = torch.linalg.vector_norm(attention, dim=-1, keepdim=True) / norm
    return attention / too_long.clamp(min=1.0)


def on_simplex(noisy: Tensor) -> Tensor:
    """Project noisy attention back on the simplex (Algorithm 2, line 10, in training), with gradients.

    ReLU and division by the sum; uniform where ReLU leaves nothing, and then no gradient. `normalise(noisy, "relu")` is
    the definition; a test keeps both equal.
    """
    raised = noisy.relu()
    total = raised.sum(-1, keepdim=True)
    left = total > _SMALLEST_TOTAL
    return torch.where(left, raised / torch.where(left, total, 1.0), 1.0 / noisy.shape[-1])


class InterestNrms(Interests, Nrms):
    """NRMS with basis vectors."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes, shape)
        self.add_interests(sizes)


class InterestNaml(Interests, Naml):
    """NAML with basis vectors."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes, shape)
        self.add_interests(sizes)


class InterestPlmNr(Interests, PlmNr):
    """PLM-NR with basis vectors."""

    def __init__(self, sizes: NewsSizes, shape: NewsShape) -> None:
        super().__init__(sizes, shape)
        self.add_interests(sizes)
