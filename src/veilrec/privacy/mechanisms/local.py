"""Noise on every message, added on the client: it trusts nobody, and costs accuracy accordingly."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar, Literal, Self

import numpy as np

from veilrec.core.arrays import Doubles, Floats, Offsets
from veilrec.core.errors import BadInput
from veilrec.core.schema import ClientUpdates, RoundSpec, Schema, Tensor, copied, filled
from veilrec.privacy.checks import clipped_l1, clipped_l2, positive, probability, whole
from veilrec.privacy.events import ComposedEvent, Event, GaussianEvent, LaplaceEvent, NonPrivateEvent, repeated
from veilrec.privacy.mechanisms import base
from veilrec.privacy.mechanisms.base import Calibration, Sensitivity
from veilrec.privacy.mechanisms.clipping import clip_rows, update_norms
from veilrec.privacy.mechanisms.sums import ClippedWhole, UpdateMechanism, noise_of_sum, noisy_messages
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import Law

_NOISE_REACH = 64.0  # scales
SensitivityTaken = Literal["C", "2C"]  # as published, of a clip to C: what papers write as Delta_f
CLIP_NORMS: dict[SensitivityTaken, float] = {"C": 1.0, "2C": 2.0}
_EXAMPLE = Schema((Tensor("rows", (3, 4), by_row=True), Tensor("layer", (4,), by_row=False)))


class NoisyMessage(UpdateMechanism):
    """What mechanisms share that fill a message with noise of one law and scale."""

    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven", "as-published")
    law: Law
    scale: float  # of Laplace noise, or the standard deviation of Gaussian noise
    clip_norm: float  # that no number of a message exceeds before the noise
    noise_on: Literal["nothing", "message", "share", "sum"] = "message"
    fills_messages = True

    def perturb(self, bounded: ClientUpdates, spec: RoundSpec, source: Source) -> ClientUpdates:
        """Fill the messages and add noise to every entry."""
        return self.add_noise(filled(bounded, spec.view(self.schema)), source)

    def add_noise(self, updates: ClientUpdates, source: Source) -> ClientUpdates:
        """Noise on everything that the messages carry."""
        return noisy_messages(updates, law=self.law, scale=self.scale, source=source)

    def reach(self, tensor: Tensor, spec: RoundSpec, weight: int = 1) -> float:
        """Noise has no end: a sum takes it up to 64 scales, one draw in 10^27; what is cut off was told already."""
        return weight * (self.clip_norm + _NOISE_REACH * self.scale)

    def noise_of_messages(
        self, view: Schema, weights: Doubles | Offsets, generator: np.random.Generator
    ) -> dict[str, Floats]:
        """The sum of the noise of all clients."""
        return noise_of_sum(view, weights, generator, law=self.law, scale=self.scale)


class UpdateNoise(NoisyMessage, ClippedWhole):
    """A user's whole update, clipped to one L2 norm, with Gaussian noise.

    As published (Priv-FedNCF-Sub-Compress, eq. 14, whose sigma is not tied to its epsilon) the noise is that of the
    textbook formula with the sensitivity that is taken (C or 2C); two clipped updates are up to 2 C apart. The tensors
    named by `deep` may have a clip of their own (Algorithm 3, lines 5 and 6): then they are up to sqrt(8) C apart.
    """

    name = "update-noise"
    law = "gaussian"

    def __init__(
        self,
        *,
        schema: Schema,
        clip_norm: float,
        epsilon: float,
        delta: float,
        calibration: Calibration = "proven",
        taken: SensitivityTaken = "C",
        deep: tuple[str, ...] = (),
    ) -> None:
        self._set_calibration(calibration)
        positive(clip_norm=clip_norm, epsilon=epsilon)
        probability(delta=delta)
        self.unit, self.adjacency = "user", "replace-one"
        self.schema, self.clip_norm, self.deep = schema, clip_norm, deep
        parts = 2.0 if deep else 1.0
        self.sensitivity = Sensitivity(clipped_l2(clip_norm, "replace-one") * math.sqrt(parts), "L2")
        self.claimed_epsilon, self.claimed_delta = epsilon, delta
        if calibration == "proven":
            # Cutting towards zero keeps the norm, so the lattice costs nothing here.
            self.scale = self.sensitivity.value / base.lattice_mu(epsilon, delta, self.dimension)
        else:
            self.scale = base.classical_sigma(epsilon, delta, CLIP_NORMS[taken] * clip_norm)

    def bound(self, updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
        """Scale down the whole update, or its shallow and its deep part by themselves."""
        if not self.deep:
            return super().bound(updates, spec)
        deep = {name: values for name, values in updates.dense.items() if name in self.deep}
        shallow = {name: values for name, values in updates.dense.items() if name not in self.deep}
        first = super().bound(replace(updates, dense=shallow), spec)
        second = super().bound(ClientUpdates(updates.round_number, updates.count, dense=deep), spec)
        return replace(first, dense={name: {**first.dense, **second.dense}[name] for name in updates.dense})

    def event(self) -> GaussianEvent:
        """Gaussian, for any two updates."""
        return GaussianEvent(self.sensitivity.value / self.scale)

    def delta(self, epsilon: float) -> float:
        """The exact profile, with the sampler's errors."""
        return base.lattice_delta(self.event(), epsilon, self.dimension)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Sixteen parameters at epsilon 2, as proven and by the textbook."""
        return (
            cls(schema=_EXAMPLE, clip_norm=1.0, epsilon=2.0, delta=1e-6),
            cls(schema=_EXAMPLE, clip_norm=1.0, epsilon=2.0, delta=1e-5, calibration="as-published"),
        )


class _ClippedLaplace(NoisyMessage):
    """Laplace noise on updates that are clipped in L2; as published, the scale is that of the L2 distance."""

    law = "laplace"

    def __init__(
        self,
        *,
        schema: Schema,
        clip_norm: float,
        epsilon: float,
        calibration: Calibration = "proven",
        taken: SensitivityTaken = "2C",
    ) -> None:
        self._set_calibration(calibration)
        positive(clip_norm=clip_norm, epsilon=epsilon)
        self.unit, self.adjacency = "user", "replace-one"
        self.schema, self.clip_norm = schema, clip_norm
        self.sensitivity = Sensitivity(self._l1_distance(), "L1")
        self.claimed_epsilon, self.claimed_delta = epsilon, 0.0
        if calibration == "proven":
            self.scale = base.laplace_scale(epsilon, self.sensitivity.value, self.dimension)
        else:
            self.scale = CLIP_NORMS[taken] * clip_norm / epsilon

    @abstractmethod
    def _l1_distance(self) -> float:
        """Return the largest L1 distance of two clipped updates."""


class UpdateLaplace(_ClippedLaplace, ClippedWhole):
    """A user's whole update, clipped to one L2 norm, with Laplace noise on every number (PrivateRec's DP-FedRec).

    As published the scale is 2 clip_norm / epsilon, which is right for one number; the numbers of two clipped updates
    are up to 2 clip_norm sqrt(numbers) apart in L1.
    """

    name = "update-laplace"

    def _l1_distance(self) -> float:
        return clipped_l1(self.clip_norm, self.dimension, "replace-one")

    def event(self) -> LaplaceEvent:
        """By the L1 distance of any two updates."""
        return LaplaceEvent(self.sensitivity.value / self.scale + base.sampler_epsilon(self.dimension))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Sixteen numbers as proven and as published."""
        return tuple(cls(schema=_EXAMPLE, clip_norm=0.005, epsilon=1.0, calibration=way) for way in cls.calibrations)


