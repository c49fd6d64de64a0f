"""What every mechanism has to declare before it may touch anybody's data, and what all of them share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np

from veilrec.core.arrays import Doubles, Offsets
from veilrec.core.errors import BadInput, unknown_name
from veilrec.privacy.accounting.accountant import delta_of
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.privacy.checks import on_lattice_l1, on_lattice_l2, positive, probability, vectors, whole
from veilrec.privacy.events import Event, GaussianEvent, LaplaceEvent, repeated
from veilrec.privacy.guarantee import Adjacency, Scope, Trust, Unit
from veilrec.privacy.mechanisms.shares import DistributedNoise, Shares
from veilrec.privacy.randomness import FastSource, Source
from veilrec.privacy.samplers import RELATIVE_ERROR, UNITS, add_gaussian, add_laplace

Calibration = Literal["proven", "as-published"]
Norm = Literal["L1", "L2", "changed entries"]
Input = TypeVar("Input")
Output = TypeVar("Output")

# Why the claim of a mechanism as published does not hold, by the name of the mechanism.
PUBLISHED_FLAWS = {
    "gaussian": "the textbook formula for sigma, proved below epsilon 1 only, is used at 10",
    "attention": "the clip norm is taken for the sensitivity; two clipped attention vectors lie farther apart",
    "padded-attention": "the clip norm is taken for the sensitivity; two clipped attention vectors lie farther apart",
    "embedding-noise": "Laplace noise for an L2 sensitivity; the L1 sensitivity is sqrt(dimension) times larger",
    "label-permutation": "the click is always among the candidates, so candidates without an item rule it out",
    "elementwise-laplace": "what one coordinate costs is said to be the cost of the message",
    "update-laplace": "Laplace noise for an L2 sensitivity; the L1 sensitivity is sqrt(numbers) times larger",
    "rowwise-laplace": "Laplace noise for an L2 sensitivity; the L1 sensitivity is sqrt(width) times larger",
    "randomised-response": "what one bit costs is said to hold for any two vectors",
    "update-noise": "the textbook formula is proved for epsilon below 1, and two updates are twice the clip norm apart",
    "low-rank-update": "cut after the noise, it keeps the flaw of the rows' noise",
    "sent-entries": "which entries are sent is decided by the data and told exactly",
    "sparse-deep-update": "which deep entries are sent is decided by the data and told exactly",
    "top-k-update": "which entries are sent is decided by the data and told exactly",
}


@dataclass(frozen=True)
class Sensitivity:
    """How far two adjacent inputs can be apart, and in which norm."""

    value: float
    norm: Norm


@dataclass(frozen=True)
class Released(Generic[Output]):
    """What may leave, and what it cost."""

    value: Output
    event: Event


class Mechanism(ABC, Generic[Input, Output]):
    """A randomised function with a stated privacy; every field is part of the statement.

    Leading dimensions of an input are clients with an event each, unless a mechanism says that it takes one person
    at a time.
    """

    name: str
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven",)
    calibration: Calibration = "proven"
    unit: Unit
    adjacency: Adjacency
    scope: Scope = "per message"  # of one release on a client; what a server releases says otherwise
    trust: Trust = "nobody"
    sensitivity: Sensitivity
    claimed_epsilon: float  # what the statement (proven) or the paper (as published) says of one release
    claimed_delta: float

    def release(self, value: Input, source: Source) -> Released[Output]:
        """Check the input, perturb it, and return it with its event; bad input raises and costs nothing."""
        require_complete(self)
        return Released(self._perturb(value, source), self.event())

    def release_many(self, value: Input, count: int, source: Source) -> Released[Output]:
        """So many independent releases of one input, along a new leading dimension, and what they cost together."""
        require_complete(self)
        return Released(self._perturb_many(value, count, source), repeated(self.event(), count))

    @abstractmethod
    def _perturb(self, value: Input, source: Source) -> Output:
        """Check the input before anything is drawn, then perturb it."""

    def _perturb_many(self, value: Any, count: int, source: Source) -> Output:
        """Perturb one input many times: as many clients with that input, where a mechanism takes several."""
        one = np.asarray(value)
        same: Any = np.broadcast_to(one, (count, *one.shape))
        return self._perturb(same, source)

    @abstractmethod
    def event(self) -> Event:
        """The honest privacy event of one release, whatever is claimed."""

    def delta(self, epsilon: float) -> float:
        """The honest privacy profile of one release: the smallest delta known to hold at this epsilon."""
        return delta_of(self.event(), epsilon)

    @abstractmethod
    def worst_pair(self) -> tuple[Input, Input]:
        """Two adjacent inputs that the mechanism separates best: the audit tries these."""

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Small instances, one or more per calibration, for contract tests and audits; none: nothing to audit here."""
        return ()

    @property
    def carried(self) -> DistributedNoise | None:
        """How many clients carry the noise; None where no client adds a share of it."""
        return None

    def _set_calibration(self, calibration: Calibration) -> None:
        if calibration not in self.calibrations:
            raise unknown_name(f"calibration of {self.name}", calibration, self.calibrations)
        self.calibration = calibration


