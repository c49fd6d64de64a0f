"""Gaussian noise on the lattice of step sigma / 2^20."""

from __future__ import annotations

import math
from typing import ClassVar, Self

import numpy as np

from veilrec._arrays import Doubles
from veilrec.errors import BadInput
from veilrec.privacy.accounting.accountant import delta_of
from veilrec.privacy.checks import positive, probability, vectors, whole
from veilrec.privacy.events import Event, GaussianEvent
from veilrec.privacy.gaussian import mu_for
from veilrec.privacy.guarantee import Adjacency, Unit
from veilrec.privacy.mechanism import Calibration, Sensitivity
from veilrec.privacy.mechanisms._accounted import Accounted
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import RELATIVE_ERROR, TAIL_ERROR, UNITS, add_gaussian
from veilrec.privacy.sensitivity import on_lattice_l2


def lattice_delta(event: Event, epsilon: float, dimension: int) -> float:
    """Profile of Gaussian noise as our sampler draws it: that of the event, and what the sampler's errors can
    add.

    A factor of 1 + RELATIVE_ERROR on every probability of every coordinate shifts epsilon; the lost tail adds
    to delta.
    """
    shift = dimension * RELATIVE_ERROR
    ideal = delta_of(event, max(epsilon - 2.0 * shift, 0.0))
    return min(1.0, math.exp(shift) * ideal + dimension * TAIL_ERROR)


def left_by_sampler(epsilon: float, delta: float, draws: int) -> tuple[float, float]:
    """What the errors of so many draws leave of a budget (epsilon, delta) for ideal noise."""
    positive(epsilon=epsilon)
    probability(delta=delta)
    whole(dimension=draws)
    shift = draws * RELATIVE_ERROR
    left = (delta - draws * TAIL_ERROR) * math.exp(-shift)
    if not (left > 0.0 and epsilon > 2.0 * shift):
        raise BadInput(
            f"epsilon {epsilon} and delta {delta} are too small for {draws} coordinates: the sampler "
            f"alone spends delta {draws * TAIL_ERROR:g}; give larger ones"
        )
    return epsilon - 2.0 * shift, left


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


class Gaussian(Accounted[Doubles, Doubles]):
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
