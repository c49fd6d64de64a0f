"""The user part of any model, and its gradients for every device: autograd for all of them at once, on a tape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from veilrec._arrays import Floats, Offsets
from veilrec.device.own_news import OwnNews
from veilrec.device.tape import Tape, by_row
from veilrec.device.title_gradients import Pairs
from veilrec.models.news_model import Batch, NewsModel, losses_of

Weights = Mapping[str, Floats]
BARE = ("newcomer", "basis", "pad", "shares")  # parameters of users that are no layers: every history gets a copy
DEVICES_AT_ONCE = 64  # differentiated side by side: those with histories of like length


class TapedUsers:
    """For any model built of linear layers and tables."""

    def __init__(self, model: NewsModel) -> None:
        self._losses = LossesOfStates(model)

    def each(
        self, weights: Weights, vectors: Floats, own: OwnNews, pairs: Pairs
    ) -> tuple[dict[str, Floats], Floats, Floats]:
        """Of every device where the vectors of the news are known: in the weights, and in them; the losses."""
        n = len(own.offsets) - 1
        dense = {name: np.zeros((n, *value.shape), np.float32) for name, value in weights.items()}
        in_vectors, values = np.empty((len(pairs.title), vectors.shape[1]), np.float32), np.zeros(n, np.float32)
        shares = own.shares()
        for group in own.groups(DEVICES_AT_ONCE):
            histories, rows, batch = own.packed(group)
            own_pairs = batch.news.numpy()
            found, in_vectors[own_pairs], loss = self._by_history(
                weights, vectors[pairs.title[own_pairs]], shares[rows], batch
            )
            np.add.at(values, own.device[rows], loss * shares[rows])
            for name, value in found.items():
                add_up(dense[name], own.owner[histories], value)
        return dense, in_vectors, values

    def _by_history(
        self, weights: Weights, vectors: Floats, share: Floats, batch: Batch
    ) -> tuple[dict[str, Floats], Floats, Floats]:
        """Gradients of each history in the user model, and of all in the vectors; losses of the examples."""
        count = len(batch.histories)
        learned = tensors_of(weights)
        leaf = torch.from_numpy(vectors).requires_grad_()
        bare = [name for name in BARE if name in weights]
        copies = [repeated(learned[f"model.{name}"], count) for name in bare]
        with Tape(self._losses, learned.keys()) as tape:
            exchanged = learned | {f"model.{name}": copy for name, copy in zip(bare, copies, strict=True)}
            each = functional_call(self._losses, exchanged, (leaf, *fields_of(batch)))
        total = (each * torch.from_numpy(share)).sum()
        noted, (in_vectors, *in_copies) = tape.slopes(total, (leaf, *copies))
        found = {name.removeprefix("model."): g.numpy() for name, g in by_row(tape, noted).items()}
        found |= {name: g.numpy() for name, g in zip(bare, in_copies, strict=True)}
        return found, in_vectors.numpy(), each.detach().numpy()


class LossesOfStates(nn.Module):
    """The losses of examples whose news have known states, as a module: `functional_call` can then exchange the
    weights.
    """

    def __init__(self, model: NewsModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, vectors: Tensor, *tensors: Tensor) -> Tensor:
        """Fields of a Batch without its news."""
        return losses_of(self.model, vectors, Batch(vectors, *tensors))


def fields_of(batch: Batch) -> tuple[Tensor | None, ...]:
    """Of a batch, all but its news."""
    return tuple(getattr(batch, part.name) for part in fields(batch)[1:])


def tensors_of(weights: Weights) -> dict[str, Tensor]:
    """Parameters under the names that they have in a module around the model; the arrays themselves, not copies."""
    return {f"model.{name}": torch.from_numpy(value) for name, value in weights.items()}


def repeated(value: Tensor, count: int) -> Tensor:
    """A copy for every history, so that each has a gradient of its own."""
    return value.expand(count, *value.shape).clone().requires_grad_()


def add_up(sums: Floats, owner: Offsets, values: Floats) -> None:
    """Add the gradients of histories to those of the devices that own them."""
    if len(np.unique(owner)) == len(owner):
        sums[owner] = values
        return
    np.add.at(sums, owner, values)
