"""What a round is about: the rows of the sub-model, and the entries of dense tensors that devices answer with.

All of it is public. Where it comes from decides what it costs: reports of the devices, the model as it stands, or a
seed that everybody knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from veilrec import _draws
from veilrec._arrays import Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec.device.compress import public_basis, public_entries, share_of
from veilrec.device.submodel import simulated_histogram, simulated_reports
from veilrec.server.selection import Threshold
from veilrec.updates import Schema
from veilrec.wire import bits


@dataclass(frozen=True)
class Choice:
    """What one round is about, and what it cost to find out."""

    rows: Indices | None  # None: the whole model
    kept: Mapping[str, Offsets] = field(default_factory=dict)  # entries of flattened dense tensors
    report_bytes: int = 0
    basis: Floats | None = None  # [width, rank], orthonormal: the directions that the tables move in


class Chooser(Protocol):
    """Decides before every round; the same again after a restart."""

    def choose(self, number: int, devices: Offsets, weights: Mapping[str, Floats]) -> Choice:
        """For round `number` with these devices and the model as it stands."""


class ReportedItems:
    """DP-SUB: the items that enough devices report, by randomised response."""

    def __init__(
        self,
        train: Csr,
        n_items: int,
        threshold: Threshold,
        seed: int,
        *,
        reports: Literal["everybody", "cohort"],
        fresh: bool,
    ) -> None:
        self.train = train
        self.n_items = n_items
        self.threshold = threshold
        self.seed = seed
        self.reports = reports
        self.fresh = fresh  # new lies every round, as published; otherwise a device repeats its first report
        self._everybody = np.flatnonzero(train.lengths() > 0).astype(np.int64)
        self._settled: Indices | None = None

    def choose(self, number: int, devices: Offsets, weights: Mapping[str, Floats]) -> Choice:
        """Ask the devices, unless everybody has been asked and would say the same again."""
        asked = self._everybody if self.reports == "everybody" else devices
        once = self.reports == "everybody" and not self.fresh
        if not len(asked) or (once and self._settled is not None):
            return self._choice(self._settled, len(asked) if once and number == 0 else 0)
        rows = self._ask(asked, number)
        if once:
            self._settled = rows
        return self._choice(rows, len(asked) if not once or number == 0 else 0)

    def _ask(self, asked: Offsets, number: int) -> Indices:
        lie = 1.0 - self.threshold.keep_probability
        period = number if self.fresh else 0
        counts = simulated_reports(self.train.take(asked), asked, self.n_items, lie, seed=self.seed, period=period)
        return self.threshold.rows(counts, len(asked))

    def _choice(self, rows: Indices | None, reports: int) -> Choice:
        whole = rows is None or len(rows) == self.n_items
        return Choice(None if whole else rows, report_bytes=reports * bits.size(self.n_items))


class HistogramItems:
    """The most used items by one noisy histogram on sums: a report of at most `most` items by everybody, once."""

    def __init__(self, train: Csr, n_items: int, threshold: Threshold, seed: int, *, most: int, sigma: float) -> None:
        self.n_items = n_items
        everybody = np.flatnonzero(train.lengths() > 0).astype(np.int64)
        self._reports = len(everybody)
        counts = simulated_histogram(train.take(everybody), everybody, n_items, most, seed=seed)
        key = np.random.SeedSequence([seed, _draws.HISTOGRAM])
        noise = np.random.Generator(np.random.Philox(key)).normal(0.0, 1.0, n_items)
        self.rows = threshold.rows(counts + sigma * noise, len(everybody))

    def choose(self, number: int, devices: Offsets, weights: Mapping[str, Floats]) -> Choice:
        """The same in every round."""
        reports = self._reports if number == 0 else 0
        whole = len(self.rows) == self.n_items
        return Choice(None if whole else self.rows, report_bytes=reports * bits.size(self.n_items))


class MovedRows:
    """The rows that the released model has moved most so far, and some at random for those that have not."""

    def __init__(self, start: Floats, table: str, share: float, seed: int) -> None:
        self._start = start
        self._table = table
        self._count = share_of(len(start), share)
        self._seed = seed

    def choose(self, number: int, devices: Offsets, weights: Mapping[str, Floats]) -> Choice:
        """Half of the rows by movement, half by a public seed."""
        n_items = len(self._start)
        if self._count == n_items:
            return Choice(None)
        moved = np.linalg.norm(weights[self._table] - self._start, axis=1)
        shuffled = random_order(n_items, self._seed, number)
        first = shuffled[: self._count - self._count // 2]
        moved[first] = -1.0
        most = np.argpartition(-moved, self._count // 2)[: self._count // 2]
        return Choice(np.sort(np.concatenate([first, most])).astype(np.int32))


class SeededParts:
    """Rows of the tables and entries of some dense tensors, drawn anew every round from a public seed."""

    def __init__(
        self,
        schema: Schema,
        seed: int,
        *,
        row_share: float = 1.0,
        kept_share: float = 1.0,
        names: tuple[str, ...] = (),
        rows_from: Chooser | None = None,
    ) -> None:
        self._schema = schema
        self._seed = seed
        self._row_share, self._kept_share = row_share, kept_share
        self._names = names
        self._rows_from = rows_from

    def choose(self, number: int, devices: Offsets, weights: Mapping[str, Floats]) -> Choice:
        """Everything that the seed decides; rows by another chooser if there is one."""
        kept = {
            name: public_entries(self._schema[name].size, self._kept_share, self._seed, number) for name in self._names
        }
        if self._rows_from is not None:
            inner = self._rows_from.choose(number, devices, weights)
            return Choice(inner.rows, kept, inner.report_bytes)
        n_items = self._schema.tables[0].shape[0]
        count = share_of(n_items, self._row_share)
        rows = np.sort(random_order(n_items, self._seed, number)[:count]).astype(np.int32)
        return Choice(None if count == n_items else rows, kept)


class SeededBasis:
    """Some directions of the tables' rows, drawn anew every round from a public seed."""

    def __init__(self, width: int, rank: int, seed: int) -> None:
        self._width, self._rank = width, rank
        self._seed = seed

    def choose(self, number: int, devices: Offsets, weights: Mapping[str, Floats]) -> Choice:
        """All rows, in these directions."""
        return Choice(None, basis=public_basis(self._width, self._rank, self._seed, number))


def random_order(size: int, seed: int, number: int) -> Offsets:
    """A public order of the rows for one round."""
    return np.random.default_rng([seed, number]).permutation(size)
