"""A network over features of users and items, without ids (PrivRec, section 2.1, eq. 1).

Every category has an embedding, of which those of one feature are added up; numbers go in as they are. All of it, side
by side, is the input of the hidden layers; the last layer has one output, to which the items' offsets are added:

    x_0 = [U; V],  x_k = f(x_{k-1} W_k + b_k),  score(u, i) = x_N W_o + b_o + offset_i
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from veilrec.core import rng
from veilrec.core.arrays import Floats, Offsets

Activation = Literal["relu", "sigmoid"]
USERS, ITEMS = "users.embedding", "items.embedding"


class Net(NamedTuple):
    """The same as compiled code reads it: where everything lies in one flat vector."""

    embedding: int
    widths: Offsets  # [layers + 1]: of the input, the hidden layers, the output
    weights: Offsets  # [layers]: where the weights of each layer begin
    biases: Offsets  # [layers]
    user_rows: Offsets  # [codes of users]: where the embedding of a code meets the first layer
    item_rows: Offsets  # [codes of items]
    item_start: int  # where the items' embeddings begin
    user_number_row: int  # of the first layer
    item_number_row: int
    rectifies: bool


@dataclass(frozen=True)
class FeatureNet:
    """The sizes of the network."""

    user_categories: tuple[int, ...]  # codes of every category
    user_numbers: int
    item_categories: tuple[int, ...]
    item_numbers: int
    embedding: int
    hidden: tuple[int, ...]  # widths of the hidden layers; none: a linear model
    activation: Activation = "relu"

    @property
    def inputs(self) -> int:
        """The width of x_0."""
        categories = len(self.user_categories) + len(self.item_categories)
        return categories * self.embedding + self.user_numbers + self.item_numbers

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Of the input, the hidden layers and the output."""
        return (self.inputs, *self.hidden, 1)

    @cached_property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, in the order of the flat vector."""
        sides = {USERS: sum(self.user_categories), ITEMS: sum(self.item_categories)}
        shapes: dict[str, tuple[int, ...]] = {
            name: (codes, self.embedding) for name, codes in sides.items() if codes and self.embedding
        }
        for number, (inputs, outputs) in enumerate(zip(self.widths, self.widths[1:], strict=False), start=1):
            shapes |= {f"layer{number}.weight": (inputs, outputs), f"layer{number}.bias": (outputs,)}
        return shapes

    @property
    def size(self) -> int:
        """Numbers of the network."""
        return sum(math.prod(shape) for shape in self.tensors.values())

    @cached_property
    def net(self) -> Net:
        """For compiled code."""
        starts, at = {}, 0
        for name, shape in self.tensors.items():
            starts[name] = at
            at += math.prod(shape)
        layers = range(1, len(self.widths))
        e, users = self.embedding, len(self.user_categories)
        user_numbers = users * e
        items = user_numbers + self.user_numbers
        return Net(
            embedding=e,
            widths=np.array(self.widths, np.int64),
            weights=np.array([starts[f"layer{k}.weight"] for k in layers], np.int64),
            biases=np.array([starts[f"layer{k}.bias"] for k in layers], np.int64),
            user_rows=_rows_of(self.user_categories, 0, e),
            item_rows=_rows_of(self.item_categories, items, e),
            item_start=starts.get(ITEMS, 0),
            user_number_row=user_numbers,
            item_number_row=items + len(self.item_categories) * e,
            rectifies=self.activation == "relu",
        )

    def flat(self, weights: Mapping[str, Floats]) -> Floats:
        """All tensors in one vector."""
        return np.concatenate([np.asarray(weights[name], np.float32).reshape(-1) for name in self.tensors])

    def named(self, flat: Floats) -> dict[str, Floats]:
        """Vectors [..., size] as tensors [..., *shape], which are views."""
        parts, at = {}, 0
        for name, shape in self.tensors.items():
            size = math.prod(shape)
            parts[name] = flat[..., at : at + size].reshape(*flat.shape[:-1], *shape)
            at += size
        return parts

    def start(self, seed: int, *, spread: float = 0.1, zero_output: bool = False) -> dict[str, Floats]:
        """The first model: embeddings with this standard deviation, layers of variance 2 / inputs, biases 0.

        With `zero_output` every score is the item's offset.
        """
        weights = {}
        for number, (name, shape) in enumerate(self.tensors.items()):
            if name.endswith("bias"):
                weights[name] = np.zeros(shape, np.float32)
                continue
            rows = np.arange(shape[0], dtype=np.int64)
            scale = spread if name in (USERS, ITEMS) else math.sqrt(2.0 / max(shape[0], 1))
            weights[name] = np.float32(scale) * rng.normals(seed, rng.MODEL, number, rows, shape[1])
        if zero_output:
            weights[f"layer{len(self.widths) - 1}.weight"][...] = 0.0
        return weights


def _rows_of(categories: tuple[int, ...], first: int, embedding: int) -> Offsets:
    """Of every code, the row of the first layer where its feature begins."""
    rows = first + embedding * np.arange(len(categories), dtype=np.int64)
    return np.repeat(rows, np.array(categories, np.int64))