_MAX_WIDTH = 64  # bits of a sum under masks


class SummedOnce(Mechanism[Input, Output]):
    """What clients send once, in a report or in a comparison, and what is released of it: a sum of whole numbers.

    Secure aggregation, simulation and server add up the same numbers: a client gives `masked`, and whoever opens the
    sum calls `opened`. Noise comes from the server (`protect`) or, with `shares`, from the clients.
    """

    masked_length: int  # numbers that one client sends
    step: float  # of the whole numbers that are added up where the server adds the noise
    largest: int  # of these in size
    shares: Shares | None = None  # of the noise, where clients add it

    @property
    def carried(self) -> DistributedNoise | None:
        """How many clients carry the noise; None where the server adds it."""
        return None if self.shares is None else self.shares.carried

    @abstractmethod
    def weigh(self, value: Any) -> Offsets:
        """What one client adds to the sum, in steps and without noise: `[masked_length]`."""

    @abstractmethod
    def protect(self, total: Any, source: Source) -> Doubles:
        """The sum as it may be used, with noise of the server if it needs that."""

    @property
    def masked_most(self) -> int:
        """The largest number that a client sends, but for what `overflow_chance` says of its noise."""
        return self.largest if self.shares is None else self.shares.most

    def masked_width(self, clients: int) -> int:
        """Bits of the sum of so many clients, its sign included."""
        width = (clients * self.masked_most).bit_length() + 1
        if width > _MAX_WIDTH:
            raise BadInput(
                f"{clients} clients with numbers up to {self.masked_most} need {width} bits: there are {_MAX_WIDTH}"
            )
        return width

    def masked(self, value: Any, source: Source) -> Offsets:
        """What one client puts under masks, `[masked_length]`; its share of the noise comes from `source`."""
        own = self.weigh(value)
        if self.shares is None:
            return own
        return self.shares.integers(own, self.step) + self.empty(source)

    def empty(self, source: Source) -> Offsets:
        """What a client that has nothing to tell puts under masks: its share of the noise."""
        if self.shares is None:
            return np.zeros(self.masked_length, np.int64)
        return self.shares.draw(self.masked_length, source)

    def opened(self, total: Offsets, clients: int, source: Source) -> Doubles:
        """What is released of the opened sum of so many clients; noise of the server comes from `source`."""
        if self.shares is None:
            return self.protect(total, source)
        return self.shares.numbers(total, clients)

    def simulated(self, total: Offsets, clients: int, source: FastSource) -> Doubles:
        """For simulations only: fast seeded noise like that of so many clients, or of the server."""
        if self.shares is None:
            return self.protect(total, source)
        self.shares.numbers(total, clients)
        sigma = self.shares.scale.units * self.shares.step * math.sqrt(clients)
        return np.asarray(total * self.step + source.generator().normal(0.0, sigma, np.shape(total)))

    def _refuse_shares(self) -> None:
        """Refuse to put the server's noise on a sum whose noise is the clients'."""
        if self.shares is not None:
            raise BadInput(f"clients add the noise of {self.name}: the server takes its sum from under masks")

    def _share_out(self, epsilon: float, delta: float, carried: DistributedNoise | None) -> float:
        """Choose the noise, and its shares where clients add it; return the standard deviation on a full sum.

        On the server the sum is cut to the noise's lattice, which the noise pays for; clients cut what they send.
        """
        if carried is None:
            return lattice_sigma(epsilon, delta, self.sensitivity.value, self.masked_length)
        mu = mu_for(*left_by_errors(epsilon, delta, self.masked_length * carried.log_error))
        self.trust = "server sees only noisy sums"
        self.shares = Shares(carried, self.sensitivity.value / mu, self.largest * self.step)
        return self.shares.sigma * carried.surplus

    def _profile(self, sigma: float, epsilon: float) -> float:
        """Delta at this epsilon of noise on a sum: of that of the server, or of all shares that are counted on."""
        if self.shares is None:
            event = lattice_event(self.sensitivity.value, self.masked_length, sigma)
            return lattice_delta(event, epsilon, self.masked_length)
        event = GaussianEvent(self.sensitivity.value / self.shares.sigma)
        return lattice_delta(event, epsilon, self.masked_length, error=self.shares.carried.log_error)

    def _released(self, total: Offsets, count: int, source: Source) -> Doubles:
        """So many releases of one sum `[masked_length]`, with as little noise as is counted on: for audits."""
        if self.shares is None:
            return self.protect(np.tile(total, (count, 1)), source)
        honest = self.shares.carried.honest
        drawn = self.shares.draw(honest * count * self.masked_length, source)
        noise = drawn.reshape(honest, count, self.masked_length).sum(axis=0)
        return np.asarray((self.shares.integers(total, self.step) + noise) * self.shares.step)


