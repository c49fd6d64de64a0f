"""Noise in shares: every client adds a part of it to the whole numbers that it sends under masks.

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
_MOST_UNITS = 2**20
_REACH = 16.0  # standard deviations of a share that the lattice has room for, beside the update
_MOST_IN_32 = 2**22  # devices that a ring of 32 bits has room for
_FIRST = RoundSpec(0)


@dataclass(frozen=True)
class NoiseShares:
    """How many clients carry the noise of a sum."""

    least: int  # devices without which no sum is opened
    silent: float = 0.0  # share of these that may add no noise, or tell the server theirs

    def __post_init__(self) -> None:
        whole(least=self.least)
        if not 0.0 <= self.silent < 1.0:
            raise BadInput(f"silent is {self.silent}: it is the share that adds no noise, from 0 to below 1")

    @property
    def honest(self) -> int:
        """Clients whose shares are counted on: at least one."""
        return self.least - int(self.silent * self.least)


def tau(shares: int, units: float) -> float:
    """How far, relative to itself, a probability of a sum of rounded Gaussians is off at most: see above."""
    waves = sum(math.exp(-((math.pi * units * j) ** 2)) for j in range(1, 40))
    return math.expm1(shares * math.log1p(2.0 * waves))


def log_error(shares: int, units: float) -> float:
    """Bound the log-error of one number of a sum: rounded shares (`tau`), and the sampler's own error."""
    off = tau(shares, units)
    if off >= 0.5:
        raise BadInput(f"shares of {units:g} units are too small for a sum of {shares} of them: use a finer lattice")
    return -math.log1p(-off) + shares * RELATIVE_ERROR


def overflow_chance(devices: int, numbers: int) -> float:
    """At most how likely it is that noise carries one of so many numbers of a sum beyond its width.

    Every client has room for 16 standard deviations of its share, and a sum for all of these together: 16 sqrt(n)
    standard deviations of its noise, less half a unit a client for rounding. A Gaussian tail is below 2 e^(-t^2 / 2).
    """
    return min(1.0, 2.0 * numbers * math.exp(-126.0 * devices))


