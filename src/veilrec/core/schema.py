"""The shapes that every package shares: a model's tensors, the round spec, and client updates.

`ClientUpdates` holds the updates of n clients side by side, so that a simulator can make hundreds at once; a real
client makes one (n = 1) and sends it encoded (`wire.messages`). A model on its way to clients has the same shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from veilrec.core.arrays import Doubles, Floats, Indices, Offsets
from veilrec.core.errors import BadInput

ValueCoding: TypeAlias = Literal["float32", "float16", "int8", "int4"]  # how a message writes numbers: wire/messages.py

MAX_TENSORS = 255  # a message numbers them with one byte
BOUND = "bound"  # the tensor of one number whose weight is the clip norm, where that is learnt


@dataclass(frozen=True)
class Tensor:
    """One tensor of the model, known to both sides before the first message."""

    name: str
    shape: tuple[int, ...]
    by_row: bool  # True: a table of which a message carries some rows; False: always sent whole
    values: ValueCoding = "float32"  # how a message carries its numbers
    learnt: bool = True  # False: known before the first round, sent with the model, and no answer is about it

    def __post_init__(self) -> None:
        if self.by_row and len(self.shape) != 2:
            raise ValueError(f"table {self.name} has shape {self.shape}: a table has rows and columns")
        if min(self.shape, default=1) < 1:
            raise ValueError(f"tensor {self.name} has shape {self.shape}: every dimension is at least 1")

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    @property
    def largest(self) -> float:
        """The largest size of a weight: clients learn from no larger one, and a run whose model has one has diverged.

        2^20 for what is learnt: no start has weights beyond 2^3, and a round moves one by at most the server's rate
        times an update of 2^14 (`core.fixed_point`), or its clip norm and noise. 2^24 for what comes from reports: sums
        over at most 2^20 clients and their noise.
        """
        return 2.0**20 if self.learnt else 2.0**24


@dataclass(frozen=True)
class Schema:
    """The tensors of a model, in the order in which messages carry them."""

    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        names = {tensor.name for tensor in self.tensors}
        if len(names) < len(self.tensors) or len(names) > MAX_TENSORS:
            raise ValueError(f"a schema has at most {MAX_TENSORS} tensors, each with its own name")

    def __getitem__(self, name: str) -> Tensor:
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(name)

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """The tensors that are sent by row."""
        return tuple(tensor for tensor in self.tensors if tensor.by_row)

    @property
    def dense(self) -> tuple[Tensor, ...]:
        """The tensors that are sent whole."""
        return tuple(tensor for tensor in self.tensors if not tensor.by_row)

    @property
    def places(self) -> dict[str, slice]:
        """Where the numbers of every tensor lie in a vector of all of them."""
        ends = np.cumsum([tensor.size for tensor in self.tensors]).tolist()
        return {t.name: slice(end - t.size, end) for t, end in zip(self.tensors, ends, strict=True)}

    @property
    def learnt(self) -> Schema:
        """The tensors that answers are about."""
        if all(tensor.learnt for tensor in self.tensors):
            return self
        return Schema(tuple(tensor for tensor in self.tensors if tensor.learnt))

    def narrowed(self, rows: int) -> Schema:
        """The model with so many rows in every table: what a sub-model looks like from inside."""
        tensors = (replace(t, shape=(rows, *t.shape[1:])) if t.by_row else t for t in self.tensors)
        return Schema(tuple(tensors))

    def coded(self, values: ValueCoding) -> Schema:
        """The model with its numbers carried in another way."""
        return Schema(tuple(replace(tensor, values=values) for tensor in self.tensors))


def with_bound(schema: Schema) -> Schema:
    """A model with one number more: the clip norm, learnt from how many updates are within it."""
    return Schema((*schema.tensors, Tensor(BOUND, (1,), by_row=False)))


def check_share(name: str, share: float) -> None:
    """Refuse a share that keeps nothing or more than everything."""
    if not 0.0 < share <= 1.0:
        raise BadInput(f"{name} is {share}: it is the share that is kept, above 0 and at most 1")


def share_of(size: int, share: float) -> int:
    """How many of `size`, at least one."""
    return max(1, math.ceil(share * size))


@lru_cache(maxsize=64)
def public_entries(size: int, share: float, public_seed: int, round_number: int) -> Offsets:
    """Some entries of a flattened tensor, ascending: the same for whoever knows the public seed and the round."""
    check_share("the share of entries", share)
    generator = np.random.default_rng([public_seed, round_number])
    entries = np.sort(generator.choice(size, share_of(size, share), replace=False)).astype(np.int64)
    entries.flags.writeable = False
    return entries


@lru_cache(maxsize=64)
def public_basis(width: int, rank: int, public_seed: int, round_number: int) -> Floats:
    """An orthonormal basis [width, rank] that whoever knows the public seed and the round can draw."""
    generator = np.random.default_rng([public_seed, round_number])
    basis: Floats = np.linalg.qr(generator.standard_normal((width, rank)))[0].astype(np.float32)
    basis.flags.writeable = False
    return basis


@dataclass(frozen=True)
class RoundSpec:
    """What a round is about: public, decided before it from what is released already, and sent with the model.

    Entries and directions are named by a public seed, so that a client draws them itself and nobody can choose them by
    looking at anybody's data.
    """

    number: int
    rows: Indices | None = None  # of every table; None: all
    public_seed: int = 0
    shares: Mapping[str, float] = field(default_factory=dict)  # of the entries of some tensors; the others are whole
    rank: int | None = None  # so many directions of the tables' rows; None: all
    clip_norm: float | None = None  # the bound on an update where it changes from round to round
    coding: ValueCoding | None = None  # of the answers' numbers; None: as the model came
    tensors: tuple[str, ...] | None = None  # that answers are about, of those that are learnt; None: all

    def concerns(self, name: str) -> bool:
        """Whether answers are about a tensor that is learnt."""
        return self.tensors is None or name in self.tensors

    def view(self, schema: Schema) -> Schema:
        """The schema of this round's answers: what is learnt, the rows that are sent, coded as the round says."""
        learnt = schema.learnt
        if self.tensors is not None:
            learnt = Schema(tuple(tensor for tensor in learnt.tensors if self.concerns(tensor.name)))
        view = learnt if self.rows is None else learnt.narrowed(len(self.rows))
        return view if self.coding is None else view.coded(self.coding)

    def entries(self, name: str, size: int) -> Offsets | None:
        """The entries of a flattened tensor that the round is about; None: all of them."""
        if name not in self.shares:
            return None
        return public_entries(size, self.shares[name], self.public_seed, self.number)

    def basis(self, width: int) -> Floats | None:
        """The directions [width, rank] of a table's rows that the round is about; None: all of them."""
        return None if self.rank is None else public_basis(width, self.rank, self.public_seed, self.number)


