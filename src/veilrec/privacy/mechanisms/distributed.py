"""Distributed noise: every client adds a part of it to the whole numbers that it sends under masks.

Nobody ever sees the sum without noise. Of the `least` clients without which no sum is opened, a share `silent` may add
none, or tell theirs; the others' shares together have at least the variance that the sum needs. So every share has
standard deviation sigma / sqrt(least - silent), and a full round has more noise than is needed.

Shares are rounded Gaussians on the lattice of the sum. Why their sum protects like one Gaussian of all their variance:

  Let G_1..G_n be independent N(0, s^2), s in lattice units, X_i = G_i rounded to a whole number, U_i = X_i - G_i, and
  T = G_1 + ... + G_n. Then X_1 + ... + X_n = round(T + U_1 + ... + U_{n-1}): what is rounded differs from the sum
  of the X_i by G_n - X_n. If U_1..U_{n-1} were independent of T, the noisy sum v + X_1 + ... + X_n would be made of
  v + T, a Gaussian release, and of draws that have nothing to do with v: post-processing. They nearly are. Given T,
  (G_1..G_{n-1}) is Gaussian with covariance s^2 (I - J / n), and the density of its fractional parts is, by Poisson,
  1 + sum over k in Z^(n-1), k not 0, of waves of height exp(-2 pi^2 s^2 Q(k)), Q(k) = |k|^2 - (sum of k_i)^2 / n.
  Put k_n = 0; then Q(k) is the sum of (k_i - mean)^2, and stays if a whole number is added to all of them. Add the one
  that makes their median 0. Now at most half of them are above 0, and their sum P has P^2 <= (n / 2) |k|^2 by Cauchy
  and Schwarz; so has the sum of those below. So n mean^2 <= |k|^2 / 2, and Q(k) >= |k|^2 / 2. All waves together are at
  most

      tau = (sum over j in Z of exp(-pi^2 s^2 j^2))^n - 1,

  whatever T and the fractions are. So every probability of the noisy sum is within a factor 1 - tau to 1 + tau of the
  ideal one, without exception. With 10 units a share tau is below 2 n 10^-428.

Each share is drawn with a relative error of 2^-48 at most (`samplers`), so that of n shares has n times as much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self, get_args

import numpy as np

from veilrec.core.arrays import Doubles, Floats, Offsets
from veilrec.core.errors import BadInput
from veilrec.core.fixed_point import FixedPoint, Ring
from veilrec.core.schema import ClientUpdates, RoundSpec, Tensor, from_vectors
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.checks import vectors, whole
from veilrec.privacy.events import Event, GaussianEvent, SampledEvent
from veilrec.privacy.mechanisms.base import Released, lattice_delta, require_complete
from veilrec.privacy.mechanisms.schedules import ScheduledSum
from veilrec.privacy.mechanisms.sums import CohortSum, UpdateMechanism
from veilrec.privacy.randomness import FastSource, Source
from veilrec.privacy.samplers import RELATIVE_ERROR, Scale, lattice_gaussian, simulated_gaussian

FEWEST_UNITS = 2**10  # of a share: what cutting to the lattice takes from an update is then far below its noise
_MAX_UNITS = 2**20
_REACH = 16.0  # standard deviations of a share that the lattice has room for, beside the update
_MAX_IN_32 = 2**22  # clients that a ring of 32 bits has room for
_FIRST = RoundSpec(0)


@dataclass(frozen=True)
class DistributedNoise:
    """How many clients carry the noise of a sum."""

    least: int  # clients without which no sum is opened
    silent: float = 0.0  # share of these that may add no noise, or tell the server theirs

    def __post_init__(self) -> None:
        whole(least=self.least)
        if not 0.0 <= self.silent < 1.0:
            raise BadInput(f"silent is {self.silent}: it is the share that adds no noise, from 0 to below 1")

    @property
    def honest(self) -> int:
        """Clients whose shares are counted on: at least one."""
        return self.least - int(self.silent * self.least)


def tau(distributed_noise: int, units: float) -> float:
    """How far, relative to itself, a probability of a sum of rounded Gaussians is off at most: see above."""
    waves = sum(math.exp(-((math.pi * units * j) ** 2)) for j in range(1, 40))
    return math.expm1(distributed_noise * math.log1p(2.0 * waves))


def log_error(distributed_noise: int, units: float) -> float:
    """Bound the log-error of one number of a sum: rounded shares (`tau`), and the sampler's own error."""
    off = tau(distributed_noise, units)
    if off >= 0.5:
        raise BadInput(
            f"shares of {units:g} units are too small for a sum of {distributed_noise} of them: use a finer lattice"
        )
    return -math.log1p(-off) + distributed_noise * RELATIVE_ERROR


