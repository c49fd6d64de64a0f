"""What a feature network reads of people and items: embeddings or ones and zeros, and how popular an item is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec.core.arrays import Floats, Indices
from veilrec.core.features import NO_CODE, Side
from veilrec.models.feature_net import Activation, FeatureNet

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
