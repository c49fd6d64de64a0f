"""NeuMF in torch: the reference for the compiled kernels, and the model of the centralised method."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from veilrec.models.neumf_scores import NeumfShape

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