def overflow_chance(clients: int, numbers: int) -> float:
    """At most how likely it is that noise carries one of so many numbers of a sum beyond its width.

    Every client has room for 16 standard deviations of its share, and a sum for all of these together: 16 sqrt(n)
    standard deviations of its noise, less half a unit a client for rounding. A Gaussian tail is below 2 e^(-t^2 / 2).
    """
    return min(1.0, 2.0 * numbers * math.exp(-126.0 * clients))


class DistributedNoiseSum(UpdateMechanism):
    """The sum of a cohort's updates with noise that its clients have added, each a share.

    Bounds and noise are those of `inner`, whose noise on the sum this replaces. Server and helpers see who takes part,
    so that a round costs whoever is in it what it costs without amplification by sampling. Adjacency add-remove means
    here: an update, or nothing in its place, by the same clients.
    """

    name = "shared-sum"
    scope, trust = "per round", "server sees only noisy sums"
    noise_on = "share"

    def __init__(self, inner: CohortSum, distributed_noise: DistributedNoise) -> None:
        if type(inner) not in (CohortSum, ScheduledSum):
            raise BadInput(
                f"the noise of {inner.name} cannot be added in shares: only that of cohort-sum and of scheduled-sum, "
                "which is drawn anew for every round and does not hang on who is there"
            )
        self.inner, self.distributed_noise = inner, distributed_noise
        self.schema, self.taking_part = inner.schema, inner.taking_part
        self.unit, self.adjacency = inner.unit, inner.adjacency
        self.sensitivity, self.claimed_delta = inner.sensitivity, inner.claimed_delta
        if distributed_noise.least > inner.max_people:
            raise BadInput(
                f"least is {distributed_noise.least}: there are {inner.max_people} people at most in a round"
            )

    @property
    def max_people(self) -> int:
        """As many as without shares."""
        return self.inner.max_people

    @cached_property
    def claimed_epsilon(self) -> float:  # type: ignore[override]
        """Epsilon of one round that a person is in, rounding and the sampler's errors included."""
        return epsilon_of(self.event(), 0.99 * self.claimed_delta) * (1.0 + 1e-9) + 1e-9 + 2.0 * self.draws_error

    @property
    def draws_error(self) -> float:
        """How far, in the logarithm, any probability of one noisy sum is off: its epsilon is twice that larger."""
        return self.dimension * log_error(self.distributed_noise.honest, FEWEST_UNITS)

    def bound(self, updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
        """As without shares."""
        return self.inner.bound(updates, spec)

    def check(self, updates: ClientUpdates, spec: RoundSpec) -> None:
        """As without shares: of use where an update is seen, and that is nowhere but in a simulation."""
        self.inner.check(updates, spec)

    def perturb(self, bounded: ClientUpdates, spec: RoundSpec, source: Source) -> ClientUpdates:
        """There is no such message: what leaves is whole numbers under masks."""
        raise BadInput(
            "with distributed noise, a client sends whole numbers under masks and no plain message: use secure"
            " aggregation, or a plan whose server adds the noise"
        )

    def share_sigma(self, name: str, spec: RoundSpec) -> float:
        """The standard deviation that every client's share of the noise on a tensor needs."""
        return self.inner.sigma_in(name, spec) / math.sqrt(self.distributed_noise.honest)

    def reach(self, tensor: Tensor, spec: RoundSpec, weight: int = 1) -> float:
        """The largest number of an update, and 16 standard deviations of a share."""
        return self.inner.reach(tensor, spec, weight) + _REACH * self.share_sigma(tensor.name, spec)

    def fixed_point(
        self,
        spec: RoundSpec,
        *,
        clients: int,
        weighs_examples: bool = False,
        counts_rows: bool = False,
        ring: Ring = 64,
    ) -> FixedPoint:
        """In the smaller ring if it leaves every share enough units, whatever ring was asked for: all have the same."""
        if weighs_examples or counts_rows:
            raise BadInput("numbers of examples and of rows have no noise: with shares, use aggregation sum or mean")
        for size in get_args(Ring):
            if clients <= _MAX_IN_32 or size == 64:
                made = self._fixed_point(spec, clients, size)
                if all(self.share_sigma(name, spec) >= FEWEST_UNITS * step for name, step in made.steps.items()):
                    return made
        raise BadInput("an update can be so much larger than its noise that no lattice has room for both: clip it more")

    def _fixed_point(self, spec: RoundSpec, clients: int, ring: Ring) -> FixedPoint:
        view = spec.view(self.schema)
        most = FixedPoint(view, (1.0,) * len(view.tensors), clients, ring).most
        reaches = {
            tensor.name: max(self.reach(tensor, spec), most / _MAX_UNITS * self.share_sigma(tensor.name, spec))
            for tensor in view.tensors
        }
        return FixedPoint.fitting(view, reaches, clients=clients, ring=ring)

    def scales(self, fixed_point: FixedPoint, spec: RoundSpec) -> dict[str, Scale]:
        """How many units every share of a tensor's noise has: never fewer than it needs."""
        return {name: Scale.above(self.share_sigma(name, spec) / step) for name, step in fixed_point.steps.items()}

    def width(self, fixed_point: FixedPoint, spec: RoundSpec) -> int:
        """Bits that hold every number of a sum, its sign included, but for `overflow_chance`."""
        largest = max(self.reach(tensor, spec) / fixed_point.steps[tensor.name] for tensor in fixed_point.view.tensors)
        return min(fixed_point.ring, (fixed_point.clients * math.ceil(largest)).bit_length() + 1)

    def noise(self, fixed_point: FixedPoint, spec: RoundSpec, source: Source) -> Offsets:
        """One client's share, on all that the round is about."""
        out = np.zeros(fixed_point.size, np.int64)
        for name, scale in self.scales(fixed_point, spec).items():
            part = out[fixed_point.places[name]]
            entries = spec.entries(name, part.size)
            where = slice(None) if entries is None else entries
            part[where] = lattice_gaussian(source, part[where].size, scale)
        return out

    def share(
        self, updates: ClientUpdates, spec: RoundSpec, fixed_point: FixedPoint, source: Source
    ) -> Released[Offsets]:
        """What one client puts under masks, `[lattice.size]`, and what the round costs it."""
        if updates.count != 1:
            raise BadInput(f"there are {updates.count} updates: a client shares its own")
        require_complete(self)
        numbers = fixed_point.integers(self.bound(updates, spec))[0]
        return Released(numbers + self.noise(fixed_point, spec, source), self.event_in(spec))

    def shared(
        self, bounded: ClientUpdates, spec: RoundSpec, fixed_point: FixedPoint, sources: Sequence[Source]
    ) -> Offsets:
        """The sum of what several clients put under masks: for simulations."""
        total = fixed_point.integers(bounded).sum(axis=0)
        for source in sources:
            total += self.noise(fixed_point, spec, source)
        return np.asarray(total)

    def total_of_shares(
        self, fixed_point: FixedPoint, spec: RoundSpec, clients: int, source: FastSource
    ) -> dict[str, Floats]:
        """For simulations only: fast seeded noise like the sum of so many shares, which protects nobody."""
        noise = {}
        for tensor in fixed_point.view.tensors:
            sigma = (
                self.scales(fixed_point, spec)[tensor.name].units * fixed_point.steps[tensor.name] * math.sqrt(clients)
            )
            drawn = simulated_gaussian(source.generator(), tensor.shape, sigma=sigma)
            entries = spec.entries(tensor.name, tensor.size)
            if entries is not None:
                kept = np.zeros(tensor.size, np.float32)
                kept[entries] = drawn.reshape(-1)[entries]
                drawn = kept.reshape(tensor.shape)
            noise[tensor.name] = drawn
        return noise

    def facts(self) -> dict[str, float]:
        """The noise, and how many carry it."""
        people = {"least": self.distributed_noise.least, "silent": self.distributed_noise.silent}
        return (
            self.inner.facts() | people | {"share_sigma": self.inner.sigma / math.sqrt(self.distributed_noise.honest)}
        )

    def event(self) -> Event:
        """One round that a person is known to be in."""
        return _without_chance(self.inner.event())

    def event_in(self, spec: RoundSpec) -> Event:
        """By the bound of the round."""
        return _without_chance(self.inner.event_in(spec))

    def events(self, rounds: int) -> tuple[tuple[Event, int], ...]:
        """Every one of the rounds that a person is in."""
        return tuple((_without_chance(event), count) for event, count in self.inner.events(rounds))

    def delta(self, epsilon: float) -> float:
        """The exact profile of one round, with what rounding and sampling of the shares add."""
        return lattice_delta(
            self.event(), epsilon, self.dimension, error=log_error(self.distributed_noise.honest, FEWEST_UNITS)
        )

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The noisy sum `[dimension]` of `[least, dimension]` updates, with the fewest shares that are counted on."""
        return np.asarray(self._perturb_many(value, 1, source)[0])

    def _perturb_many(self, value: Doubles, count: int, source: Source) -> Doubles:
        """Many independent rounds of the same updates: `[count, dimension]`."""
        checked = vectors(self.dimension, updates=value)
        if checked.ndim != 2 or not self.distributed_noise.least <= len(checked) <= self.max_people:
            raise BadInput(
                f"updates have shape {checked.shape}: give a row for each of"
                f" {self.distributed_noise.least} to {self.max_people}"
            )
        fixed_point = self.fixed_point(_FIRST, clients=self.max_people)
        total = fixed_point.integers(self.bound(from_vectors(checked, self.schema), _FIRST)).sum(axis=0)
        parts = []
        for name, scale in self.scales(fixed_point, _FIRST).items():
            size = fixed_point.places[name].stop - fixed_point.places[name].start
            drawn = lattice_gaussian(source, self.distributed_noise.honest * count * size, scale)
            noisy = total[fixed_point.places[name]] + drawn.reshape(self.distributed_noise.honest, count, size).sum(
                axis=0
            )
            parts.append(fixed_point.numbers(noisy, name))
        return np.concatenate(parts, axis=1)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """As few as may be, everybody silent but one, whose update turns round, or is nothing."""
        first = np.zeros((self.distributed_noise.least, self.dimension))
        first[0] = self.inner.clip_norm / math.sqrt(self.dimension)
        return first, -first if self.sensitivity.value > self.inner.clip_norm else np.zeros_like(first)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Four of ten people by coins, and everybody, of whom one in four adds no noise; and rounds of two weights."""
        cohort, scheduled = CohortSum.examples(), ScheduledSum.examples()
        return (
            cls(cohort[1], DistributedNoise(3)),
            cls(cohort[2], DistributedNoise(4, silent=0.25)),
            cls(scheduled[1], DistributedNoise(4, silent=0.5)),
        )


def _without_chance(event: Event) -> Event:
    """What a round costs whoever is known to be in it."""
    return GaussianEvent(event.mu) if isinstance(event, SampledEvent) else event
