"""Distributed noise on the sums of rounds: the sum of a cohort's updates with noise that its clients have added.

`privacy.mechanisms.shares` says why it protects. Lattice and shares of a round follow its spec, which all of its
clients have: where adaptive clipping moves the clip norm, the noise on the updates and the steps of their lattice move
with it, and the count keeps noise and steps of its own.

A tree of noise (DP-FTRL, `TreeSum`) cannot be had in this way. What its round t adds is n_t - n_(t-1) - n_(t-2) - ...:
new noise, less that of earlier nodes. A node's noise is a sum of what the clients of its round drew, and whoever takes
it back later needs these draws. The clients of a later round are others, and do not have them; clients that told them
would have protected nobody; and clients that came back to take their own away would have to be there, all of them, in
every round in which a node ends. So rounds in cyclic order have noise of their own each, which composes over the few of
them that a client is in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Self, get_args

import numpy as np

from veilrec.core.arrays import Doubles, Floats, Offsets
from veilrec.core.errors import BadInput
from veilrec.core.fixed_point import FixedPoint, Ring
from veilrec.core.schema import ClientUpdates, RoundSpec, Tensor, from_vectors
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.checks import vectors
from veilrec.privacy.events import Event, GaussianEvent, SampledEvent
from veilrec.privacy.mechanisms.base import Released, lattice_delta, require_complete
from veilrec.privacy.mechanisms.schedules import AdaptiveSum, ScheduledSum
from veilrec.privacy.mechanisms.shares import FEWEST_UNITS, REACH, DistributedNoise
from veilrec.privacy.mechanisms.sums import CohortSum, UpdateMechanism
from veilrec.privacy.randomness import FastSource, Source
from veilrec.privacy.samplers import Scale, lattice_gaussian, simulated_gaussian

_MAX_UNITS = 2**20
_MAX_IN_32 = 2**22  # clients that a ring of 32 bits has room for
_FIRST = RoundSpec(0)
_SHARED = (CohortSum, ScheduledSum, AdaptiveSum)


class DistributedNoiseSum(UpdateMechanism):
    """The sum of a cohort's updates with noise that its clients have added, each a share.

    Bounds and noise are those of `inner`, whose noise on the sum this replaces. Server and helpers see who takes part,
    so that a round costs whoever is in it what it costs without amplification by sampling. Adjacency add-remove means
    here: an update, or nothing in its place, by the same clients. Nothing is a share of the noise, and no count.
    """

    name = "shared-sum"
    scope, trust = "per round", "server sees only noisy sums"
    noise_on = "share"

    def __init__(self, inner: CohortSum, distributed_noise: DistributedNoise) -> None:
        if type(inner) not in _SHARED:
            raise BadInput(
                f"the noise of {inner.name} cannot be added in shares: only noise that is drawn anew for every round"
                f" can, that of {', '.join(kind.name for kind in _SHARED)}"
            )
        self.inner, self.distributed_noise = inner, distributed_noise
        self.schema, self.taking_part = inner.schema, inner.taking_part
        self.unit, self.adjacency = inner.unit, inner.adjacency
        self.sensitivity, self.claimed_delta = inner.sensitivity, inner.claimed_delta
        if distributed_noise.clients > inner.max_people:
            raise BadInput(
                f"{distributed_noise.clients} clients are to add noise, and a round has {inner.max_people} people at"
                " most"
            )

    @property
    def carried(self) -> DistributedNoise:
        """How many clients carry the noise."""
        return self.distributed_noise

    @property
    def clip_norm(self) -> float:
        """The largest bound that the noise was chosen for; that of the first round where it moves."""
        return self.inner.clip_norm

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise on a full sum, which is more than is counted on."""
        return self.inner.sigma * self.distributed_noise.surplus

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
        return self.dimension * self.distributed_noise.log_error

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
        return self.inner.reach(tensor, spec, weight) + REACH * self.share_sigma(tensor.name, spec)

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
        carried = self.distributed_noise
        people = {"least": carried.least, "honest": carried.honest}
        return self.inner.facts() | people | {"share_sigma": self.inner.sigma / math.sqrt(carried.honest)}

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
        return lattice_delta(self.event(), epsilon, self.dimension, error=self.distributed_noise.log_error)

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """The noisy sum `[dimension]` of `[people, dimension]` updates, with the fewest shares that are counted on."""
        return np.asarray(self._perturb_many(value, 1, source)[0])

    def _perturb_many(self, value: Doubles, count: int, source: Source) -> Doubles:
        """Many independent rounds of the same updates: `[count, dimension]`."""
        checked = vectors(self.dimension, updates=value)
        if checked.ndim != 2 or len(checked) > self.max_people:
            raise BadInput(
                f"updates have shape {checked.shape}: give a row for each of {self.max_people} people at most"
            )
        fixed_point, honest = self.fixed_point(_FIRST, clients=self.max_people), self.distributed_noise.honest
        total = fixed_point.integers(self.bound(from_vectors(checked, self.schema), _FIRST)).sum(axis=0)
        parts = []
        for name, scale in self.scales(fixed_point, _FIRST).items():
            own = total[fixed_point.places[name]]
            drawn = lattice_gaussian(source, honest * count * own.size, scale).reshape(honest, count, own.size)
            parts.append(fixed_point.numbers(own + drawn.sum(axis=0), name))
        return np.concatenate(parts, axis=1)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Everybody silent but one, whose update turns round (replace-one), or who sends nothing (add-remove)."""
        return self.inner.worst_pair()

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Some of ten people, and everybody, of whom some add no noise; rounds of two weights; adaptive clipping."""
        cohort, scheduled, adaptive = CohortSum.examples(), ScheduledSum.examples(), AdaptiveSum.examples()
        return (
            cls(cohort[1], DistributedNoise(3)),
            cls(cohort[2], DistributedNoise(4, silent=0.25)),
            cls(scheduled[1], DistributedNoise(4, silent=0.25, lost=0.25)),
            cls(adaptive[1], DistributedNoise(4, lost=0.25)),
            cls(adaptive[2], DistributedNoise(4)),
        )


NoisySum = CohortSum | DistributedNoiseSum  # Gaussian noise on sums, wherever it is added


def _without_chance(event: Event) -> Event:
    """What a round costs whoever is known to be in it."""
    return GaussianEvent(event.mu) if isinstance(event, SampledEvent) else event
