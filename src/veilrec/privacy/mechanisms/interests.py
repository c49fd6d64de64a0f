"""What a client may say of a user's interests instead of a noisy attention vector."""

from __future__ import annotations

import math
from typing import ClassVar, Self

import numpy as np

from veilrec.core.arrays import Doubles, Offsets
from veilrec.core.errors import BadInput
from veilrec.privacy.checks import clipped_l1, clipped_l2, finite, pooled_l2, positive, vectors, whole
from veilrec.privacy.events import Event, GaussianEvent, LaplaceEvent, ResponseEvent
from veilrec.privacy.guarantee import Adjacency
from veilrec.privacy.mechanisms import base
from veilrec.privacy.mechanisms.attention import ClickHistories, Noise, calibrated
from veilrec.privacy.mechanisms.base import Calibration, Mechanism, Sensitivity
from veilrec.privacy.mechanisms.clipping import clip_flat
from veilrec.privacy.mechanisms.responses import KaryResponse
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import add_gaussian, add_noise

_FAR = 10.0  # times what a whole history may come to


class InterestResponse(Mechanism[Doubles, Offsets]):
    """The number of the strongest interest, by k-ary response: the better choice up to epsilon 5 or so."""

    name = "interest-response"

    def __init__(self, *, basis: int, epsilon: float) -> None:
        self.response = KaryResponse(categories=basis, epsilon=epsilon, unit="history")
        base.take_terms(self, self.response)

    def _perturb(self, value: Doubles, source: Source) -> Offsets:
        """An interest per attention vector `[..., B]`; one event each."""
        checked = vectors(self.response.categories, attention=value)
        return self.response.release(checked.argmax(axis=-1), source).value

    def event(self) -> ResponseEvent:
        """One response among so many interests, which several of them compose better than as any pure mechanism."""
        return ResponseEvent(self.claimed_epsilon, self.response.categories)

    def delta(self, epsilon: float) -> float:
        """Exact."""
        return self.response.delta(epsilon)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Histories with two different strongest interests."""
        first, second = np.eye(self.response.categories)[:2]
        return first, second

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Five interests."""
        return (cls(basis=5, epsilon=1.0),)