def take_terms(mechanism: Mechanism[Any, Any], inner: Mechanism[Any, Any]) -> None:
    """Let a mechanism promise what the one that it is made of promises."""
    for term in ("unit", "adjacency", "sensitivity", "claimed_epsilon", "claimed_delta"):
        setattr(mechanism, term, getattr(inner, term))


def require_complete(mechanism: Mechanism[Any, Any]) -> None:
    """Refuse a mechanism that leaves part of its statement out."""
    wanted = ("name", "calibration", "unit", "adjacency", "sensitivity", "claimed_epsilon", "claimed_delta")
    missing = [field for field in wanted if getattr(mechanism, field, None) is None]
    if missing:
        raise BadInput(
            f"mechanism {type(mechanism).__name__} does not state its {', '.join(missing)}:"
            " nothing may be released by it"
        )


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
    whole(dimension=draws)
    return left_by_errors(epsilon, delta, draws * RELATIVE_ERROR)


def left_by_errors(epsilon: float, delta: float, shift: float) -> tuple[float, float]:
    """What noise whose probabilities are off by e^shift at most leaves of a budget (epsilon, delta) for ideal noise."""
    positive(epsilon=epsilon)
    probability(delta=delta)
    if epsilon <= 2.0 * shift:
        raise BadInput(
            f"epsilon {epsilon} is too small for so many numbers: the errors of drawing them spend {2.0 * shift:g}; "
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


def lattice_event(sensitivity: float, dimension: int, sigma: float) -> GaussianEvent:
    """Gaussian noise on vectors of which only the L2 sensitivity is known: cutting to the lattice moves them apart."""
    return GaussianEvent(on_lattice_l2(sensitivity, dimension, sigma / UNITS) / sigma)


class Gaussian(Mechanism[Doubles, Doubles]):
    """Any vector of which only the L2 sensitivity is known; `[n, dimension]` holds the vectors of n clients.

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
        return lattice_event(self.sensitivity.value, self.dimension, self.sigma)

    def delta(self, epsilon: float) -> float:
        """The exact profile, with the sampler's errors."""
        return lattice_delta(self.event(), epsilon, self.dimension)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Nothing, and everything in one coordinate: only the distance matters."""
        return np.zeros(self.dimension), _in_one_coordinate(self.sensitivity.value, self.dimension)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """At epsilon 1 as proven; at epsilon 10 as papers do it."""
        terms: dict[str, Any] = {"dimension": 5, "sensitivity": 1.0, "unit": "user", "adjacency": "replace-one"}
        published = cls(epsilon=10.0, delta=1e-3, calibration="as-published", **terms)
        return cls(epsilon=1.0, delta=1e-6, **terms), published


def _in_one_coordinate(value: float, dimension: int) -> Doubles:
    return np.append(value, np.zeros(dimension - 1))


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
    """Any vector of which only the L1 sensitivity is known; `[n, dimension]` holds the vectors of n clients.

    Over all pairs at this L1 distance, one coordinate that carries all of it is the worst, at every epsilon:
    a test on two coordinates with shifts a and b is no better than one on a single coordinate with shift a +
    b, because Laplace trade-off functions of adjacent shifts chain.
    """

    name = "laplace"

    def __init__(self, *, dimension: int, sensitivity: float, epsilon: float, unit: Unit, adjacency: Adjacency) -> None:
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
        return np.zeros(self.dimension), _in_one_coordinate(self.sensitivity.value, self.dimension)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Five coordinates at epsilon 1."""
        return (cls(dimension=5, sensitivity=2.0, epsilon=1.0, unit="user", adjacency="replace-one"),)
