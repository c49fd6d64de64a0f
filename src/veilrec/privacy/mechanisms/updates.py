"""Noise on what devices learned: on each message, or on the sum of a cohort."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

import numpy as np

from veilrec._arrays import Bools, Doubles
from veilrec.errors import BadInput, unknown_name
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.checks import positive, probability, vectors, whole
from veilrec.privacy.events import Event, GaussianEvent, LaplaceEvent, SampledEvent, repeated
from veilrec.privacy.mechanism import Calibration, Sensitivity
from veilrec.privacy.mechanisms._accounted import Accounted
from veilrec.privacy.mechanisms.bits import happens
from veilrec.privacy.mechanisms.clipping import clip_flat
from veilrec.privacy.mechanisms.gaussian import lattice_delta, lattice_mu
from veilrec.privacy.mechanisms.laplace import laplace_scale, sampler_epsilon
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import UNITS, add_gaussian, add_laplace, lattice_gaussian, to_lattice
from veilrec.privacy.sensitivity import clipped_l1, clipped_l2


def _largest(dimension: int, clip_norm: float) -> Doubles:
    """A flat vector of norm `clip_norm`: the worst for L1, as good as any for L2."""
    return np.full(dimension, clip_norm / math.sqrt(dimension))


def fixed_cohort(people: int, cohort: int, source: Source) -> Bools:
    """Exactly `cohort` of `people`, every choice equally likely."""
    members = np.zeros(people, np.bool_)
    members[np.argpartition(source.words(people), cohort - 1)[:cohort]] = True
    return members


def noisy_sum(clipped: Doubles, *, sigma: float, source: Source) -> Doubles:
    """The sum of clipped updates `[n, d]` with Gaussian noise.

    Each update is cut to the lattice by itself, towards zero, so that its norm stays within the bound and the sum of
    the cut updates is exact: the lattice costs no privacy.
    """
    grid = sigma / UNITS
    total = to_lattice(clipped, grid).sum(axis=0) + lattice_gaussian(source, clipped.shape[1])
    return np.asarray(total.astype(np.float64) * grid)


class UpdateNoise(Accounted[Doubles, Doubles]):
    """A user's whole update, clipped to one L2 norm, with Gaussian noise on the device: it trusts nobody."""

    name = "update-noise"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven",)

    def __init__(self, *, dimension: int, clip_norm: float, epsilon: float, delta: float) -> None:
        self._set_calibration("proven")
        self.unit, self.adjacency = "user", "replace-one"
        self.dimension, self.clip_norm = dimension, clip_norm
        self.sensitivity = Sensitivity(clipped_l2(clip_norm, "replace-one"), "L2")
        self.claimed_epsilon, self.claimed_delta = epsilon, delta
        # Cutting towards zero keeps the norm, so the lattice costs nothing here.
        self.sigma = self.sensitivity.value / lattice_mu(epsilon, delta, dimension)

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The messages of the devices `[..., dimension]`; one event each."""
        clipped = clip_flat(vectors(self.dimension, update=value), self.clip_norm)
        return add_gaussian(clipped, sigma=self.sigma, source=source)

    def event(self) -> GaussianEvent:
        """Gaussian, for any two updates."""
        return GaussianEvent(self.sensitivity.value / self.sigma)

    def delta(self, epsilon: float) -> float:
        """The exact profile, with the sampler's errors."""
        return lattice_delta(self.event(), epsilon, self.dimension)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """An update of the largest norm, and its opposite."""
        largest = _largest(self.dimension, self.clip_norm)
        return largest, -largest

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Sixteen parameters at epsilon 2."""
        return (cls(dimension=16, clip_norm=1.0, epsilon=2.0, delta=1e-6),)


class CohortSum(Accounted[Doubles, Doubles]):
    """The sum of a random cohort's clipped updates with Gaussian noise: one round, the sampling included.

    fixed: exactly `cohort` of the `population`, replace-one, sensitivity 2 * clip_norm; poisson: each with
    probability cohort / population, add-remove, sensitivity clip_norm. The noise multiplier is sigma over
    that sensitivity. A round with drop-outs is not a fixed-size cohort any more.
    """

    name = "cohort-sum"
    scope, trust = "per round", "server"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven",)

    def __init__(
        self,
        *,
        dimension: int,
        clip_norm: float,
        noise_multiplier: float,
        population: int,
        cohort: int,
        delta: float,
        sampling: Literal["fixed", "poisson"] = "fixed",
    ) -> None:
        self._set_calibration("proven")
        whole(dimension=dimension, population=population, cohort=cohort)
        positive(noise_multiplier=noise_multiplier)
        probability(delta=delta)
        if cohort > population:
            raise BadInput(f"a cohort of {cohort} from a population of {population}: give a smaller cohort")
        if sampling not in ("fixed", "poisson"):
            raise unknown_name("sampling", sampling, ("fixed", "poisson"))
        self.unit, self.adjacency = "user", "replace-one" if sampling == "fixed" else "add-remove"
        self.dimension, self.clip_norm = dimension, clip_norm
        self.population, self.cohort, self.sampling = population, cohort, sampling
        self.sensitivity = Sensitivity(clipped_l2(clip_norm, self.adjacency), "L2")
        self.noise_multiplier = noise_multiplier
        self.sigma = noise_multiplier * self.sensitivity.value
        self.claimed_delta = delta
        # The sampler's error, far below what accounting rounds to, is taken off delta and added to epsilon.
        self.claimed_epsilon = epsilon_of(self.event(), 0.999 * delta) * (1.0 + 1e-9) + 1e-9

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The noisy sum `[dimension]` of a cohort drawn from `[population, dimension]` updates."""
        checked = vectors(self.dimension, updates=value)
        if checked.ndim != 2 or len(checked) > self.population:
            raise BadInput(f"updates have shape {checked.shape}: give one row per person, {self.population} at most")
        if self.sampling == "fixed" and len(checked) != self.population:
            raise BadInput(f"there are {len(checked)} updates: a fixed-size cohort needs all {self.population}")
        if self.sampling == "fixed":
            members = fixed_cohort(len(checked), self.cohort, source)
        else:
            members = happens(self.cohort / self.population, (len(checked),), source)
        return noisy_sum(clip_flat(checked[members], self.clip_norm), sigma=self.sigma, source=source)

    def event(self) -> Event:
        """Gaussian noise of which a person is part only by chance."""
        if self.cohort == self.population:
            return GaussianEvent(1.0 / self.noise_multiplier)
        return SampledEvent(1.0 / self.noise_multiplier, self.cohort / self.population, self.sampling)

    def delta(self, epsilon: float) -> float:
        """The exact profile, with the sampler's errors."""
        return lattice_delta(self.event(), epsilon, self.dimension)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Everybody silent but one, whose update turns round (fixed) or is missing (poisson)."""
        with_one = np.zeros((self.population, self.dimension))
        with_one[0] = _largest(self.dimension, self.clip_norm)
        return (with_one, -with_one) if self.sampling == "fixed" else (with_one, with_one[1:])

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Three of ten people, in both ways of sampling."""
        return (
            cls(dimension=4, clip_norm=1.0, noise_multiplier=0.5, population=10, cohort=3, delta=1e-3),
            cls(
                dimension=4,
                clip_norm=1.0,
                noise_multiplier=0.5,
                population=10,
                cohort=3,
                delta=1e-3,
                sampling="poisson",
            ),
        )


