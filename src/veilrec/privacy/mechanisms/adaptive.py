"""A round that also learns how to clip the next one (DP-PrivRec's adaptive bound, done soundly)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from veilrec._arrays import Doubles
from veilrec.errors import BadInput
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.accounting.calibration import adaptive_clipping_noise
from veilrec.privacy.checks import positive, probability, vectors, whole
from veilrec.privacy.events import SampledEvent
from veilrec.privacy.mechanism import Calibration, Sensitivity
from veilrec.privacy.mechanisms._accounted import Accounted
from veilrec.privacy.mechanisms.clipping import clip_flat, device_norms, next_clip_norm, unclipped_count
from veilrec.privacy.mechanisms.gaussian import lattice_delta
from veilrec.privacy.mechanisms.updates import fixed_cohort, noisy_sum
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import UNITS, add_gaussian
from veilrec.privacy.sensitivity import clipped_l2


@dataclass(frozen=True)
class AdaptiveRound:
    """What a round with an adaptive bound makes known."""

    total: Doubles  # [dimension], the noisy sum of the clipped updates
    unclipped_fraction: float  # noisy share of the cohort whose updates the bound left alone


class AdaptiveSum(Accounted[Doubles, AdaptiveRound]):
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
        checked = vectors(self.dimension, updates=value)
        if checked.shape != (self.population, self.dimension):
            raise BadInput(f"updates have shape {checked.shape}: give one row for each of {self.population} people")
        members = checked[fixed_cohort(self.population, self.cohort, source)]
        count = unclipped_count(device_norms((), [members]), self.clip_norm)
        noisy_count = add_gaussian(np.array([float(count)]), sigma=self.count_standard_deviation, source=source)
        total = noisy_sum(clip_flat(members, self.clip_norm), sigma=self.sigma, source=source)
        return AdaptiveRound(total, float(noisy_count[0]) / self.cohort)

    def next_clip_norm(self, released: AdaptiveRound, *, quantile: float) -> float:
        """The bound of the next round: post-processing of what is known already."""
        return next_clip_norm(self.clip_norm, noisy_unclipped_fraction=released.unclipped_fraction, quantile=quantile)

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
