"""Gaussian and Laplace noise on vectors, on a lattice whose step is a 2^20th of the noise."""

from __future__ import annotations

import math
from typing import ClassVar, Self

import numpy as np

from veilrec.core.arrays import Doubles
from veilrec.core.errors import BadInput
from veilrec.privacy.accounting.accountant import delta_of
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.privacy.checks import on_lattice_l1, on_lattice_l2, positive, probability, vectors, whole
from veilrec.privacy.events import Event, GaussianEvent, LaplaceEvent
from veilrec.privacy.guarantee import Adjacency, Unit
from veilrec.privacy.mechanisms.base import Calibration, Mechanism, Sensitivity
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import RELATIVE_ERROR, UNITS, add_gaussian, add_laplace


def lattice_delta(event: Event, epsilon: float, dimension: int, *, error: float = RELATIVE_ERROR) -> float:
    """Profile of Gaussian noise as our sampler draws it: that of the event, and what the sampler's errors add.

    Every probability of a vector is off by a factor between e^-s and e^s, s = dimension * error. So with
    ideal distributions P, Q and drawn ones P', Q': P'(S) <= e^s P(S) <= e^s (e^eps Q(S) + delta(eps)) <=
    e^(eps + 2 s) Q'(S) + e^s delta(eps), for every event S.
    """
    shift = dimension * error
    ideal = epsilon - 2.0 * shift
    # delta(-t) <= t + delta(0): below 0 every distribution pays for the missing part of epsilon.
    return min(1.0, math.exp(shift) * (delta_of(event, max(ideal, 0.0)) + max(-ideal, 0.0)))


def left_by_sampler(epsilon: float, delta: float, draws: int) -> tuple[float, float]:
    """What the errors of so many draws leave of a budget (epsilon, delta) for ideal noise."""
    positive(epsilon=epsilon)
    probability(delta=delta)
    whole(dimension=draws)
    shift = draws * RELATIVE_ERROR
    if epsilon <= 2.0 * shift:
        raise BadInput(
            f"epsilon {epsilon} is too small for {draws} coordinates: the sampler alone spends {2.0 * shift:g}; "
            "give a larger one"
        )
    return epsilon - 2.0 * shift, delta * math.exp(-shift)


def lattice_mu(epsilon: float, delta: float, dimension: int) -> float:
    """The largest sensitivity / sigma with `lattice_delta(epsilon) <= delta`."""
    return mu_for(*left_by_sampler(epsilon, delta, dimension))


def lattice_sigma(epsilon: float, delta: float, sensitivity: float, dimension: int) -> float:
    """Standard deviation for vectors of which only the sensitivity is known: it pays for the lattice."""
    mu, rounding = lattice_mu(epsilon, delta, dimension), math.sqrt(dimension) / UNITS
    if mu <= 2.0 * rounding:
        raise BadInput(
            f"epsilon {epsilon} and delta {delta} are too small for {dimension} coordinates: they would go "
            "into rounding; give larger ones"
        )
    return sensitivity / (mu - rounding)


def classical_sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """The textbook formula that papers use at any epsilon, proved for epsilon < 1 only."""
    positive(epsilon=epsilon, sensitivity=sensitivity)
    probability(delta=delta)
    return sensitivity / epsilon * math.sqrt(2.0 * math.log(1.25 / delta))


class Gaussian(Mechanism[Doubles, Doubles]):
    """Any vector of which only the L2 sensitivity is known; `[n, dimension]` holds the vectors of n devices.

    Nothing is assumed of where the vectors lie, so cutting them to the lattice may part two of them by a
    further sqrt(dimension) steps; the noise pays for it.
    """

    name = "gaussian"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven", "as-published")

    def __init__(
        self,
        *,
        dimension: int,
        sensitivity: float,
        epsilon: float,
        delta: float,
        unit: Unit,
        adjacency: Adjacency,
        calibration: Calibration = "proven",
    ) -> None:
        self._set_calibration(calibration)
        positive(sensitivity=sensitivity)
        self.unit, self.adjacency = unit, adjacency
        self.dimension = dimension
        self.sensitivity = Sensitivity(sensitivity, "L2")
        self.claimed_epsilon, self.claimed_delta = epsilon, delta
        if calibration == "as-published":
            whole(dimension=dimension)
            self.sigma = classical_sigma(epsilon, delta, sensitivity)
        else:
            self.sigma = lattice_sigma(epsilon, delta, sensitivity, dimension)

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The vectors with noise, on the lattice; one event per vector."""
        checked = vectors(self.dimension, value=value)
        return add_gaussian(checked, sigma=self.sigma, source=source)

    def event(self) -> GaussianEvent:
        """Gaussian, the lattice included."""
        moved = on_lattice_l2(self.sensitivity.value, self.dimension, self.sigma / UNITS)
        return GaussianEvent(moved / self.sigma)

    def delta(self, epsilon: float) -> float:
        """The exact profile, with the sampler's errors."""
        return lattice_delta(self.event(), epsilon, self.dimension)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Nothing, and everything in one coordinate: only the distance matters."""
        far = np.zeros(self.dimension)
        far[0] = self.sensitivity.value
        return np.zeros(self.dimension), far

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """At epsilon 1 as proven; at epsilon 10 as papers do it."""
        return (
            cls(dimension=5, sensitivity=1.0, epsilon=1.0, delta=1e-6, unit="user", adjacency="replace-one"),
            cls(
                dimension=5,
                sensitivity=1.0,
                epsilon=10.0,
                delta=1e-3,
                unit="user",
                adjacency="replace-one",
                calibration="as-published",
            ),
        )


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


class Laplace(Mechanism[Doubles, Doubles]):
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