class ElementwiseLaplace(Accounted[Doubles, Doubles]):
    """Every coordinate clipped to [-clip_value, clip_value], with Laplace noise (FedNewsRec).

    As published epsilon = 2 clip_value / scale, which is what one coordinate costs; a message has thousands
    of them.
    """

    name = "elementwise-laplace"

    def __init__(
        self, *, dimension: int, clip_value: float, epsilon: float, calibration: Calibration = "proven"
    ) -> None:
        self._set_calibration(calibration)
        whole(dimension=dimension)
        positive(clip_value=clip_value, epsilon=epsilon)
        self.unit, self.adjacency = "user", "replace-one"
        self.dimension, self.clip_value = dimension, clip_value
        self.sensitivity = Sensitivity(2.0 * clip_value * dimension, "L1")
        self.claimed_epsilon, self.claimed_delta = epsilon, 0.0
        proven = laplace_scale(epsilon, self.sensitivity.value, dimension)
        self.scale = proven if calibration == "proven" else 2.0 * clip_value / epsilon

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The messages of the devices `[..., dimension]`; one event each."""
        checked = vectors(self.dimension, update=value)
        clipped = np.clip(checked, -self.clip_value, self.clip_value)
        return add_laplace(clipped, scale=self.scale, source=source)

    def event(self) -> Event:
        """One Laplace release per coordinate: all of them may move at once."""
        one = LaplaceEvent(2.0 * self.clip_value / self.scale + sampler_epsilon(1))
        return repeated(one, self.dimension)

    def delta(self, epsilon: float) -> float:
        """Composed over the coordinates; 0 from the sum of their epsilons on."""
        total = self.sensitivity.value / self.scale + sampler_epsilon(self.dimension)
        return 0.0 if epsilon >= total * (1.0 - 1e-12) else super().delta(epsilon)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Every coordinate at its bound, and at the opposite one."""
        largest = np.full(self.dimension, self.clip_value)
        return largest, -largest

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Thirty coordinates, with the paper's clip 0.005 and scale 0.015."""
        return (
            cls(dimension=30, clip_value=0.005, epsilon=1.0),
            cls(dimension=30, clip_value=0.005, epsilon=2.0 / 3.0, calibration="as-published"),
        )