FIRST_REPORT_SUM = 1 << 31  # the number of a secure sum of reports; rounds have the numbers below


FIRST_COMPARISON_SUM = (1 << 32) - (1 << 16)  # that of a secure sum of gains; those of reports have the numbers below


@dataclass(frozen=True)
class ComparisonSum:
    """A secure sum of the gains of held-out validation clients, after all rounds: its number is the last of a run."""

    attempt: int = 0  # one that came to nothing is followed by another

    @property
    def number(self) -> int:
        """Among all secure sums of a run."""
        return FIRST_COMPARISON_SUM + self.attempt


@dataclass(frozen=True)
class ReportSum:
    """A secure sum of what everybody tells before the first round: its number is one that no round has.

    Sums of reports come before all rounds: where numbers are taken as signed ones of 32 bits, that is their order.
    """

    attempt: int = 0  # one that came to nothing is followed by another

    @property
    def number(self) -> int:
        """Among all secure sums of a run."""
        return FIRST_REPORT_SUM + self.attempt


def place_of_sum(number: int) -> int:
    """Where a secure sum stands in the order of a run: those of reports below 0, rounds from 0 on, then comparisons."""
    return number - 2 * FIRST_REPORT_SUM if FIRST_REPORT_SUM <= number < FIRST_COMPARISON_SUM else number


@dataclass(frozen=True)
class Rows:
    """Some rows of one table, for n clients: client i owns entries `offsets[i]:offsets[i + 1]`."""

    offsets: Offsets  # [n + 1]
    index: Indices  # [entries], row of the table; distinct within a client
    values: Floats  # [entries, width]


@dataclass(frozen=True)
class Factors:
    """A table as a product, for n clients: `left * scales @ right`, of low rank r."""

    left: Floats  # [n, rows, r]
    scales: Floats  # [n, r]
    right: Floats  # [n, r, width]

    def product(self) -> Floats:
        """The tables [n, rows, width]."""
        table: Floats = np.matmul(self.left * self.scales[:, np.newaxis], self.right, dtype=np.float32)
        return table


