"""Round planners: which rows, entries or directions each round covers.

Round specs are public. Their privacy cost depends on where they come from: none for a public seed or the released
model, that of the reports otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from veilrec.core.arrays import Bools, Doubles, Floats, Indices, Offsets
from veilrec.core.errors import BadInput
from veilrec.core.plan import FullModelRounds
from veilrec.core.schema import BOUND, RoundSpec, Schema, Tensor, ValueCoding, share_of
from veilrec.privacy.mechanisms.reports import ItemReports
from veilrec.privacy.mechanisms.responses import estimate_frequency
from veilrec.wire import messages


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
    """The counts as they are, [items, 1]: whoever uses them takes a logarithm, or cuts them off at 0."""

    name: str = "popularity"

    def tensor(self, n_items: int) -> Tensor:
        """Schema entry of the tensor."""
        return Tensor(self.name, (n_items, 1), by_row=True, learnt=False)

    def tensors(self, tally: Tally) -> dict[str, Floats]:
        """One number for each item."""
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

    def frequencies(self, tally: Tally) -> Doubles:
        """Estimate the share of clients that have each item."""
        if not self.estimate:
            return np.clip(tally.counts / max(tally.reports, 1), 0.0, 1.0)
        return estimate_frequency(
            tally.counts,
            tally.reports,
            keep_probability=self.keep_probability,
            noise_probability=1.0 - self.keep_probability,
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
        """All rows, in these directions."""
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
