"""A round that also learns how to clip the next one (Andrew et al. 2021): DP-PrivRec's adaptive bound, done soundly.

The bound S is a number of the model, so that it is released, saved and resumed with it. A message carries the update,
clipped to the S of its round, and whether it had to be: b - 1/2 with b = 1 if its norm was at most S before clipping.
The server adds both up, each with noise of its own, and the noisy count decides the S of the next round.

DP-PrivRec's adaptive bound as it is printed (Algorithm 2), to reproduce it; what holds is in `adaptive`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from veilrec.core.arrays import Doubles, Floats
from veilrec.core.errors import BadInput
from veilrec.core.schema import BOUND, ClientUpdates, RoundSpec, Schema, Tensor, copied, with_bound
from veilrec.privacy.accounting.accountant import Rounds, adaptive_clipping_noise, paper_convention
from veilrec.privacy.checks import on_lattice_l2, positive, rounded_sum_l2
from veilrec.privacy.events import Event
from veilrec.privacy.guarantee import Adjacency
from veilrec.privacy.mechanisms.base import Calibration
from veilrec.privacy.mechanisms.clipping import (
    BadUpdate,
    clip_factors,
    published_noise_split,
    scale_packed,
    upload_norms,
)
from veilrec.privacy.mechanisms.sums import CohortSum
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import UNITS

FARTHEST = 100.0  # times the first bound, or a part of it: no later one lies outside
_ROUNDING = 1e-6  # of a bound that the model holds in single precision
_HALF = 0.5  # what a message counts for, up or down


def first_bound(clip_norm: float) -> dict[str, Floats]:
    """What the first model says of the bound."""
    positive(clip_norm=clip_norm)
    return {BOUND: np.array([clip_norm], np.float32)}


def without_count(uploads: ClientUpdates) -> ClientUpdates:
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

    def bound(self, uploads: ClientUpdates, about: RoundSpec) -> ClientUpdates:
        """Count, then clip: the count is of the updates as they were, cut to what the round is about."""
        update = without_count(uploads)
        within = upload_norms(self._part(update, about)) <= self._clip_norm(about)
        counts = np.where(within, _HALF, -_HALF).astype(np.float32).reshape(-1, 1)
        bounded = super().bound(update, about)
        return replace(bounded, dense={**bounded.dense, BOUND: counts})

    def _clip_norm(self, about: RoundSpec) -> float:
        """The bound of this round, which the model says."""
        clip_norm = self.clip_norm if about.clip_norm is None else about.clip_norm
        smallest, largest = self.limits
        if not smallest * (1.0 - _ROUNDING) <= clip_norm <= largest * (1.0 + _ROUNDING):
            raise BadInput(
                f"the round has clip norm {clip_norm:g}: this plan has bounds from {smallest:g} to {largest:g}"
            )
        return clip_norm

    def reach(self, tensor: Tensor, about: RoundSpec, weight: int = 1) -> float:
        """Of the update, and of what a message counts for."""
        return weight * _HALF if tensor.name == BOUND else super().reach(tensor, about, weight)

    def sigma_in(self, name: str, about: RoundSpec) -> float:
        """Proportional to the bound of the round; of the count, always the same."""
        if name == BOUND:
            return self.count_standard_deviation
        return self.sigma * (self._clip_norm(about) / self.clip_norm)

    def check(self, uploads: ClientUpdates, about: RoundSpec) -> None:
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


class PublishedAdaptiveSum(CohortSum):
    """Fixed cohorts; the count taken after clipping; noise outside of the server's rate.

    The bound may fall to 0 and below, as printed: min(1, S / norm) then turns updates round and gives them norm |S|.
    The noise is proportional to |S|, and at S = 0 nothing but the count is released.
    """

    name = "published-adaptive-sum"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("as-published",)

    def __init__(
        self,
        *,
        schema: Schema,
        clip_norm: float,
        noise_multiplier: float,
        count_share: float,
        server_rate: float,
        taking_part: Rounds,
        delta: float,
    ) -> None:
        positive(server_rate=server_rate)
        super().__init__(
            schema=schema, clip_norm=clip_norm, noise_multiplier=noise_multiplier, taking_part=taking_part, delta=delta
        )
        of_update, of_count = published_noise_split(noise_multiplier, count_share)  # z / sqrt(1 - h), z / sqrt(h)
        # Lines 8 and 9: theta + alpha_3 mean + N(0, (2 S z / M)^2 / (1 - h)): on the sum, M / alpha_3 times that.
        self.sigma = 2.0 * clip_norm * of_update / server_rate
        self.count_standard_deviation = 2.0 * of_count  # line 10: 2 z / M / sqrt(h) on the mean

    @property
    def claimed_epsilon(self) -> float:  # type: ignore[override]
        """Of one round as the paper counts: a release for every device of it."""
        people = self.taking_part
        return paper_convention(
            people.population,
            people.cohort,
            self.claimed_delta,
            releases=people.cohort,
            noise_multiplier=self.noise_multiplier,
        )

    def bound(self, uploads: ClientUpdates, about: RoundSpec) -> ClientUpdates:
        """Lines 22 and 23: clip, and then ask whether the norm is at most S."""
        clip_norm, kept = self._clip_norm(about), copied(self._part(without_count(uploads), about))
        norms = upload_norms(kept)
        if clip_norm > 0.0:
            factors = clip_factors(norms, clip_norm)
        else:
            factors = np.divide(clip_norm, norms, out=np.zeros_like(norms), where=norms > 0.0)
        for rows in (*kept.tables.values(), *kept.entries.values()):
            scale_packed(rows.offsets, rows.values, factors)
        for values in kept.dense.values():
            np.multiply(values, factors.reshape(-1, *(1,) * (values.ndim - 1)), out=values, casting="same_kind")
        counts = (upload_norms(kept) <= clip_norm).astype(np.float32).reshape(-1, 1)
        return replace(kept, dense={**kept.dense, BOUND: counts})

    def _clip_norm(self, about: RoundSpec) -> float:
        return self.clip_norm if about.clip_norm is None else about.clip_norm

    def reach(self, tensor: Tensor, about: RoundSpec, weight: int = 1) -> float:
        """The bound has any sign, and may be 0; a message counts for 1."""
        return weight * (1.0 if tensor.name == BOUND else max(abs(self._clip_norm(about)), self.clip_norm * 2.0**-20))

    def sigma_in(self, name: str, about: RoundSpec) -> float:
        """Proportional to the size of the bound; of the count, always the same."""
        if name == BOUND:
            return self.count_standard_deviation
        return self.sigma * abs(self._clip_norm(about) / self.clip_norm)

    def _noisy(self, total: Doubles, sigma: float, source: Source) -> Doubles:
        return total if sigma == 0.0 else super()._noisy(total, sigma, source)

    def check(self, uploads: ClientUpdates, about: RoundSpec) -> None:
        """Refuse updates that are longer than the bound, and counts that no device sends."""
        most, norms = abs(self._clip_norm(about)), upload_norms(without_count(uploads))
        if (norms > most * (1.0 + 1e-6)).any():
            raise BadUpdate(f"an update has norm {norms.max():.6g}: this round takes at most {most:.6g}")
        counts = uploads.dense.get(BOUND)
        if counts is None or counts.shape != (uploads.count, 1) or not np.isin(counts, (0.0, 1.0)).all():
            raise BadUpdate("an update does not say whether it was within the bound, by 0 or 1")

    def facts(self) -> dict[str, float]:
        """The noise of the first round, which follows the bound, and that of the count."""
        return {**super().facts(), "count_standard_deviation": self.count_standard_deviation}

    def event(self) -> Event:
        """What one round really costs: one release of both, whoever is replaced moves the sum by 2 |S|, the count by 1.

        1/z^2 = (2 S / sigma)^2 + (1 / its noise)^2, with what rounding and the lattice add to both.
        """
        moved = rounded_sum_l2(self.sensitivity.value, self.taking_part.population)
        mu_update = on_lattice_l2(moved, self.dimension, self.sigma / UNITS) / self.sigma
        mu_count = 1.0 / self.count_standard_deviation + 1.0 / UNITS
        return self.taking_part.one_round(1.0 / math.hypot(mu_update, mu_count))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """None: the paper charges itself too much, so that there is nothing to refute."""
        return ()
