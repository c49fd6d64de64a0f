"""A plan watched at work: what is added up, what noise lands on it, and what the server then gives away.

Nothing is done here that the plan's own mechanisms do not do: they are called, and what went in and came out is
written down. A run can also be repeated from a script of protected sums, on other data: whatever then differs in the
released models got there past the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np

from veilrec._arrays import Doubles, Floats, Offsets
from veilrec._csr import Csr, offsets_of
from veilrec.device.learner import LocalData
from veilrec.plan import Plan
from veilrec.privacy.mechanisms.reports import ItemReports, SourceOf
from veilrec.privacy.mechanisms.updates import UpdateMechanism
from veilrec.privacy.randomness import Source
from veilrec.server.cohorts import CohortSampler
from veilrec.simulate.simulation import Seeds, Simulation
from veilrec.updates import BOUND, Round, Schema, Uploads

Sums = dict[str, Doubles]
Run = TypeVar("Run", bound=Simulation)
Protect = Callable[[MutableMapping[str, Doubles], Round], None]
"""What is done to the sums of a round instead of adding noise."""


@dataclass(frozen=True)
class SeenSums:
    """The sums of a round, before and after the noise."""

    about: Round
    before: Sums
    after: Sums

    def inside(self, name: str) -> Offsets | slice:
        """The places of a flattened tensor that the round is about."""
        entries = self.about.entries(name, self.before[name].size)
        return slice(None) if entries is None else entries

    def noise(self, name: str) -> Doubles:
        """What was added to the places that the round is about."""
        return np.asarray((self.after[name] - self.before[name]).reshape(-1)[self.inside(name)])

    def outside(self, name: str) -> int:
        """How many places that the round is not about hold anything."""
        mask = np.ones(self.before[name].size, np.bool_)
        mask[self.inside(name)] = False
        held = (self.before[name].reshape(-1) != 0.0) | (self.after[name].reshape(-1) != 0.0)
        return int(np.count_nonzero(held & mask))


@dataclass(frozen=True)
class SeenReports:
    """What devices told before a round, and the counts as they were used."""

    devices: Offsets
    told: Offsets  # [devices, items]: how often each device counts for each item
    protected: Doubles


@dataclass
class Seen:
    """A run, as it was seen."""

    sums: list[SeenSums] = field(default_factory=list)
    # Of the bounded updates, some devices at a time, and what they count for where the bound is learnt.
    norms: list[tuple[Round, Doubles]] = field(default_factory=list)
    counts: list[Floats] = field(default_factory=list)
    messages: list[tuple[Uploads, Uploads, Round]] = field(default_factory=list)  # bounded, and as it was sent
    shared: list[tuple[Mapping[str, Floats], Doubles | Offsets]] = field(default_factory=list)  # noise drawn at once
    reports: list[SeenReports] = field(default_factory=list)
    released: list[dict[str, Floats]] = field(default_factory=list)  # the model after every round
    keeps_state: bool = False

    def largest_norm(self, clip_norm: float | None = None) -> float:
        """Of everything that any device sent, over all tensors together; as if every round had this bound."""

        def scale(about: Round) -> float:
            return 1.0 if clip_norm is None or about.clip_norm is None else clip_norm / abs(about.clip_norm)

        return float(max((norms.max() * scale(about) for about, norms in self.norms if len(norms)), default=0.0))


class _WatchedUpdates:
    """The mechanism of a plan, with a witness; `instead` replaces the noise on sums."""

    def __init__(self, mechanism: UpdateMechanism, seen: Seen, instead: Protect | None) -> None:
        self._mechanism, self._seen, self._instead = mechanism, seen, instead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def bound(self, uploads: Uploads, about: Round) -> Uploads:
        bounded = self._mechanism.bound(uploads, about)
        self._seen.norms.append((about, norms_of(bounded)))
        if BOUND in bounded.dense:
            self._seen.counts.append(bounded.dense[BOUND].ravel())
        return bounded

    def perturb(self, bounded: Uploads, about: Round, source: Source) -> Uploads:
        sent = self._mechanism.perturb(bounded, about, source)
        self._seen.messages.append((bounded, sent, about))
        return sent

    def noise_of_messages(
        self, view: Schema, weights: Doubles | Offsets, generator: np.random.Generator
    ) -> dict[str, Floats]:
        noise = self._mechanism.noise_of_messages(view, weights, generator)
        self._seen.shared.append((noise, weights))
        return noise

    def protect(self, sums: MutableMapping[str, Doubles], about: Round, source: Source) -> None:
        before = _copied(sums)
        if self._instead is None:
            self._mechanism.protect(sums, about, source)
        else:
            self._instead(sums, about)
        self._seen.sums.append(SeenSums(about, before, _copied(sums)))


class _WatchedReports:
    """The reports of a plan, with a witness who sees every device's by itself."""

    def __init__(self, mechanism: ItemReports, seen: Seen, script: list[SeenReports] | None) -> None:
        self._mechanism, self._seen, self._script = mechanism, seen, script
        self._devices, self._told = np.zeros(0, np.int64), np.zeros((0, 0), np.int64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def count(self, data: Csr, devices: Offsets, *, seed: int, period: int) -> Offsets:
        return self._each(
            data, devices, lambda one, device: self._mechanism.count(one, device, seed=seed, period=period)
        )

    def count_each(self, data: Csr, devices: Offsets, source_of: SourceOf) -> Offsets:
        return self._each(data, devices, lambda one, device: self._mechanism.count_each(one, device, source_of))

    def _each(self, data: Csr, devices: Offsets, count: Callable[[Csr, Offsets], Offsets]) -> Offsets:
        told = [count(data.take(np.array([row])), devices[row : row + 1]) for row in range(len(devices))]
        self._devices, self._told = devices, np.array(told)
        return np.asarray(self._told.sum(axis=0))

    def protect(self, counts: Offsets, source: Source) -> Doubles:
        if self._script is None:
            protected = self._mechanism.protect(counts, source)
        else:
            protected = self._script[len(self._seen.reports)].protected
        self._seen.reports.append(SeenReports(self._devices, self._told, protected))
        return protected


def watch(
    plan: Plan,
    data: LocalData,
    histories: Csr,
    seeds: Seeds,
    rounds: int,
    *,
    script: Seen | None = None,
    quiet: bool = False,
    removed: int | None = None,
) -> Seen:
    """A few rounds of a plan under watch.

    With a script, sums and counts after the noise are those of another run; quiet, sums get no noise.
    """
    seen = Seen()
    instead = _from(script) if script is not None else _no_noise if quiet else None
    mechanism = cast(UpdateMechanism, _WatchedUpdates(plan.mechanism, seen, instead))
    reports = plan.reports
    if reports is not None:
        told = None if script is None else script.reports
        reports = replace(reports, mechanism=cast(ItemReports, _WatchedReports(reports.mechanism, seen, told)))
    watched = replace(plan, mechanism=mechanism, reports=reports)
    simulation: Simulation = simulate(watched, data, histories, seeds, removed=removed)
    seen.keeps_state = bool(simulation.private)
    for number in range(rounds):
        simulation.step(number)
        seen.released.append({name: value.copy() for name, value in simulation.server.weights.items()})
    return seen


def simulate(
    plan: Plan, data: LocalData, histories: Csr, seeds: Seeds, *, removed: int | Offsets | None = None
) -> Simulation:
    """A simulation, or the same without some devices' data: they still count, are drawn, and then are not there."""
    return simulate_as(Simulation, plan, data, histories, seeds, removed=removed)


def simulate_as(
    kind: type[Run], plan: Plan, data: LocalData, histories: Csr, seeds: Seeds, *, removed: int | Offsets | None = None
) -> Run:
    """The same with a simulation of another kind."""
    if removed is None:
        return kind(plan, data, histories, seeds)
    everybody = np.flatnonzero(data.rows.lengths() > 0).astype(np.int64)
    simulation = kind(plan, _without(data, np.atleast_1d(removed)), histories, seeds)
    simulation.sampler = _Without(plan.cohort, everybody, seeds.cohorts, secret=seeds.secret, removed=removed)
    return simulation


def _without(data: LocalData, removed: Offsets) -> LocalData:
    """The same data with nothing in some rows; ratings lie beside items."""
    lengths = data.rows.lengths()
    kept = np.repeat(~np.isin(np.arange(len(lengths)), removed), lengths)
    lengths[removed] = 0
    changed: dict[str, Any] = {"rows": Csr(offsets_of(lengths), data.rows.items[kept])}
    ratings = getattr(data, "ratings", None)
    if ratings is not None:
        changed["ratings"] = ratings[kept]
    return cast(LocalData, replace(cast(Any, data), **changed))


class _Without(CohortSampler):
    """Cohorts of everybody, less some."""

    def __init__(self, *arguments: Any, removed: int | Offsets, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._removed = np.atleast_1d(removed)

    def draw(self, round_number: int) -> Offsets:
        devices = super().draw(round_number)
        left: Offsets = devices[~np.isin(devices, self._removed)]
        return left


def _from(script: Seen) -> Protect:
    by_number = {sums.about.number: sums.after for sums in script.sums}

    def protect(sums: MutableMapping[str, Doubles], about: Round) -> None:
        for name, total in sums.items():
            total[...] = by_number[about.number][name]

    return protect


def _no_noise(sums: MutableMapping[str, Doubles], about: Round) -> None:
    return


def _copied(sums: Mapping[str, Doubles]) -> Sums:
    return {name: total.copy() for name, total in sums.items()}


def norms_of(uploads: Uploads) -> Doubles:
    """L2 norm of each device's update, added up here and not where it is clipped; what it counts for is no part."""
    squares = np.zeros(uploads.count)
    packed = (*uploads.tables.values(), *uploads.entries.values())
    for rows in packed:
        device = np.repeat(np.arange(uploads.count), np.diff(rows.offsets))
        np.add.at(squares, device, (rows.values.astype(np.float64) ** 2).sum(axis=1))
    dense = (values for name, values in uploads.dense.items() if name != BOUND)
    whole = (*dense, *(factors.product() for factors in uploads.factors.values()))
    for values in whole:
        squares += (values.astype(np.float64).reshape(uploads.count, -1) ** 2).sum(axis=1)
    return np.asarray(np.sqrt(squares))
