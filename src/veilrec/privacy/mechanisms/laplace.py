"""Laplace noise on the lattice of step scale / 2^20, for vectors with a known L1 sensitivity."""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np

from veilrec._arrays import Doubles
from veilrec.errors import BadInput
from veilrec.privacy.checks import positive, vectors, whole
from veilrec.privacy.events import LaplaceEvent
from veilrec.privacy.guarantee import Adjacency, Unit
from veilrec.privacy.mechanism import Calibration, Sensitivity
from veilrec.privacy.mechanisms._accounted import Accounted
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import RELATIVE_ERROR, UNITS, add_laplace
from veilrec.privacy.sensitivity import on_lattice_l1


def sampler_epsilon(dimension: int) -> float:
    """What the sampler's relative error can add to the epsilon of one vector."""
    return 2.0 * dimension * RELATIVE_ERROR


def laplace_scale(epsilon: float, sensitivity: float, dimension: int, *, rounding: float = 0.0) -> float:
    """The scale that makes one vector epsilon-private; `rounding` is the epsilon that the lattice costs."""
    positive(epsilon=epsilon, sensitivity=sensitivity)
    whole(dimension=dimension)
    left = epsilon - rounding - sampler_epsilon(dimension)
    if left <= 0.5 * epsilon:
        raise BadInput(
            f"epsilon {epsilon} is too small for {dimension} coordinates: most of it would go into rounding; "
            "give a larger one"
        )
    return sensitivity / left


class Laplace(Accounted[Doubles, Doubles]):
    """Any vector of which only the L1 sensitivity is known; `[n, dimension]` holds the vectors of n devices.

    Over all pairs at this L1 distance, one coordinate that carries all of it is the worst, at every epsilon:
    a test on two coordinates with shifts a and b is no better than one on a single coordinate with shift a +
    b, because Laplace trade-off functions of adjacent shifts chain.
    """

    name = "laplace"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven",)

    def __init__(self, *, dimension: int, sensitivity: float, epsilon: float, unit: Unit, adjacency: Adjacency) -> None:
        self._set_calibration("proven")
        self.unit, self.adjacency = unit, adjacency
        self.dimension = dimension
        self.sensitivity = Sensitivity(sensitivity, "L1")
        self.claimed_epsilon, self.claimed_delta = epsilon, 0.0
        self.scale = laplace_scale(epsilon, sensitivity, dimension, rounding=dimension / UNITS)

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The vectors with noise, on the lattice; one event per vector."""
        checked = vectors(self.dimension, value=value)
        return add_laplace(checked, scale=self.scale, source=source)

    def event(self) -> LaplaceEvent:
        """Laplace, the lattice and the sampler included."""
        moved = on_lattice_l1(self.sensitivity.value, self.dimension, self.scale / UNITS)
        return LaplaceEvent(moved / self.scale + sampler_epsilon(self.dimension))

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Nothing, and the whole sensitivity in one coordinate."""
        far = np.zeros(self.dimension)
        far[0] = self.sensitivity.value
        return np.zeros(self.dimension), far

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Five coordinates at epsilon 1."""
        return (cls(dimension=5, sensitivity=2.0, epsilon=1.0, unit="user", adjacency="replace-one"),)
