"""Client sampling and round planners: the cohort of each round, and which rows, entries or directions it covers.

A cohort is drawn at a cost that depends on the cohort alone. Round specs are public. Their privacy cost depends on
where they come from: none for a public seed or the released model, that of the reports otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np

from veilrec.core import rng
from veilrec.core.arrays import Bools, Doubles, Floats, Indices, Offsets
from veilrec.core.errors import BadInput, counted
from veilrec.core.plan import FullModelRounds, Plan
from veilrec.core.schema import BOUND, RoundSpec, Schema, Tensor, ValueCoding, share_of
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum
from veilrec.privacy.mechanisms.reports import ItemReports
from veilrec.privacy.mechanisms.responses import estimate_frequency, happens
from veilrec.privacy.mechanisms.sums import CohortSum, fixed_cohorts
from veilrec.privacy.randomness import KeyedSource
from veilrec.wire import messages


@dataclass(frozen=True)
class CohortSettings:
    """Size of a cohort, sampling scheme, availability and drop-out."""

    size: int = 100  # clients in a round, the expected number under Poisson sampling; 0: everybody
    # exactly `size` without replacement; each on its own; or a fixed order, `size` at a time, so that all come as often
    sampling: Literal["fixed", "poisson", "cyclic"] = "fixed"
    available: float = 1.0  # chance that a client can be reached in a round
    drop_out: float = 0.0  # chance that a client learns but its message never arrives

    def __post_init__(self) -> None:
        if self.size < 0:
            raise BadInput(f"cohort.size is {self.size}: give a whole number above 0, or 0 for everybody")
        if not 0.0 < self.available <= 1.0:
            raise BadInput(
                f"cohort.available is {self.available}: it is the chance that a client can be reached; give a number"
                " above 0 and up to 1"
            )
        if not 0.0 <= self.drop_out < 1.0:
            raise BadInput(
                f"cohort.drop_out is {self.drop_out}: it is the chance that a message is lost; give a number from 0"
                " to below 1"
            )

    def among(self, population: int) -> int:
        """Cohort size in a population; raise BadInput for one that cannot be drawn."""
        if population == 0:
            raise BadInput("no client has anything to learn from: every user's training part is empty")
        if self.size > population:
            raise TooFewClients(self.size, population)
        return self.size or population

    @property
    def in_public_order(self) -> CohortSettings:
        """Client sampling of the same size without chance: everybody, or the next of a public order."""
        return replace(self, sampling="cyclic") if self.size else self

    def max_participations(self, rounds: int, population: int) -> int:
        """Largest number of rounds that a client takes part in."""
        if self.sampling != "cyclic":
            return rounds
        return math.ceil(rounds * self.among(population) / population)


class TooFewClients(BadInput):
    """A cohort is larger than the population."""

    def __init__(self, size: int, population: int) -> None:
        self.population = population
        super().__init__(
            f"cohort.size is {size}, but only {counted(population, 'client')} can learn: use "
            f"--set cohort.size={min(100, population)}, or another size from 1 to {population}; 0 is everybody"
        )


class CohortSampler:
    """Draws the clients of each round, keyed by (seed, round); from a secret where amplification rests on it.

    Cohorts are drawn from as many places as the plan has `people`. Those behind the eligible clients are empty, so that
    the chance to be drawn depends on the nominal number alone.
    """

    def __init__(
        self,
        settings: CohortSettings,
        eligible: Offsets,
        seed: int,
        *,
        secret: bytes | None = None,
        people: int | None = None,
        numbers: Offsets | None = None,  # of all clients: the keys of what they meet by chance; None: their rows
    ) -> None:
        self.people = people if people and len(eligible) else len(eligible)
        if self.people < len(eligible):
            raise BadInput(f"--people is {people}, and {len(eligible)} clients can learn: give at least so many")
        self.size = settings.among(self.people)
        if not 0 <= seed < 2**63:
            raise BadInput(f"seed is {seed}: it is a whole number from 0 to below 2^63")
        self.settings = settings
        self.eligible = eligible
        self.seed = seed
        self._secret, self._numbers = secret, numbers

    @property
    def _order(self) -> Offsets:
        """Fixed order for cohort.sampling=cyclic: the same in every round."""
        n = self.people
        if self._secret is not None:
            return np.argsort(KeyedSource(self._secret, rng.COHORT, 0).words(n), kind="stable")
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, rng.COHORT]))).permutation(n)

    def _drawn(self, round_number: int) -> Offsets:
        """The places of a round, in increasing order."""
        if self.settings.sampling == "cyclic":
            return self._turn(round_number)
        return self._chosen(round_number) if self._secret is None else self._secretly(self._secret, round_number)

    def empty(self, round_number: int) -> int:
        """How many places of a round no client has."""
        return int((self._drawn(round_number) >= len(self.eligible)).sum())

    def draw(self, round_number: int) -> Offsets:
        """The clients of a round, in increasing order."""
        s, chosen = self.settings, self._drawn(round_number)
        clients = self.eligible[chosen[chosen < len(self.eligible)]]
        if s.available < 1.0:
            clients = clients[self._chance(rng.AVAILABILITY, round_number, clients, s.available)]
        return clients

    def _chosen(self, round_number: int) -> Offsets:
        """Sample from the seed, at a cost that depends on the cohort alone."""
        n = self.people
        key = np.random.SeedSequence([self.seed, rng.COHORT, round_number])
        generator = np.random.Generator(np.random.Philox(key))
        poisson = self.settings.sampling == "poisson"
        size = int(generator.binomial(n, self.size / n)) if poisson else self.size
        return np.sort(generator.choice(n, size, replace=False, shuffle=False))

    def _secretly(self, secret: bytes, round_number: int) -> Offsets:
        """Sample from the secret: one word per client of a keyed stream."""
        n = self.people
        source = KeyedSource(secret, rng.COHORT, round_number)
        if self.size == n:
            return np.arange(n)
        if self.settings.sampling == "poisson":
            return np.flatnonzero(happens(self.size / n, (n,), source))
        return np.flatnonzero(fixed_cohorts(1, n, self.size, source)[0])

    def _turn(self, round_number: int) -> Offsets:
        """Next clients of the fixed order, which repeats."""
        n = self.people
        return np.sort(self._order[(round_number * self.size + np.arange(self.size)) % n])

    def arrives(self, round_number: int, clients: Offsets) -> Bools:
        """Which of the clients' messages reach the server."""
        if self.settings.drop_out == 0.0:
            return np.ones(len(clients), np.bool_)
        return ~self._chance(rng.DROP_OUT, round_number, clients, self.settings.drop_out)

    def _chance(self, purpose: int, round_number: int, clients: Offsets, chance: float) -> Bools:
        keys = clients if self._numbers is None else self._numbers[clients]
        return rng.uniforms(self.seed, purpose, round_number, keys)[:, 0] < chance


