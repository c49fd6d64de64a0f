"""A round that also learns how to clip the next one (Andrew et al. 2021): DP-PrivRec's adaptive bound, done soundly.

The bound S is a number of the model, so that it is released, saved and resumed with it. A message carries the update,
clipped to the S of its round, and whether it had to be: b - 1/2 with b = 1 if its norm was at most S before clipping.
The server adds both up, each with noise of its own, and the noisy count decides the S of the next round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np

from veilrec._arrays import Doubles, Floats
from veilrec.errors import BadInput
from veilrec.privacy.accounting.accountant import Rounds, adaptive_clipping_noise
from veilrec.privacy.checks import positive
from veilrec.privacy.guarantee import Adjacency
from veilrec.privacy.mechanisms.bounding import BadUpdate, upload_norms
from veilrec.privacy.mechanisms.updates import CohortSum
from veilrec.privacy.samplers import UNITS
from veilrec.updates import BOUND, Round, Schema, Tensor, Uploads, with_bound

FARTHEST = 100.0  # times the first bound, or a part of it: no later one lies outside
_ROUNDING = 1e-6  # of a bound that the model holds in single precision
_HALF = 0.5  # what a message counts for, up or down


def first_bound(clip_norm: float) -> dict[str, Floats]:
    """What the first model says of the bound."""
    positive(clip_norm=clip_norm)
    return {BOUND: np.array([clip_norm], np.float32)}


def without_count(uploads: Uploads) -> Uploads:
    """The same messages, less what they say of the bound."""

    def others(parts: Mapping[str, Any]) -> dict[str, Any]:
        return {name: part for name, part in parts.items() if name != BOUND}

    return replace(uploads, dense=others(uploads.dense), entries=others(uploads.entries))


class AdaptiveSum(CohortSum):
    """The noisy sum of a cohort, and the noisy count of updates within the bound, taken before clipping.

    Both together cost what the sum alone would with `noise_multiplier`: the sum gets a little more noise than that. A
    message counts 1/2 up or down, so that whoever is added or removed moves the count by 1/2, and whoever is replaced
    by 1. `clip_norm` is the bound of the first round; later ones stay within a factor `FARTHEST` of it.
    """

    name = "adaptive-sum"

    def __init__(
        self,
        *,
        schema: Schema,
        clip_norm: float,
        noise_multiplier: float,
        count_standard_deviation: float,
        taking_part: Rounds,
        delta: float,
    ) -> None:
        if not any(tensor.name == BOUND and tensor == Tensor(BOUND, (1,), by_row=False) for tensor in schema.tensors):
            raise BadInput(f"the schema has no tensor {BOUND} of one number: use with_bound(schema)")
        positive(count_standard_deviation=count_standard_deviation)
        moved = taking_part.moved(_HALF)
        # 1/z^2 = 1/z_update^2 + (moved / its noise)^2; a count cut to the lattice moves by up to one step more.
        effective = moved / (moved / count_standard_deviation + 1.0 / UNITS)
        adjacency: Adjacency = "add-remove" if moved == _HALF else "replace-one"
        split = adaptive_clipping_noise(noise_multiplier, effective, adjacency=adjacency)
        super().__init__(
            schema=schema,
            clip_norm=clip_norm,
            noise_multiplier=split.update_noise_multiplier,
            taking_part=taking_part,
            delta=delta,
        )
        self.noise_multiplier = noise_multiplier  # of the sum and the count together
        self.count_standard_deviation = count_standard_deviation

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and the largest bound."""
        return self.clip_norm / FARTHEST, self.clip_norm * FARTHEST

    def bound(self, uploads: Uploads, about: Round) -> Uploads:
        """Count, then clip: the count is of the updates as they were, cut to what the round is about."""
        update = without_count(uploads)
        within = upload_norms(self._part(update, about)) <= self._clip_norm(about)
        counts = np.where(within, _HALF, -_HALF).astype(np.float32).reshape(-1, 1)
        bounded = super().bound(update, about)
        return replace(bounded, dense={**bounded.dense, BOUND: counts})

    def _clip_norm(self, about: Round) -> float:
        """The bound of this round, which the model says."""
        clip_norm = self.clip_norm if about.clip_norm is None else about.clip_norm
        smallest, largest = self.limits
        if not smallest * (1.0 - _ROUNDING) <= clip_norm <= largest * (1.0 + _ROUNDING):
            raise BadInput(
                f"the round has clip norm {clip_norm:g}: this plan has bounds from {smallest:g} to {largest:g}"
            )
        return clip_norm

    def reach(self, tensor: Tensor, about: Round, weight: int = 1) -> float:
        """Of the update, and of what a message counts for."""
        return weight * _HALF if tensor.name == BOUND else super().reach(tensor, about, weight)

    def sigma_in(self, name: str, about: Round) -> float:
        """Proportional to the bound of the round; of the count, always the same."""
        if name == BOUND:
            return self.count_standard_deviation
        return self.sigma * (self._clip_norm(about) / self.clip_norm)

    def check(self, uploads: Uploads, about: Round) -> None:
        """Refuse updates that are longer than the bound of this round, and counts that no device sends."""
        super().check(without_count(uploads), about)
        counts = uploads.dense.get(BOUND)
        if counts is None or counts.shape != (uploads.count, 1) or not (np.abs(counts) == _HALF).all():
            raise BadUpdate("an update does not say whether it was within the bound, by 1/2 or -1/2")

    def facts(self) -> dict[str, float]:
        """The noise of the first round, which follows the bound, and that of the count."""
        return {**super().facts(), "count_standard_deviation": self.count_standard_deviation}

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Everybody silent but one, who turns round and is over the bound on one side only; or who is missing."""
        with_one, other = super().worst_pair()
        first = np.zeros_like(with_one)
        place = int(np.cumsum([0, *(tensor.size for tensor in self.schema.tensors)])[self._place])
        first[0] = self.clip_norm / math.sqrt(self.dimension - 1)
        first[0, place] = 0.0
        first *= 1.0 - 1e-6
        return (first, -first * (1.0 + 2e-6)) if len(other) == len(with_one) else (first, first[1:])

    @property
    def _place(self) -> int:
        return [tensor.name for tensor in self.schema.tensors].index(BOUND)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Three of ten people, drawn in both ways; and everybody."""
        schema = with_bound(Schema((Tensor("rows", (2, 2), by_row=True), Tensor("layer", (3,), by_row=False))))
        ways = (
            Rounds(rounds=1, sampling="fixed", population=10, cohort=3),
            Rounds(rounds=1, sampling="poisson", population=10, cohort=3),
            Rounds(rounds=1, population=4, cohort=4),
        )
        return tuple(
            cls(
                schema=schema,
                clip_norm=1.0,
                noise_multiplier=0.5,
                count_standard_deviation=1.5,
                taking_part=way,
                delta=1e-3,
            )
            for way in ways
        )
