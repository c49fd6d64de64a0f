"""Noise on whole numbers, drawn exactly: no floating point between the data and what is sent."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from veilrec.core.arrays import Doubles, Offsets
from veilrec.core.errors import BadInput
from veilrec.privacy.accounting.composition import rho_max
from veilrec.privacy.accounting.gaussian import smallest
from veilrec.privacy.checks import positive, probability, whole
from veilrec.privacy.events import PureEvent, ZcdpEvent
from veilrec.privacy.guarantee import Adjacency, Unit
from veilrec.privacy.mechanisms.base import Calibration, Mechanism, Sensitivity
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import discrete_gaussian, discrete_laplace

_STEP = 2**16  # variances and scales are multiples of 1 / _STEP, so that the exact samplers handle small integers
_LARGEST = 2**61


def _whole_vectors(dimension: int, value: ArrayLike) -> Offsets:
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iu":
        raise BadInput(f"value is of type {numbers.dtype}: give whole numbers, for instance counts")
    if numbers.ndim == 0 or numbers.shape[-1] != dimension:
        raise BadInput(f"value has shape {numbers.shape}: its last dimension has to be {dimension}")
    if numbers.size and max(-int(numbers.min()), int(numbers.max())) > _LARGEST:
        raise BadInput(f"value has an entry beyond {_LARGEST}: give smaller numbers")
    return numbers.astype(np.int64)


def _rounded_up(value: float) -> Fraction:
    return Fraction(math.ceil(value * _STEP), _STEP)


class _WholeNumbers(Mechanism[Offsets, Offsets]):
    """Vectors of whole numbers of which only the sensitivity is known."""

    dimension: int

    def worst_pair(self) -> tuple[Offsets, Offsets]:
        """Nothing, and the whole sensitivity in one number."""
        far = np.zeros(self.dimension, np.int64)
        far[0] = int(self.sensitivity.value)
        return np.zeros(self.dimension, np.int64), far


class DiscreteGaussian(_WholeNumbers):
    """Whole numbers plus a discrete Gaussian (Canonne, Kamath and Steinke 2020), by L2 sensitivity.

    It is rho-zCDP with rho = sensitivity^2 / (2 variance), and not as private as a Gaussian of that variance. Delta
    is summed up exactly for one release of one number; for vectors it is the bound that zCDP gives.
    """

    name = "discrete-gaussian"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven",)

    def __init__(
        self, *, dimension: int, sensitivity: float, epsilon: float, delta: float, unit: Unit, adjacency: Adjacency
    ) -> None:
        self._set_calibration("proven")
        whole(dimension=dimension)
        positive(sensitivity=sensitivity, epsilon=epsilon)
        probability(delta=delta)
        if dimension == 1 and sensitivity != int(sensitivity):
            raise BadInput(f"sensitivity is {sensitivity}: one whole number moves by a whole number")
        self.unit, self.adjacency = unit, adjacency
        self.dimension = dimension
        self.sensitivity = Sensitivity(sensitivity, "L2")
        self.claimed_epsilon, self.claimed_delta = epsilon, delta
        if dimension == 1:
            variance = smallest(lambda v: _delta_of_one(epsilon, int(sensitivity), v) <= delta, relative_tolerance=1e-9)
        else:
            variance = sensitivity**2 / (2.0 * rho_max(epsilon, delta))
        self.variance = _rounded_up(variance * (1.0 + 1e-9))

    def _perturb(self, value: Offsets, source: Source) -> Offsets:
        """The numbers with noise; one event per vector."""
        checked = _whole_vectors(self.dimension, value)
        noise = discrete_gaussian(source, checked.size, variance=self.variance)
        return checked + noise.reshape(checked.shape)

    def event(self) -> ZcdpEvent:
        """Zero-concentrated."""
        return ZcdpEvent(self.sensitivity.value**2 / (2.0 * float(self.variance)))

    def delta(self, epsilon: float) -> float:
        """Exact for one number, an upper bound for vectors."""
        if self.dimension == 1:
            return _delta_of_one(epsilon, int(self.sensitivity.value), float(self.variance))
        return super().delta(epsilon)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """One count, and a vector of five."""
        return (
            cls(dimension=1, sensitivity=1, epsilon=1.0, delta=1e-6, unit="user", adjacency="replace-one"),
            cls(dimension=5, sensitivity=2, epsilon=1.0, delta=1e-6, unit="user", adjacency="replace-one"),
        )


def discrete_gaussian_masses(variance: float) -> tuple[Offsets, Doubles]:
    """Support and probabilities of the discrete Gaussian, to the last bits."""
    reach = math.ceil(40.0 * math.sqrt(variance)) + 10
    support = np.arange(-reach, reach + 1)
    masses = np.exp(-(support.astype(np.float64) ** 2) / (2.0 * variance))
    return support, masses / masses.sum()


def _delta_of_one(epsilon: float, shift: int, variance: float) -> float:
    # P[X > t - shift / 2] - e^eps P[X > t + shift / 2], t = eps variance / shift (CKS, theorem 7)
    support, masses = discrete_gaussian_masses(variance)
    loss = (2.0 * support * shift + shift * shift) / (2.0 * variance)
    return float(np.sum(masses * -np.expm1(np.minimum(epsilon - loss, 0.0))))


class DiscreteLaplace(_WholeNumbers):
    """Whole numbers plus a discrete Laplace (two-sided geometric), by L1 sensitivity: pure epsilon."""

    name = "discrete-laplace"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven",)

    def __init__(self, *, dimension: int, sensitivity: int, epsilon: float, unit: Unit, adjacency: Adjacency) -> None:
        self._set_calibration("proven")
        whole(dimension=dimension, sensitivity=sensitivity)
        positive(epsilon=epsilon)
        self.unit, self.adjacency = unit, adjacency
        self.dimension = dimension
        self.sensitivity = Sensitivity(float(sensitivity), "L1")
        self.claimed_epsilon, self.claimed_delta = epsilon, 0.0
        self.scale = _rounded_up(sensitivity / epsilon)

    def _perturb(self, value: Offsets, source: Source) -> Offsets:
        """The numbers with noise; one event per vector."""
        checked = _whole_vectors(self.dimension, value)
        noise = discrete_laplace(source, checked.size, scale=self.scale)
        return checked + noise.reshape(checked.shape)

    def event(self) -> PureEvent:
        """Pure, not Laplace: for a shift by 1 it is as bad as randomised response, the worst there is."""
        return PureEvent(self.sensitivity.value / float(self.scale))

    def delta(self, epsilon: float) -> float:
        """Exact for one number; for vectors the bound of a pure mechanism."""
        if self.dimension > 1:
            return super().delta(epsilon)
        shift, ratio = int(self.sensitivity.value), math.exp(-1.0 / float(self.scale))
        top = shift / float(self.scale)
        # X <= 0 has loss `top`; X = x in 1..shift-1 has loss (shift - 2 x) / scale; the rest -top.
        inside = np.arange(1, shift)
        masses = np.concatenate(([1.0 / (1.0 + ratio)], (1.0 - ratio) / (1.0 + ratio) * ratio**inside))
        losses = np.concatenate(([top], (shift - 2.0 * inside) / float(self.scale)))
        return float(np.sum(masses * -np.expm1(np.minimum(epsilon - losses, 0.0))))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """One count, and three that one person can move by 2 in all."""
        return (
            cls(dimension=1, sensitivity=1, epsilon=1.0, unit="user", adjacency="replace-one"),
            cls(dimension=3, sensitivity=2, epsilon=1.0, unit="user", adjacency="replace-one"),
        )
