"""The last private comparison: is the trained model better than the public start that it came from?

Some people never learn and only judge: each tells by how much the trained model ranks better on its own data, clipped,
and the sum of what they tell gets Gaussian noise. Training is kept only where the noisy mean gain is larger than noise
and chance explain.
"""

from __future__ import annotations

import math
from typing import ClassVar, Self

import numpy as np

from veilrec.core.arrays import Doubles
from veilrec.core.errors import BadInput
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.privacy.checks import clipped_l2, on_lattice_l2, positive, probability, vectors, whole
from veilrec.privacy.events import GaussianEvent
from veilrec.privacy.guarantee import Adjacency
from veilrec.privacy.mechanisms.base import Calibration, Mechanism, Sensitivity
from veilrec.privacy.mechanisms.clipping import BadUpdate
from veilrec.privacy.mechanisms.noise import lattice_delta, lattice_sigma
from veilrec.privacy.randomness import FastSource, Source
from veilrec.privacy.samplers import UNITS, add_gaussian

STANDARD_ERRORS = 2.0  # of noise and chance together, that a gain has to exceed: by chance alone it does 1 time in 40
_MOST_JUDGES = 1 << 24
# A sum that is rounded once errs by 2^-53 of itself, which is at most so many clips; and so does its neighbour's.
_ROUNDING = 2.0**-52 * _MOST_JUDGES


class GainSum(Mechanism[Doubles, Doubles]):
    """The sum of the clipped gains of people who judge, each counted once."""

    name = "gain-sum"
    scope, trust = "whole run", "server"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven",)

    def __init__(self, *, clip: float, epsilon: float, delta: float, adjacency: Adjacency) -> None:
        self._set_calibration("proven")
        positive(clip=clip, epsilon=epsilon)
        probability(delta=delta)
        self.clip = clip
        self.unit, self.adjacency = "user", adjacency
        self.sensitivity = Sensitivity(clipped_l2(clip, adjacency), "L2")
        self.claimed_epsilon, self.claimed_delta = epsilon, delta
        self.sigma = lattice_sigma(epsilon, delta, self.sensitivity.value * (1.0 + _ROUNDING), 1)
        self._event = GaussianEvent(mu_for(epsilon, delta))

    def bound(self, gains: Doubles) -> Doubles:
        """No gain is larger than the clip, and one that is no number is none."""
        found = np.nan_to_num(np.asarray(gains, np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        return np.clip(found, -self.clip, self.clip)

    def total(self, gains: Doubles) -> float:
        """The sum of bounded gains, rounded once, whatever their order."""
        if np.ndim(gains) != 1 or len(gains) > _MOST_JUDGES:
            raise BadInput(f"gains have shape {np.shape(gains)}: give one number a judge, {_MOST_JUDGES:,} at most")
        return math.fsum(self.bound(gains).tolist())

    def check(self, gain: float) -> None:
        """Refuse a gain that nobody who keeps to the bound can have sent."""
        if not abs(gain) <= self.clip:
            raise BadUpdate(f"a gain of {gain:.6g}: this comparison takes at most {self.clip:.6g}")

    def protect(self, total: Doubles, source: Source) -> Doubles:
        """Noise on the sum."""
        if isinstance(source, FastSource):
            return np.asarray(total + self.sigma * source.generator().normal(0.0, 1.0, np.shape(total)))
        return add_gaussian(np.asarray(total, np.float64), sigma=self.sigma, source=source)

    def threshold(self, judges: int) -> float:
        """What the noisy mean gain of so many judges has to exceed: standard errors of its noise and of chance.

        The variance of a clipped gain is at most the clip squared, so that nothing has to be learnt of it.
        """
        whole(judges=judges)
        return STANDARD_ERRORS * math.sqrt(judges * self.clip**2 + self.sigma**2) / judges

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The noisy sum `[1]` of the gains of n judges, `[n, 1]`."""
        return np.asarray(self._perturb_many(value, 1, source)[0])

    def _perturb_many(self, value: Doubles, count: int, source: Source) -> Doubles:
        checked = vectors(1, gains=value)
        return self.protect(np.full((count, 1), self.total(checked.reshape(-1))), source)

    def event(self) -> GaussianEvent:
        """Gaussian, the lattice included."""
        return self._event

    def delta(self, epsilon: float) -> float:
        """The exact profile, with the sampler's errors."""
        moved = on_lattice_l2(self.sensitivity.value * (1.0 + _ROUNDING), 1, self.sigma / UNITS)
        return lattice_delta(GaussianEvent(moved / self.sigma), epsilon, 1)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """One judge who gains all, and nobody (add-remove) or one who loses all (replace-one)."""
        first = np.array([[self.clip]])
        return first, np.zeros((0, 1)) if self.adjacency == "add-remove" else -first

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """In both adjacencies."""
        return (
            cls(clip=0.1, epsilon=1.0, delta=1e-6, adjacency="add-remove"),
            cls(clip=0.1, epsilon=1.0, delta=1e-6, adjacency="replace-one"),
        )