class RowwiseLaplace(Accounted[Doubles, Doubles]):
    """Every row of an update `[..., rows, width]` clipped in L2, with Laplace noise (eq. 10 of
    Priv-FedMF-Sub).

    As published the scale is Delta_f / epsilon with Delta_f = 2 clip_norm, an L2 distance; Laplace noise
    needs the L1 distance, sqrt(width) times as much, for every row.
    """

    name = "rowwise-laplace"

    def __init__(
        self, *, rows: int, width: int, clip_norm: float, epsilon: float, calibration: Calibration = "proven"
    ) -> None:
        self._set_calibration(calibration)
        whole(rows=rows, width=width)
        positive(epsilon=epsilon)
        self.unit, self.adjacency = "user", "replace-one"
        self.rows, self.width, self.clip_norm = rows, width, clip_norm
        self.row_sensitivity = clipped_l1(clip_norm, width, "replace-one")
        self.sensitivity = Sensitivity(rows * self.row_sensitivity, "L1")
        self.claimed_epsilon, self.claimed_delta = epsilon, 0.0
        proven = laplace_scale(epsilon, self.sensitivity.value, rows * width)
        self.scale = proven if calibration == "proven" else clipped_l2(clip_norm, "replace-one") / epsilon

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The rows of the devices, clipped, with noise; one event per device."""
        checked = vectors(self.width, update=value)
        if checked.ndim < 2 or checked.shape[-2] != self.rows:
            raise BadInput(f"update has shape {checked.shape}: it has to end with {self.rows} rows of {self.width}")
        clipped = clip_flat(checked, self.clip_norm)
        return add_laplace(clipped, scale=self.scale, source=source)

    def event(self) -> Event:
        """One release per row: the user's vector moves all of them at once."""
        row = LaplaceEvent(self.row_sensitivity / self.scale + sampler_epsilon(self.width))
        return repeated(row, self.rows)

    def delta(self, epsilon: float) -> float:
        """An upper bound, by the L1 distance; 0 from the sum over the rows on."""
        total = self.sensitivity.value / self.scale + sampler_epsilon(self.rows * self.width)
        return 0.0 if epsilon >= total * (1.0 - 1e-12) else super().delta(epsilon)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Flat rows of the largest norm, and their opposites."""
        largest = np.tile(_largest(self.width, self.clip_norm), (self.rows, 1))
        return largest, -largest

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Two rows as proven; one row of 32 as published."""
        return (
            cls(rows=2, width=32, clip_norm=1.0, epsilon=1.0),
            cls(rows=1, width=32, clip_norm=1.0, epsilon=0.4, calibration="as-published"),
        )
