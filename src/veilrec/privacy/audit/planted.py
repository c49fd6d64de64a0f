"""Bugs that real code has had, planted on purpose: an audit that lets one of them pass is broken."""

from __future__ import annotations

import math

import numpy as np

from veilrec._arrays import Bools, Doubles
from veilrec.privacy.audit.attacks import Attack, Scores, SupportEvent
from veilrec.privacy.audit.batches import batch
from veilrec.privacy.audit.case import Case
from veilrec.privacy.audit.plan import MANY, SOME, attacks_on
from veilrec.privacy.audit.scores import scored
from veilrec.privacy.mechanisms._accounted import Accounted
from veilrec.privacy.mechanisms.gaussian import Gaussian
from veilrec.privacy.mechanisms.laplace import Laplace
from veilrec.privacy.mechanisms.updates import UpdateNoise
from veilrec.privacy.randomness import Source, uniforms
from veilrec.privacy.samplers import UNITS, add_gaussian, add_laplace, lattice_gaussian


class HalfTheNoise(Gaussian):
    """Divides by 2 what the proof needs."""

    name = "half-the-noise"

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The vectors with too little noise."""
        return add_gaussian(value, sigma=self.sigma / 2, source=source)


class NoClip(UpdateNoise):
    """Forgets to clip, and meets updates of three times the norm that it counts on."""

    name = "no-clip"

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The updates as they are, with noise for clipped ones."""
        return add_gaussian(value, sigma=self.sigma, source=source)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Updates that clipping would have shortened."""
        first, second = super().worst_pair()
        return 3.0 * first, 3.0 * second


class ReusedNoise(Gaussian):
    """Sends two numbers with one and the same noise, as when a generator is seeded anew for every message."""

    name = "reused-noise"

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """Both numbers `[..., 2]`, each with enough noise, but not with noise of its own."""
        noise = lattice_gaussian(source, value[..., 0].size).reshape(value[..., 0].shape)
        return value + noise[..., np.newaxis] * (self.sigma / UNITS)


class WrongNorm(Laplace):
    """Scales Laplace noise to an L2 sensitivity; the worst pair moves every coordinate a little."""

    name = "wrong-norm"

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The vectors with noise for sensitivity / sqrt(dimension)."""
        return add_laplace(value, scale=self.scale / math.sqrt(self.dimension), source=source)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Nothing, and a flat vector at the L1 distance that the proof allows."""
        return np.zeros(self.dimension), np.full(self.dimension, self.sensitivity.value / self.dimension)


class FloatNoise(Laplace):
    """Adds textbook Laplace noise, the logarithm of a uniform number, in floating point."""

    name = "float-noise"

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The right distribution on real numbers, but other last digits around every value."""
        uniform = 2.0 * uniforms(source, value.size).reshape(value.shape) - 1.0
        noise = -self.scale * np.copysign(np.log1p(-np.abs(uniform)), uniform)
        return value + noise


def has_digits_that_one_never_has(outputs: Doubles) -> Bools:
    """|y| < 1/2 and y 2^53 is not whole: 1 + noise never does that, 0 + noise often does (section 8)."""
    small = outputs[:, 0]
    return np.asarray((np.abs(small) < 0.5) & (small * 2.0**53 != np.round(small * 2.0**53)))


def planted_cases() -> tuple[Case, ...]:
    """All planted bugs, each in a mechanism that claims what its sound parent may claim."""
    half = HalfTheNoise(dimension=5, sensitivity=1.0, epsilon=1.0, delta=1e-6, unit="user", adjacency="replace-one")
    no_clip = NoClip(dimension=16, clip_norm=1.0, epsilon=2.0, delta=1e-6)
    reused = ReusedNoise(dimension=2, sensitivity=1.0, epsilon=1.0, delta=1e-6, unit="user", adjacency="replace-one")
    wrong = WrongNorm(dimension=16, sensitivity=4.0, epsilon=1.0, unit="user", adjacency="replace-one")
    floats = FloatNoise(dimension=1, sensitivity=1.0, epsilon=1.0, unit="user", adjacency="replace-one")
    difference = scored(batch(reused), lambda outputs: np.round(outputs[:, 0] - outputs[:, 1], 9))
    return (
        _case(half, attacks_on(half), "half the noise that the proof needs"),
        _case(no_clip, attacks_on(no_clip), "the update is not clipped"),
        _case(reused, (Scores(difference, SOME),), "two messages carry the same noise, and their difference none"),
        _case(wrong, attacks_on(wrong), "Laplace noise scaled to an L2 sensitivity"),
        _case(
            floats,
            (SupportEvent(scored(batch(floats), has_digits_that_one_never_has), MANY),),
            "continuous noise in floating point: the last digits tell the value",
        ),
    )


def _case(mechanism: Accounted[Doubles, Doubles], attacks: tuple[Attack, ...], why: str) -> Case:
    return Case(
        name=mechanism.name,
        kind="planted",
        calibration="planted",
        unit=mechanism.unit,
        adjacency=mechanism.adjacency,
        scope=mechanism.scope,
        trust=mechanism.trust,
        claimed_epsilon=mechanism.claimed_epsilon,
        delta=mechanism.claimed_delta,
        attacks=attacks,
        why=why,
    )