class PooledInterest(Mechanism[Doubles | ClickHistories, Doubles]):
    """(1 / slots) * sum over clicks of P clip(r), with Gaussian noise: for one click, 35 times less than the
    diameter.

    `projection` P `[k, d]` is public and shrinks (its largest singular value is at most 1); the denominator
    is fixed, an absent click counts 0. The server takes the softmax. The guarantee is for one click, not for
    the history.
    """

    name = "pooled-interest"

    def __init__(
        self,
        *,
        projection: Doubles,
        clip_norm: float,
        slots: int,
        epsilon: float,
        delta: float,
        adjacency: Adjacency = "replace-one",
    ) -> None:
        finite(projection=projection)
        if projection.ndim != 2 or np.linalg.norm(projection, 2) > 1.0 + 1e-9:
            raise BadInput("projection has to be a matrix whose largest singular value is at most 1")
        self.unit, self.adjacency = "click", adjacency
        self.projection, self.clip_norm, self.slots = projection / (1.0 + 1e-9), clip_norm, slots
        self.sensitivity = Sensitivity(pooled_l2(clip_norm, slots, adjacency), "L2")
        self.claimed_epsilon, self.claimed_delta = epsilon, delta
        self.sigma = base.lattice_sigma(epsilon, delta, self.sensitivity.value, len(projection))

    def _perturb(self, value: Doubles | ClickHistories, source: Source) -> Doubles:
        """The noisy pooled vector `[k]` of one history `[clicks, d]`, or those of many clients, `[clients, k]`."""
        return add_gaussian(self.pooled(value), sigma=self.sigma, source=source)

    def _perturb_many(self, value: Doubles | ClickHistories, count: int, source: Source) -> Doubles:
        """Release one history many times, `[count, k]`."""
        pooled = self.pooled(value)
        same = np.broadcast_to(pooled, (count, *pooled.shape))
        return add_gaussian(same, sigma=self.sigma, source=source)

    def pooled(self, history: Doubles | ClickHistories) -> Doubles:
        """The pooled vectors of histories of at most `slots` clicks, before noise."""
        if isinstance(history, ClickHistories):
            return self._pooled(history)
        clicks = vectors(self.projection.shape[1], history=history)
        if clicks.ndim != 2:
            raise BadInput(f"history has shape {clicks.shape}: give at most {self.slots} clicks")
        only: Doubles = self._pooled(ClickHistories.of(clicks))[0]
        return only

    def _pooled(self, clicks: ClickHistories) -> Doubles:
        table = vectors(self.projection.shape[1], table=clicks.table)
        longest = int(np.diff(clicks.offsets).max(initial=0))
        if longest > self.slots:
            raise BadInput(f"a history has {longest} clicks: give at most {self.slots} clicks")
        return np.asarray(clicks.sums(clip_flat(table, self.clip_norm) @ self.projection.T) / self.slots)

    def event(self) -> GaussianEvent:
        """Gaussian, the lattice included."""
        return base.lattice_event(self.sensitivity.value, len(self.projection), self.sigma)

    def delta(self, epsilon: float) -> float:
        """The exact profile, with the sampler's errors."""
        return base.lattice_delta(self.event(), epsilon, len(self.projection))

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """A full history along what the projection keeps best; the longest click points elsewhere, or is left out.

        That click is far longer than the bound, which has to hold for every click and not for their sum.
        """
        direction = np.linalg.svd(self.projection)[2][0] * self.clip_norm
        others = np.tile(-direction, (self.slots - 1, 1))
        longest = _FAR * self.slots * direction[np.newaxis]
        if self.adjacency == "add-remove":
            return np.concatenate([longest, others]), others
        return np.concatenate([longest, others]), np.concatenate([-longest, others])

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Five interests, fifty slots."""
        return (
            cls(projection=np.eye(5, 8), clip_norm=1.0, slots=50, epsilon=1.0, delta=1e-6),
            cls(projection=np.eye(5, 8), clip_norm=1.0, slots=50, epsilon=1.0, delta=1e-6, adjacency="add-remove"),
        )


class EmbeddingNoise(Mechanism[Doubles, Doubles]):
    """Noise on the clipped user embedding itself `[..., d]`: PrivateRec's baseline VDP.

    As published the Gaussian's delta is divided by 1 - p although nothing is padded, and Laplace noise is
    scaled to the L2 sensitivity 2 theta, sqrt(d) times too little.
    """

    name = "embedding-noise"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven", "as-published")

    def __init__(
        self,
        *,
        dimension: int,
        clip_norm: float,
        epsilon: float,
        delta: float,
        noise: Noise = "gaussian",
        published_pad_probability: float = 0.0,
        calibration: Calibration = "proven",
    ) -> None:
        self._set_calibration(calibration)
        whole(dimension=dimension)
        positive(epsilon=epsilon)
        self.unit, self.adjacency = "history", "replace-one"
        self.dimension, self.clip_norm, self.noise = dimension, clip_norm, noise
        self.claimed_epsilon, self.claimed_delta = epsilon, delta
        l2, l1 = clipped_l2(clip_norm, "replace-one"), clipped_l1(clip_norm, dimension, "replace-one")
        published = (l2, delta / (1.0 - published_pad_probability)) if calibration == "as-published" else None
        self.sensitivity, self.scale = calibrated(
            noise, l2=l2, l1=l1, dimension=dimension, epsilon=epsilon, delta=delta, published=published
        )

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The clipped embeddings with noise; one event per vector."""
        clipped = clip_flat(vectors(self.dimension, embedding=value), self.clip_norm)
        return add_noise(clipped, law=self.noise, scale=self.scale, source=source)

    def event(self) -> Event:
        """Privacy event of the noise, for the diameter of the clipping ball."""
        ratio = self.sensitivity.value / self.scale
        if self.noise == "gaussian":
            return GaussianEvent(ratio)
        return LaplaceEvent(ratio + base.sampler_epsilon(self.dimension))

    def delta(self, epsilon: float) -> float:
        """Exact for Gaussian noise; for Laplace the bound by L1 sensitivity."""
        if self.noise == "gaussian":
            return base.lattice_delta(self.event(), epsilon, self.dimension)
        return super().delta(epsilon)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """A flat vector of the largest norm, and its opposite."""
        flat = np.full(self.dimension, self.clip_norm / math.sqrt(self.dimension))
        return flat, -flat

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Proven with either noise; as published with Laplace noise in 25 dimensions, 5 times too little."""
        return (
            cls(dimension=25, clip_norm=1.0, epsilon=1.0, delta=1e-6),
            cls(dimension=25, clip_norm=1.0, epsilon=1.0, delta=0.0, noise="laplace"),
            cls(dimension=25, clip_norm=1.0, epsilon=1.0, delta=0.0, noise="laplace", calibration="as-published"),
        )