def draw_cohort(plan: Plan, round_number: int, enrolled: int, secret: bytes, over_selection: float) -> Offsets:
    """The clients of a round, out of so many that are enrolled; refused where the noise was not chosen for it."""
    # How many cannot be reached, and how many drop out, is for simulations: here it happens.
    settings = replace(plan.cohort, available=1.0, drop_out=0.0)
    if over_selection > 1.0:
        drawn = math.ceil(settings.among(enrolled) * over_selection)
        settings = replace(settings, size=min(enrolled, drawn))
    mechanism = plan.mechanism
    accounted = mechanism.taking_part if isinstance(mechanism, CohortSum | DistributedNoiseSum) else None
    cyclic = accounted is not None and settings.sampling == "cyclic"
    if accounted is not None and (accounted.rate < 1.0 or cyclic):
        planned = accounted.population
        if enrolled < planned:
            raise BadInput(
                f"{enrolled} clients are enrolled, and the noise was chosen for cohorts out of {planned}: it would "
                "protect less; enrol more, or plan for fewer"
            )
    if accounted is not None and cyclic:  # whoever enrols later would move the rounds of the others
        enrolled = accounted.population
    clients = CohortSampler(settings, np.arange(enrolled), 0, secret=secret).draw(round_number)
    if accounted is not None and len(clients) > accounted.population:
        raise BadInput(
            f"round {round_number} would have {len(clients)} clients, and the noise was chosen for "
            f"{accounted.population} at most: plan for more"
        )
    return clients