@dataclass(frozen=True)
class ClientUpdates:
    """The messages of n clients in one round; a tensor is in at most one of the four mappings."""

    round_number: int
    count: int  # n
    tables: Mapping[str, Rows] = field(default_factory=dict)
    dense: Mapping[str, Floats] = field(default_factory=dict)  # [n, *shape]
    examples: Offsets | None = None  # [n], only where the aggregation weighs clients by it
    entries: Mapping[str, Rows] = field(default_factory=dict)  # single numbers of a flattened tensor, one wide
    factors: Mapping[str, Factors] = field(default_factory=dict)  # tables of low rank


def whole_model(schema: Schema, weights: Mapping[str, Floats], round_number: int) -> ClientUpdates:
    """The model as the server sends it: every row of every table, every dense tensor."""
    tables = {t.name: _whole_table(weights[t.name][np.newaxis]) for t in schema.tables}
    dense = {t.name: weights[t.name][np.newaxis] for t in schema.dense}
    return ClientUpdates(round_number, 1, tables, dense)


def _whole_table(values: Floats) -> Rows:
    """All rows of a table, for n clients: [n, rows, width]."""
    n, height, width = values.shape
    index = np.tile(np.arange(height, dtype=np.int32), n)
    return Rows(np.arange(n + 1, dtype=np.int64) * height, index, values.reshape(-1, width))


def part_of_model(schema: Schema, weights: Mapping[str, Floats], rows: Indices, round_number: int) -> ClientUpdates:
    """A sub-model as the server sends it: the same rows of every table, every dense tensor."""
    tables = {t.name: Rows(np.array([0, len(rows)]), rows, weights[t.name][rows]) for t in schema.tables}
    dense = {t.name: weights[t.name][np.newaxis] for t in schema.dense}
    return ClientUpdates(round_number, 1, tables, dense)


def entries_at(flat: Floats, kept: Offsets) -> Rows:
    """Take the given entries of each of [n, size]."""
    offsets = np.arange(len(flat) + 1, dtype=np.int64) * len(kept)
    return Rows(offsets, np.tile(kept.astype(np.int32), len(flat)), flat[:, kept].reshape(-1, 1))


def filled(updates: ClientUpdates, schema: Schema) -> ClientUpdates:
    """Messages with every row of every table in them, zero where nothing changed."""
    tables = {}
    for tensor in schema.tables:
        if tensor.name in updates.entries:
            continue
        rows = updates.tables.get(tensor.name)
        height, width = tensor.shape
        values = np.zeros((updates.count, height, width), np.float32)
        if rows is not None:
            client = np.repeat(np.arange(updates.count), np.diff(rows.offsets))
            values[client, rows.index] = rows.values
        tables[tensor.name] = _whole_table(values)
    return replace(updates, tables=tables)


def copied(updates: ClientUpdates) -> ClientUpdates:
    """Messages whose numbers can be changed in place."""

    def own(packed: Mapping[str, Rows]) -> dict[str, Rows]:
        return {name: Rows(rows.offsets, rows.index, rows.values.copy()) for name, rows in packed.items()}

    dense = {name: values.copy() for name, values in updates.dense.items()}
    return replace(updates, tables=own(updates.tables), entries=own(updates.entries), dense=dense)


def from_vectors(vectors: Doubles, schema: Schema) -> ClientUpdates:
    """Updates [n, size of the model] as messages that carry everything."""
    n = len(vectors)
    tables, dense, start = {}, {}, 0
    for tensor in schema.tensors:
        values = vectors[:, start : start + tensor.size].astype(np.float32).reshape(n, *tensor.shape)
        start += tensor.size
        if tensor.by_row:
            tables[tensor.name] = _whole_table(values)
        else:
            dense[tensor.name] = values
    return ClientUpdates(0, n, tables, dense)


def to_vectors(updates: ClientUpdates, schema: Schema) -> Doubles:
    """What messages say of every number of the model, [n, size of the model]; 0 where they say nothing."""
    parts = []
    for tensor in schema.tensors:
        whole = np.zeros((updates.count, *tensor.shape))
        if tensor.name in updates.dense:
            whole[...] = updates.dense[tensor.name]
        elif tensor.name in updates.factors:
            whole[...] = updates.factors[tensor.name].product()
        for packed, target in ((updates.tables, whole), (updates.entries, whole.reshape(updates.count, -1, 1))):
            if tensor.name in packed:
                rows = packed[tensor.name]
                client = np.repeat(np.arange(updates.count), np.diff(rows.offsets))
                target[client, rows.index] = rows.values
        parts.append(whole.reshape(updates.count, -1))
    return np.concatenate(parts, axis=1)
