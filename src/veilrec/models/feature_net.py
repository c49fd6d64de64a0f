"""A network over features of users and items, without ids (PrivRec, section 2.1, eq. 1).

Every category has an embedding, of which those of one feature are added up; numbers go in as they are. All of it, side
by side, is the input of the hidden layers; the last layer has one output, to which the items' offsets are added:

    x_0 = [U; V],  x_k = f(x_{k-1} W_k + b_k),  score(u, i) = x_N W_o + b_o + offset_i

What a feature network reads of people and items: embeddings or ones and zeros, and how popular an item is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilrec.core import rng
from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.features import NO_CODE, Side

Activation = Literal["relu", "sigmoid"]
USERS, ITEMS = "users.embedding", "items.embedding"


class Net(NamedTuple):
    """Layout of a feature network for compiled code: where everything lies in one flat vector."""

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
        """Widths of the input, the hidden layers and the output."""
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
    """Row of the first layer where the feature of each code begins."""
    rows = first + embedding * np.arange(len(categories), dtype=np.int64)
    return np.repeat(rows, np.array(categories, np.int64))


POPULARITY = "popularity"  # the tensor with everybody's votes
FEWEST_VOTES = 0.3  # whatever is below, noise included, counts as so many
# How popular an item is, as numbers from 0 to 1: how far its logarithm lies above each of these shares of the range.
_KNOTS = (0.0, 0.5, 0.75)


@dataclass(frozen=True)
class Inputs:
    """How features of both sides become inputs; without embeddings, every code is a number that is 0 or 1."""

    people: Side  # without rows
    items: Side  # of the whole catalogue: public
    embedding: int
    popularity: bool  # whether log-popularity is the offset of a score, and among the numbers of an item

    def net(self, hidden: tuple[int, ...], activation: Activation = "relu") -> FeatureNet:
        """The network that reads them."""
        embeds = self.embedding > 0
        return FeatureNet(
            user_categories=_sizes(self.people) if embeds else (),
            user_numbers=_numbers(self.people, embeds),
            item_categories=_sizes(self.items) if embeds else (),
            item_numbers=_numbers(self.items, embeds) + (len(_KNOTS) if self.popularity else 0),
            embedding=self.embedding,
            hidden=hidden,
            activation=activation,
        )

    def of_people(self, side: Side) -> tuple[Indices, Floats]:
        """Codes [n, slots] and numbers [n, ...] of some people."""
        return _read(side, embeds=self.embedding > 0)

    def of_items(self, weights: Mapping[str, NDArray[Any]]) -> ItemInputs:
        """Those of all items, with what the model says of their popularity."""
        codes, numbers = _read(self.items, embeds=self.embedding > 0)
        if not self.popularity:
            return ItemInputs(codes, numbers, np.zeros(len(codes), np.float32))
        level = np.log(np.maximum(weights[POPULARITY].reshape(-1), FEWEST_VOTES)).astype(np.float32)
        share = (level - level.min()) / max(float(level.max() - level.min()), 1e-6)
        above = [np.maximum(share - knot, 0.0) / (1.0 - knot) for knot in _KNOTS]
        return ItemInputs(codes, np.concatenate([numbers, np.stack(above, axis=1)], axis=1, dtype=np.float32), level)


@dataclass(frozen=True)
class ItemInputs:
    """What the network reads of every item."""

    codes: Indices  # [items, slots], filled up with NO_CODE
    numbers: Floats  # [items, numbers]
    offsets: Floats  # [items], added to every score


def plain_inputs(side: Side) -> Floats:
    """A one or zero for every code, and the numbers: [rows, ...]."""
    return _read(side, embeds=False)[1]


def _sizes(side: Side) -> tuple[int, ...]:
    return tuple(feature.codes for feature in side.categories)


def _numbers(side: Side, embeds: bool) -> int:
    return int(side.numbers.shape[1]) + (0 if embeds else side.n_codes)


def _read(side: Side, *, embeds: bool) -> tuple[Indices, Floats]:
    if embeds:
        return np.ascontiguousarray(side.codes), np.ascontiguousarray(side.numbers)
    ones = np.zeros((len(side), side.n_codes + 1), np.float32)
    rows = np.repeat(np.arange(len(side)), side.codes.shape[1])
    ones[rows, np.where(side.codes == NO_CODE, side.n_codes, side.codes).reshape(-1)] = 1.0
    numbers = np.concatenate([ones[:, :-1], side.numbers], axis=1)
    return np.zeros((len(side), 0), np.int32), np.ascontiguousarray(numbers, np.float32)
