"""A round that also learns how to clip the next one (DP-PrivRec's adaptive bound, done soundly)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from veilrec._arrays import Bools, Doubles
from veilrec.errors import BadInput
from veilrec.privacy.accounting.accountant import adaptive_clipping_noise, epsilon_of
from veilrec.privacy.checks import positive, probability, vectors, whole
from veilrec.privacy.events import SampledEvent
from veilrec.privacy.mechanisms.base import Calibration, Mechanism, Sensitivity
from veilrec.privacy.mechanisms.clipping import clip_flat, device_norms, next_clip_norm
from veilrec.privacy.mechanisms.noise import lattice_delta
from veilrec.privacy.mechanisms.updates import fixed_cohorts
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import UNITS, add_gaussian, lattice_gaussian, to_lattice
from veilrec.privacy.sensitivity import clipped_l2


@dataclass(frozen=True)
class AdaptiveRound:
    """What a round with an adaptive bound makes known."""

    total: Doubles  # [..., dimension], the noisy sum of the clipped updates
    unclipped_fraction: Doubles  # [...], noisy share of the cohort whose updates the bound left alone


def noisy_sums(members: Bools, clipped: Doubles, *, sigma: float, source: Source) -> Doubles:
    """Sums `[count, d]` of the members' clipped updates `[people, d]`, with Gaussian noise.

    Each update is cut to the lattice by itself, towards zero, so that its norm stays within the bound and the sum of
    the cut updates is exact: the lattice costs no privacy.
    """
    grid = sigma / UNITS
    noise = lattice_gaussian(source, len(members) * clipped.shape[1]).reshape(len(members), -1)
    return np.asarray((members.astype(np.int64) @ to_lattice(clipped, grid) + noise).astype(np.float64) * grid)


class AdaptiveSum(Mechanism[Doubles, AdaptiveRound]):
    """The noisy sum of a fixed-size cohort, and the noisy count of updates below the bound, taken before clipping.

    Both together cost what the sum alone would with `noise_multiplier`: the sum gets a little more noise than that.
    """

    name = "adaptive-sum"
    scope, trust = "per round", "server"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven",)

    def __init__(
        self,
        *,
        dimension: int,
        clip_norm: float,
        noise_multiplier: float,
        count_standard_deviation: float,
        population: int,
        cohort: int,
        delta: float,
    ) -> None:
        self._set_calibration("proven")
        whole(dimension=dimension, population=population, cohort=cohort)
        positive(count_standard_deviation=count_standard_deviation)
        probability(delta=delta)
        if cohort > population:
            raise BadInput(f"a cohort of {cohort} from a population of {population}: give a smaller cohort")
        self.unit, self.adjacency = "user", "replace-one"
        self.dimension, self.clip_norm = dimension, clip_norm
        self.population, self.cohort = population, cohort
        self.noise_multiplier = noise_multiplier
        # A count cut to the lattice moves by up to one step more than 1.
        effective = 1.0 / (1.0 / count_standard_deviation + 1.0 / UNITS)
        split = adaptive_clipping_noise(noise_multiplier, effective, adjacency=self.adjacency)
        self.sensitivity = Sensitivity(clipped_l2(clip_norm, self.adjacency), "L2")
        self.sigma = split.update_noise_multiplier * self.sensitivity.value
        self.count_standard_deviation = count_standard_deviation
        self.claimed_delta = delta
        # The sampler's error, far below what accounting rounds to, is taken off delta and added to epsilon.
        self.claimed_epsilon = epsilon_of(self.event(), 0.999 * delta) * (1.0 + 1e-9) + 1e-9

    def _perturb(self, value: Doubles, source: Source) -> AdaptiveRound:
        """One round over everybody's updates `[population, dimension]`."""
        rounds = self._perturb_many(value, 1, source)
        return AdaptiveRound(rounds.total[0], rounds.unclipped_fraction[0])

    def _perturb_many(self, value: Doubles, count: int, source: Source) -> AdaptiveRound:
        """The same round many times, each with a cohort of its own."""
        checked = vectors(self.dimension, updates=value)
        if checked.shape != (self.population, self.dimension):
            raise BadInput(f"updates have shape {checked.shape}: give one row for each of {self.population} people")
        members = fixed_cohorts(count, self.population, self.cohort, source)
        unclipped = (members & (device_norms((), [checked]) <= self.clip_norm)).sum(axis=1).astype(np.float64)
        noisy_counts = add_gaussian(unclipped, sigma=self.count_standard_deviation, source=source)
        totals = noisy_sums(members, clip_flat(checked, self.clip_norm), sigma=self.sigma, source=source)
        return AdaptiveRound(totals, noisy_counts / self.cohort)

    def next_clip_norm(self, released: AdaptiveRound, *, quantile: float) -> float:
        """The bound of the next round: post-processing of what is known already."""
        fraction = float(released.unclipped_fraction)
        return next_clip_norm(self.clip_norm, noisy_unclipped_fraction=fraction, quantile=quantile)

    def event(self) -> SampledEvent:
        """One Gaussian release with the whole noise multiplier, of which a person is part only by chance."""
        return SampledEvent(1.0 / self.noise_multiplier, self.cohort / self.population, "fixed")

    def delta(self, epsilon: float) -> float:
        """The exact profile, with the sampler's errors."""
        return lattice_delta(self.event(), epsilon, self.dimension + 1)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Everybody silent but one, whose update turns round and is over the bound on one side only."""
        first = np.zeros((self.population, self.dimension))
        first[0] = self.clip_norm / math.sqrt(self.dimension)
        return first * (1.0 - 1e-6), -first * (1.0 + 1e-6)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Three of ten people, a twentieth of the loss spent on the count."""
        return (
            cls(
                dimension=4,
                clip_norm=1.0,
                noise_multiplier=0.5,
                count_standard_deviation=1.5,
                population=10,
                cohort=3,
                delta=1e-3,
            ),
        )