class RowwiseLaplace(_ClippedLaplace):
    """Every row of an update clipped in L2, with Laplace noise (eq. 10 of Priv-FedMF-Sub).

    As published the scale is Delta_f / epsilon with the Delta_f that is taken, C or 2C; Laplace noise needs the L1
    distance, 2 C sqrt(width), for every row. Where a message adds up the uploads of several local epochs (Algorithm 2,
    client, lines 6 and 7), each of them is clipped to C and has noise of its own, at its share of epsilon.
    """

    name = "rowwise-laplace"

    def __init__(
        self,
        *,
        schema: Schema,
        clip_norm: float,
        epsilon: float,
        calibration: Calibration = "proven",
        taken: SensitivityTaken = "2C",
        uploads: int = 1,
    ) -> None:
        whole(uploads=uploads)
        if calibration == "proven" and uploads > 1:
            raise BadInput("several uploads in one message are of the noise as published: use uploads=1")
        self.uploads = uploads
        super().__init__(
            schema=schema, clip_norm=uploads * clip_norm, epsilon=epsilon, calibration=calibration, taken=taken
        )

    def add_noise(self, updates: ClientUpdates, source: Source) -> ClientUpdates:
        """One draw for every upload."""
        for _ in range(self.uploads):
            updates = super().add_noise(updates, source)
        return updates

    def noise_of_messages(
        self, view: Schema, weights: Doubles | Offsets, generator: np.random.Generator
    ) -> dict[str, Floats]:
        """The sum of the noise of all uploads of all clients."""
        of_uploads = np.repeat(np.asarray(weights, np.float64), self.uploads)
        return super().noise_of_messages(view, of_uploads, generator)

    def reach(self, tensor: Tensor, spec: RoundSpec, weight: int = 1) -> float:
        """As of one upload, so many times."""
        return weight * (self.clip_norm + self.uploads * _NOISE_REACH * self.scale)

    def _l1_distance(self) -> float:
        return sum(t.shape[0] * self._of_row(t) for t in self.schema.tensors)

    def _of_row(self, table: Tensor) -> float:
        """L1 distance of two rows."""
        return clipped_l1(self.clip_norm, table.shape[1], "replace-one")

    def bound(self, updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
        """Scale down every row that is longer than the bound."""
        kept = copied(updates)
        for rows in kept.tables.values():
            clip_rows(rows.values, self.clip_norm)
        return kept

    def event(self) -> Event:
        """One release per row and upload: the user's vector moves all of them at once."""
        each = (
            (self._of_row(t) / self.uploads / self.scale + base.sampler_epsilon(t.shape[1]), t.shape[0])
            for t in self.schema.tables
        )
        return ComposedEvent(tuple((LaplaceEvent(epsilon), self.uploads * rows) for epsilon, rows in each))

    def delta(self, epsilon: float) -> float:
        """An upper bound, by the L1 distance; 0 from the sum over the rows on."""
        total = self.sensitivity.value / self.scale + self.uploads * base.sampler_epsilon(self.dimension)
        return 0.0 if epsilon >= total * (1.0 - 1e-12) else super().delta(epsilon)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Flat rows of the largest norm, and their opposites."""
        rows = [np.full(t.size, self.clip_norm / math.sqrt(t.shape[1])) for t in self.schema.tensors]
        largest = np.concatenate(rows)
        return largest, -largest

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Two rows as proven; one row of 32 as published."""
        two, one = (Schema((Tensor("items", (rows, 32), by_row=True),)) for rows in (2, 1))
        return (
            cls(schema=two, clip_norm=1.0, epsilon=1.0),
            cls(schema=one, clip_norm=1.0, epsilon=0.4, calibration="as-published"),
        )


class ElementwiseLaplace(NoisyMessage):
    """Every number clipped to [-clip_value, clip_value], with Laplace noise (FedNewsRec, eq. 4 and 5).

    As published epsilon = 2 clip_value / scale, which is what one number costs; a message has thousands of them.
    """

    name = "elementwise-laplace"
    law = "laplace"

    def __init__(self, *, schema: Schema, clip_value: float, epsilon: float) -> None:
        self._state(schema, clip_value, epsilon, "proven")
        positive(epsilon=epsilon)
        self.scale = base.laplace_scale(epsilon, self.sensitivity.value, self.dimension)

    @classmethod
    def published(cls, *, schema: Schema, clip_value: float, scale: float) -> Self:
        """The paper's delta (of eq. 4) and lambda (of eq. 5); without noise where lambda is 0."""
        positive(clip_value=clip_value)
        made = cls.__new__(cls)
        made._state(schema, clip_value, 2.0 * clip_value / scale if scale > 0.0 else math.inf, "as-published")
        made.scale = scale
        made.fills_messages = scale > 0.0
        made.noise_on = "message" if scale > 0.0 else "nothing"
        return made

    def _state(self, schema: Schema, clip_value: float, epsilon: float, calibration: Calibration) -> None:
        self._set_calibration(calibration)
        positive(clip_value=clip_value)
        self.unit, self.adjacency = "user", "replace-one"
        self.schema, self.clip_value, self.clip_norm = schema, clip_value, clip_value
        self.sensitivity = Sensitivity(2.0 * clip_value * self.dimension, "L1")
        self.claimed_epsilon, self.claimed_delta = epsilon, 0.0

    def bound(self, updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
        """Clip every entry."""
        update_norms(updates)  # refuses what is not finite
        most = np.float32(self.clip_value)
        kept = copied(updates)
        for values in (*(rows.values for rows in kept.tables.values()), *kept.dense.values()):
            np.clip(values, -most, most, out=values)
        return kept

    def perturb(self, bounded: ClientUpdates, spec: RoundSpec, source: Source) -> ClientUpdates:
        """Fill the messages and add noise to every entry, where there is noise."""
        return super().perturb(bounded, spec, source) if self.scale > 0.0 else bounded

    def noise_of_messages(
        self, view: Schema, weights: Doubles | Offsets, generator: np.random.Generator
    ) -> dict[str, Floats]:
        """The sum of the noise of all clients, where there is noise."""
        return super().noise_of_messages(view, weights, generator) if self.scale > 0.0 else {}

    def event(self) -> Event:
        """One Laplace release per number: all of them may move at once."""
        if self.scale == 0.0:
            return NonPrivateEvent()
        one = LaplaceEvent(2.0 * self.clip_value / self.scale + base.sampler_epsilon(1))
        return repeated(one, self.dimension)

    def delta(self, epsilon: float) -> float:
        """Composed over the numbers; 0 from the sum of their epsilons on."""
        total = self.sensitivity.value / self.scale + base.sampler_epsilon(self.dimension)
        return 0.0 if epsilon >= total * (1.0 - 1e-12) else super().delta(epsilon)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Every number at its bound, and at the opposite one."""
        largest = np.full(self.dimension, self.clip_value)
        return largest, -largest

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Thirty numbers, with the paper's clip 0.005 and scale 0.015."""
        schema = Schema((Tensor("words", (5, 4), by_row=True), Tensor("layer", (10,), by_row=False)))
        return (
            cls(schema=schema, clip_value=0.005, epsilon=1.0),
            cls.published(schema=schema, clip_value=0.005, scale=0.015),
        )