@dataclass(frozen=True)
class Tally:
    """Counts of reports per item, with the noise that they need."""

    counts: Doubles
    reports: int


class ReportTensors(Protocol):
    """Turns reports into tensors of the model that no client update is about."""

    def tensors(self, tally: Tally) -> Mapping[str, Floats]:
        """Tensors by name; all are in the model before its first round."""


@dataclass(frozen=True)
class PopularityTensor:
    """Raw counts, [items, 1]; models take a logarithm, or cut them off at 0."""

    name: str = "popularity"

    def tensor(self, n_items: int) -> Tensor:
        """Schema entry of the tensor."""
        return Tensor(self.name, (n_items, 1), by_row=True, learnt=False)

    def tensors(self, tally: Tally) -> dict[str, Floats]:
        """Return the counts as a tensor."""
        return {self.name: tally.counts.astype(np.float32).reshape(-1, 1)}


class RoundPlanner(Protocol):
    """Makes the spec of every round; the same again after a restart."""

    @property
    def leaves_out(self) -> bool:
        """Whether a round may be about a part of the items only."""

    def next(self, number: int, weights: Mapping[str, Floats], tally: Tally | None) -> RoundSpec:
        """Spec of round `number`, given the current model and the reports."""


@dataclass(frozen=True, kw_only=True)
class ReportThreshold:
    """Selection of items by reported frequency (DP-SUB, Xue et al. 2026, Algorithm 1, server)."""

    keep_probability: float = 1.0  # that a bit was told as it is
    estimate: bool = True  # whether to undo the lies (eq. 8); FedMF-Sub-RR does not
    threshold: float | None = None  # None: the mean of the frequencies
    cut: bool = True  # whether estimates are kept within what there can be; eq. 8 prints none

    def frequencies(self, tally: Tally) -> Doubles:
        """Estimate the share of clients that have each item."""
        if not self.estimate:
            return np.clip(tally.counts / max(tally.reports, 1), 0.0, 1.0)
        return estimate_frequency(
            tally.counts,
            tally.reports,
            keep_probability=self.keep_probability,
            noise_probability=1.0 - self.keep_probability,
            cut=self.cut,
        )

    def rows(self, tally: Tally) -> Indices:
        """The items above the threshold; all of them if all are used equally often."""
        frequency = self.frequencies(tally)
        level = float(frequency.mean()) if self.threshold is None else self.threshold
        chosen = np.flatnonzero(frequency > level).astype(np.int32)
        if len(chosen):
            return chosen
        if self.threshold is None:
            return np.arange(len(frequency), dtype=np.int32)
        raise BadInput(
            f"selection.threshold is {self.threshold}: no item is used by so many; the most used one has "
            f"frequency {frequency.max():.4g}, give less than that"
        )


@dataclass(frozen=True)
class ReportedItems:
    """Rounds over the items that enough clients report."""

    threshold: ReportThreshold
    leaves_out = True

    def next(self, number: int, weights: Mapping[str, Floats], tally: Tally | None) -> RoundSpec:
        """Items above the threshold; all without reports."""
        if tally is None:
            return RoundSpec(number)
        rows = self.threshold.rows(tally)
        return RoundSpec(number, None if len(rows) == len(tally.counts) else rows)