class DistributedNoiseSum(UpdateMechanism):
    """The sum of a cohort's updates with noise that its clients have added, each a share.

    Bounds and noise are those of `inner`, whose noise on the sum this replaces. Server and helpers see who takes part,
    so that a round costs whoever is in it what it costs without amplification by sampling. Adjacency add-remove means
    here: an update, or nothing in its place, by the same clients.
    """

    name = "shared-sum"
    scope, trust = "per round", "server sees only noisy sums"
    noise_on = "share"

    def __init__(self, inner: CohortSum, shares: NoiseShares) -> None:
        if type(inner) not in (CohortSum, ScheduledSum):
            raise BadInput(
                f"the noise of {inner.name} cannot be added in shares: only that of cohort-sum and of scheduled-sum, "
                "which is drawn anew for every round and does not hang on who is there"
            )
        self.inner, self.shares = inner, shares
        self.schema, self.taking_part = inner.schema, inner.taking_part
        self.unit, self.adjacency = inner.unit, inner.adjacency
        self.sensitivity, self.claimed_delta = inner.sensitivity, inner.claimed_delta
        if shares.least > inner.most_people:
            raise BadInput(f"least is {shares.least}: there are {inner.most_people} people at most in a round")

    @property
    def most_people(self) -> int:
        """As many as without shares."""
        return self.inner.most_people

    @cached_property
    def claimed_epsilon(self) -> float:  # type: ignore[override]
        """Epsilon of one round that a person is in, rounding and the sampler's errors included."""
        return epsilon_of(self.event(), 0.99 * self.claimed_delta) * (1.0 + 1e-9) + 1e-9 + 2.0 * self.draws_error

    @property
    def draws_error(self) -> float:
        """How far, in the logarithm, any probability of one noisy sum is off: its epsilon is twice that larger."""
        return self.dimension * log_error(self.shares.honest, FEWEST_UNITS)

    def bound(self, uploads: ClientUpdates, about: RoundSpec) -> ClientUpdates:
        """As without shares."""
        return self.inner.bound(uploads, about)

    def check(self, uploads: ClientUpdates, about: RoundSpec) -> None:
        """As without shares: of use where an update is seen, and that is nowhere but in a simulation."""
        self.inner.check(uploads, about)

    def perturb(self, bounded: ClientUpdates, about: RoundSpec, source: Source) -> ClientUpdates:
        """There is no such message: what leaves is whole numbers under masks."""
        raise BadInput(
            "with noise in shares, a device sends whole numbers under masks and no plain message: use secure sums, or "
            "a plan whose server adds the noise"
        )

    def share_sigma(self, name: str, about: RoundSpec) -> float:
        """The standard deviation that every client's share of the noise on a tensor needs."""
        return self.inner.sigma_in(name, about) / math.sqrt(self.shares.honest)

    def reach(self, tensor: Tensor, about: RoundSpec, weight: int = 1) -> float:
        """The largest number of an update, and 16 standard deviations of a share."""
        return self.inner.reach(tensor, about, weight) + _REACH * self.share_sigma(tensor.name, about)

    def lattice(
        self,
        about: RoundSpec,
        *,
        devices: int,
        weighs_examples: bool = False,
        counts_rows: bool = False,
        ring: Ring = 64,
    ) -> FixedPoint:
        """In the smaller ring if it leaves every share enough units, whatever ring was asked for: all have the same."""
        if weighs_examples or counts_rows:
            raise BadInput("numbers of examples and of rows have no noise: with shares, use aggregation sum or mean")
        for size in get_args(Ring):
            if devices <= _MOST_IN_32 or size == 64:
                made = self._lattice(about, devices, size)
                if all(self.share_sigma(name, about) >= FEWEST_UNITS * step for name, step in made.steps.items()):
                    return made
        raise BadInput("an update can be so much larger than its noise that no lattice has room for both: clip it more")

    def _lattice(self, about: RoundSpec, devices: int, ring: Ring) -> FixedPoint:
        view = about.view(self.schema)
        most = FixedPoint(view, (1.0,) * len(view.tensors), devices, ring).most
        reaches = {
            tensor.name: max(self.reach(tensor, about), most / _MOST_UNITS * self.share_sigma(tensor.name, about))
            for tensor in view.tensors
        }
        return FixedPoint.fitting(view, reaches, devices=devices, ring=ring)

    def scales(self, lattice: FixedPoint, about: RoundSpec) -> dict[str, Scale]:
        """How many units every share of a tensor's noise has: never fewer than it needs."""
        return {name: Scale.above(self.share_sigma(name, about) / step) for name, step in lattice.steps.items()}

    def width(self, lattice: FixedPoint, about: RoundSpec) -> int:
        """Bits that hold every number of a sum, its sign included, but for `overflow_chance`."""
        largest = max(self.reach(tensor, about) / lattice.steps[tensor.name] for tensor in lattice.view.tensors)
        return min(lattice.ring, (lattice.devices * math.ceil(largest)).bit_length() + 1)

    def noise(self, lattice: FixedPoint, about: RoundSpec, source: Source) -> Offsets:
        """One client's share, on all that the round is about."""
        out = np.zeros(lattice.size, np.int64)
        for name, scale in self.scales(lattice, about).items():
            part = out[lattice.places[name]]
            entries = about.entries(name, part.size)
            where = slice(None) if entries is None else entries
            part[where] = lattice_gaussian(source, part[where].size, scale)
        return out

    def share(self, uploads: ClientUpdates, about: RoundSpec, lattice: FixedPoint, source: Source) -> Released[Offsets]:
        """What one client puts under masks, `[lattice.size]`, and what the round costs it."""
        if uploads.count != 1:
            raise BadInput(f"there are {uploads.count} updates: a device shares its own")
        require_complete(self)
        numbers = lattice.integers(self.bound(uploads, about))[0]
        return Released(numbers + self.noise(lattice, about, source), self.event_in(about))

    def shared(
        self, bounded: ClientUpdates, about: RoundSpec, lattice: FixedPoint, sources: Sequence[Source]
    ) -> Offsets:
        """The sum of what several clients put under masks: for simulations."""
        total = lattice.integers(bounded).sum(axis=0)
        for source in sources:
            total += self.noise(lattice, about, source)
        return np.asarray(total)

    def noise_of_shares(
        self, lattice: FixedPoint, about: RoundSpec, devices: int, source: FastSource
    ) -> dict[str, Floats]:
        """For simulations only: fast seeded noise like the sum of so many shares, which protects nobody."""
        noise = {}
        for tensor in lattice.view.tensors:
            sigma = self.scales(lattice, about)[tensor.name].units * lattice.steps[tensor.name] * math.sqrt(devices)
            drawn = simulated_gaussian(source.generator(), tensor.shape, sigma=sigma)
            entries = about.entries(tensor.name, tensor.size)
            if entries is not None:
                kept = np.zeros(tensor.size, np.float32)
                kept[entries] = drawn.reshape(-1)[entries]
                drawn = kept.reshape(tensor.shape)
            noise[tensor.name] = drawn
        return noise

    def facts(self) -> dict[str, float]:
        """The noise, and how many carry it."""
        people = {"least": self.shares.least, "silent": self.shares.silent}
        return self.inner.facts() | people | {"share_sigma": self.inner.sigma / math.sqrt(self.shares.honest)}

    def event(self) -> Event:
        """One round that a person is known to be in."""
        return _without_chance(self.inner.event())

    def event_in(self, about: RoundSpec) -> Event:
        """By the bound of the round."""
        return _without_chance(self.inner.event_in(about))

    def events(self, rounds: int) -> tuple[tuple[Event, int], ...]:
        """Every one of the rounds that a person is in."""
        return tuple((_without_chance(event), count) for event, count in self.inner.events(rounds))

    def delta(self, epsilon: float) -> float:
        """The exact profile of one round, with what rounding and sampling of the shares add."""
        return lattice_delta(self.event(), epsilon, self.dimension, error=log_error(self.shares.honest, FEWEST_UNITS))

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The noisy sum `[dimension]` of `[least, dimension]` updates, with the fewest shares that are counted on."""
        return np.asarray(self._perturb_many(value, 1, source)[0])

    def _perturb_many(self, value: Doubles, count: int, source: Source) -> Doubles:
        """Many independent rounds of the same updates: `[count, dimension]`."""
        checked = vectors(self.dimension, updates=value)
        if checked.ndim != 2 or not self.shares.least <= len(checked) <= self.most_people:
            raise BadInput(
                f"updates have shape {checked.shape}: give a row for each of {self.shares.least} to {self.most_people}"
            )
        lattice = self.lattice(_FIRST, devices=self.most_people)
        total = lattice.integers(self.bound(from_vectors(checked, self.schema), _FIRST)).sum(axis=0)
        parts = []
        for name, scale in self.scales(lattice, _FIRST).items():
            size = lattice.places[name].stop - lattice.places[name].start
            drawn = lattice_gaussian(source, self.shares.honest * count * size, scale)
            noisy = total[lattice.places[name]] + drawn.reshape(self.shares.honest, count, size).sum(axis=0)
            parts.append(lattice.numbers(noisy, name))
        return np.concatenate(parts, axis=1)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """As few as may be, everybody silent but one, whose update turns round, or is nothing."""
        first = np.zeros((self.shares.least, self.dimension))
        first[0] = self.inner.clip_norm / math.sqrt(self.dimension)
        return first, -first if self.sensitivity.value > self.inner.clip_norm else np.zeros_like(first)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Four of ten people by coins, and everybody, of whom one in four adds no noise; and rounds of two weights."""
        cohort, scheduled = CohortSum.examples(), ScheduledSum.examples()
        return (
            cls(cohort[1], NoiseShares(3)),
            cls(cohort[2], NoiseShares(4, silent=0.25)),
            cls(scheduled[1], NoiseShares(4, silent=0.5)),
        )


def _without_chance(event: Event) -> Event:
    """What a round costs whoever is known to be in it."""
    return GaussianEvent(event.mu) if isinstance(event, SampledEvent) else event
