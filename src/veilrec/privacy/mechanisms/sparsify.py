"""Sending fewer coordinates: which ones must not depend on the data, or the choice gives the data away."""

from __future__ import annotations

import math
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from veilrec._arrays import Doubles, Offsets
from veilrec.errors import BadInput
from veilrec.privacy.checks import categories, positive, vectors, whole
from veilrec.privacy.events import Event, GaussianEvent, NonPrivateEvent
from veilrec.privacy.mechanism import Calibration, Sensitivity
from veilrec.privacy.mechanisms._accounted import Accounted
from veilrec.privacy.mechanisms.clipping import clip_flat
from veilrec.privacy.mechanisms.gaussian import lattice_delta, lattice_mu
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import add_gaussian
from veilrec.privacy.sensitivity import clipped_l2


def random_coordinates(dimension: int, kept: int, *, public_seed: int, round_number: int) -> Offsets:
    """The same `kept` of `dimension` coordinates on every side that knows the seed; ascending."""
    _check_kept(dimension, kept)
    generator = np.random.default_rng([public_seed, round_number])
    return np.sort(generator.choice(dimension, kept, replace=False)).astype(np.int64)


def expanded(values: Doubles, coordinates: Offsets, dimension: int, *, unbiased: bool) -> Doubles:
    """The kept coordinates `[..., k]` in their places; times dimension / k if they were chosen at random."""
    scale = dimension / len(coordinates) if unbiased else 1.0
    dense = np.zeros((*values.shape[:-1], dimension))
    dense[..., coordinates] = scale * values
    return dense


def _check_kept(dimension: int, kept: int) -> None:
    whole(dimension=dimension, kept=kept)
    if kept > dimension:
        raise BadInput(f"kept is {kept}: there are {dimension} coordinates")


class MaskedUpdate(Accounted[Doubles, Doubles]):
    """Public coordinates of an update, clipped together, with Gaussian noise.

    The coordinates come from a shared seed (`random_coordinates`) or from what the server knows already, such
    as the largest entries of the last noisy aggregate; one set per round, the same for everybody.
    """

    name = "masked-update"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven",)

    def __init__(
        self, *, dimension: int, coordinates: ArrayLike, clip_norm: float, epsilon: float, delta: float
    ) -> None:
        self._set_calibration("proven")
        whole(dimension=dimension)
        self.coordinates = np.atleast_1d(categories(dimension, coordinates=coordinates))
        if not self.coordinates.size or len(np.unique(self.coordinates)) < self.coordinates.size:
            raise BadInput("coordinates have to be at least one, each given once")
        self.unit, self.adjacency = "user", "replace-one"
        self.dimension, self.clip_norm = dimension, clip_norm
        self.sensitivity = Sensitivity(clipped_l2(clip_norm, "replace-one"), "L2")
        self.claimed_epsilon, self.claimed_delta = epsilon, delta
        self.sigma = self.sensitivity.value / lattice_mu(epsilon, delta, len(self.coordinates))

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The kept coordinates `[..., k]` of updates `[..., dimension]`; one event each."""
        checked = vectors(self.dimension, update=value)
        clipped = clip_flat(checked[..., self.coordinates], self.clip_norm)
        return add_gaussian(clipped, sigma=self.sigma, source=source)

    def event(self) -> GaussianEvent:
        """Gaussian, for any two updates."""
        return GaussianEvent(self.sensitivity.value / self.sigma)

    def delta(self, epsilon: float) -> float:
        """The exact profile, with the sampler's errors."""
        return lattice_delta(self.event(), epsilon, len(self.coordinates))

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """A flat update within the kept coordinates, and its opposite."""
        largest = np.zeros(self.dimension)
        largest[self.coordinates] = self.clip_norm / math.sqrt(len(self.coordinates))
        return largest, -largest

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Four of sixteen coordinates, at random."""
        coordinates = random_coordinates(16, 4, public_seed=1, round_number=1)
        return (cls(dimension=16, coordinates=coordinates, clip_norm=1.0, epsilon=2.0, delta=1e-6),)


class TopKUpdate(Accounted[Doubles, Doubles]):
    """The k largest entries of the raw update, with Gaussian noise on those only (Priv-FedNCF-Sub-Compress,
    eq. 13, 14).

    Which entries are sent is decided by the data and told exactly, so no noise makes it private. The paper
    clips twice, to C and then to P, which is one clip to the smaller of them.
    """

    name = "top-k-update"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("as-published",)

    def __init__(self, *, dimension: int, kept: int, clip_norm: float, noise_multiplier: float, epsilon: float) -> None:
        self._set_calibration("as-published")
        _check_kept(dimension, kept)
        positive(epsilon=epsilon, noise_multiplier=noise_multiplier)
        self.unit, self.adjacency = "user", "replace-one"
        self.dimension, self.kept, self.clip_norm = dimension, kept, clip_norm
        self.sensitivity = Sensitivity(clipped_l2(clip_norm, "replace-one"), "L2")
        self.sigma = noise_multiplier * clip_norm  # eq. 14: N(0, sigma^2 P^2), not tied to the epsilon that is claimed
        self.claimed_epsilon, self.claimed_delta = epsilon, 0.0

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """Updates `[..., dimension]` that are 0 outside the k entries that were largest; one event each."""
        checked = vectors(self.dimension, update=value)
        top = np.argpartition(-np.abs(checked), self.kept - 1, axis=-1)[..., : self.kept]
        clipped = clip_flat(np.take_along_axis(checked, top, axis=-1), self.clip_norm)
        sparse = np.zeros(checked.shape)
        np.put_along_axis(sparse, top, add_gaussian(clipped, sigma=self.sigma, source=source), axis=-1)
        return sparse

    def event(self) -> Event:
        """In the clear, unless everything is sent."""
        if self.kept == self.dimension:
            return GaussianEvent(self.sensitivity.value / self.sigma)
        return NonPrivateEvent()

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Two updates whose largest entries are in different places."""
        first, second = np.zeros(self.dimension), np.zeros(self.dimension)
        first[: self.kept] = self.clip_norm / math.sqrt(self.kept)
        second[-self.kept :] = self.clip_norm / math.sqrt(self.kept)
        return first, second

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Two of eight entries under heavy noise."""
        return (cls(dimension=8, kept=2, clip_norm=1.0, noise_multiplier=10.0, epsilon=2.0),)