@dataclass(frozen=True)
class MovedRows:
    """Rounds over the rows that the released model has moved most, and some at random."""

    start: Floats
    table: str
    share: float
    public_seed: int
    leaves_out = True

    def next(self, number: int, weights: Mapping[str, Floats], tally: Tally | None) -> RoundSpec:
        """Half of the rows by movement, half by the public seed."""
        n_items = len(self.start)
        count = share_of(n_items, self.share)
        if count == n_items:
            return RoundSpec(number)
        moved = np.linalg.norm(weights[self.table] - self.start, axis=1)
        first = random_order(n_items, self.public_seed, number)[: count - count // 2]
        moved[first] = -1.0
        most = np.argpartition(-moved, count // 2)[: count // 2]
        return RoundSpec(number, np.sort(np.concatenate([first, most])).astype(np.int32))


@dataclass(frozen=True, kw_only=True)
class SeededParts:
    """Rows of the tables and entries of some dense tensors, drawn anew every round from a public seed."""

    schema: Schema
    public_seed: int
    row_share: float = 1.0
    entry_share: float = 1.0
    names: tuple[str, ...] = ()  # of the dense tensors
    rows_from: RoundPlanner | None = None  # where the rows come from elsewhere
    coding: ValueCoding | None = None
    leaves_out = True

    def next(self, number: int, weights: Mapping[str, Floats], tally: Tally | None) -> RoundSpec:
        """Rows and entries of a round."""
        shares = dict.fromkeys(self.names, self.entry_share)
        return RoundSpec(number, self._rows(number, weights, tally), self.public_seed, shares, coding=self.coding)

    def _rows(self, number: int, weights: Mapping[str, Floats], tally: Tally | None) -> Indices | None:
        if self.rows_from is not None:
            return self.rows_from.next(number, weights, tally).rows
        n_items = self.schema.tables[0].shape[0]
        count = share_of(n_items, self.row_share)
        if count == n_items:
            return None
        return np.sort(random_order(n_items, self.public_seed, number)[:count]).astype(np.int32)


@dataclass(frozen=True, kw_only=True)
class SeededDirections:
    """Some directions of the tables' rows, drawn anew every round from a public seed."""

    rank: int
    public_seed: int
    leaves_out = True

    def next(self, number: int, weights: Mapping[str, Floats], tally: Tally | None) -> RoundSpec:
        """Return the spec: all rows, in the directions of the seed."""
        return RoundSpec(number, public_seed=self.public_seed, rank=self.rank)


@dataclass(frozen=True)
class LearntBound:
    """Adds the clip norm of the released model (adaptive clipping) to the specs of another planner."""

    inner: RoundPlanner = field(default_factory=FullModelRounds)

    @property
    def leaves_out(self) -> bool:
        """Whether the inner planner leaves items out."""
        return self.inner.leaves_out

    def next(self, number: int, weights: Mapping[str, Floats], tally: Tally | None) -> RoundSpec:
        """Spec of the inner planner with the current clip norm."""
        return replace(self.inner.next(number, weights, tally), clip_norm=float(weights[BOUND][0]))


def random_order(size: int, public_seed: int, number: int) -> Offsets:
    """Public random order of rows for one round."""
    return np.random.default_rng([public_seed, number]).permutation(size)


class Ballot:
    """Sums reports as they arrive; a report is counted and discarded."""

    def __init__(self, mechanism: ItemReports, round_number: int) -> None:
        self.counts = np.zeros(mechanism.length, np.int64)
        self.reports = 0
        self._mechanism = mechanism
        self._round_number = round_number

    def receive(self, message: bytes) -> None:
        """Check and count one report; a bad one raises and changes nothing."""
        self.counts += self._mechanism.weigh(self.read(message))
        self.reports += 1

    def read(self, message: bytes) -> Bools:
        """Unpack one report; one that cannot be counted raises."""
        told = messages.decode_report(message, len(self.counts), self._round_number)
        self._mechanism.check(told)
        return told
