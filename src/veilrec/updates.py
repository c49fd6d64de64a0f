"""What may cross the door between devices and server: changed rows of tables, tensors or parts of them, nothing
else.

An `Uploads` holds the messages of n devices side by side, so that a simulator can make hundreds at once; a
real device makes one (n = 1) and sends `codec.encode(...)` of it. A model on its way down has the same shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec.wire.values import ValueCoding

MOST_TENSORS = 255  # a message numbers them with one byte


@dataclass(frozen=True)
class Tensor:
    """One tensor of the model, known to both sides before the first message."""

    name: str
    shape: tuple[int, ...]
    by_row: bool  # True: a table of which a message carries some rows; False: always sent whole
    values: ValueCoding = "float32"  # how a message carries its numbers

    def __post_init__(self) -> None:
        if self.by_row and len(self.shape) != 2:
            raise ValueError(f"table {self.name} has shape {self.shape}: a table has rows and columns")
        if min(self.shape, default=1) < 1:
            raise ValueError(f"tensor {self.name} has shape {self.shape}: every dimension is at least 1")

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Schema:
    """The tensors of a model, in the order in which messages carry them."""

    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        names = {tensor.name for tensor in self.tensors}
        if len(names) < len(self.tensors) or len(names) > MOST_TENSORS:
            raise ValueError(f"a schema has at most {MOST_TENSORS} tensors, each with its own name")

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

    def narrowed(self, rows: int) -> Schema:
        """The same model with so many rows in every table: what a sub-model looks like from inside."""
        return Schema(
            tuple(
                replace(t, shape=(rows, *t.shape[1:])) if t.by_row and t.shape[0] != rows else t for t in self.tensors
            )
        )

    def coded(self, values: ValueCoding) -> Schema:
        """The same model with its numbers carried in another way."""
        return Schema(tuple(replace(tensor, values=values) for tensor in self.tensors))


@dataclass(frozen=True)
class Rows:
    """Some rows of one table, for n devices: device i owns entries `offsets[i]:offsets[i + 1]`."""

    offsets: Offsets  # [n + 1]
    index: Indices  # [entries], row of the table; distinct within a device
    values: Floats  # [entries, width]


@dataclass(frozen=True)
class Factors:
    """A table as a product, for n devices: `left * scales @ right`, of low rank r."""

    left: Floats  # [n, rows, r]
    scales: Floats  # [n, r]
    right: Floats  # [n, r, width]

    def product(self) -> Floats:
        """The tables [n, rows, width]."""
        table: Floats = np.matmul(self.left * self.scales[:, np.newaxis], self.right, dtype=np.float32)
        return table


@dataclass(frozen=True)
class Uploads:
    """The messages of n devices in one round; a tensor is in at most one of the four mappings."""

    round_number: int
    count: int  # n
    tables: Mapping[str, Rows] = field(default_factory=dict)
    dense: Mapping[str, Floats] = field(default_factory=dict)  # [n, *shape]
    examples: Offsets | None = None  # [n], only where the aggregation weighs devices by it
    entries: Mapping[str, Rows] = field(default_factory=dict)  # single numbers of a flattened tensor, one wide
    factors: Mapping[str, Factors] = field(default_factory=dict)  # tables of low rank


def whole_model(schema: Schema, weights: Mapping[str, Floats], round_number: int) -> Uploads:
    """The model as the server sends it: every row of every table, every dense tensor."""
    tables = {
        t.name: Rows(np.array([0, t.shape[0]]), np.arange(t.shape[0], dtype=np.int32), weights[t.name])
        for t in schema.tables
    }
    dense = {t.name: weights[t.name][np.newaxis] for t in schema.dense}
    return Uploads(round_number, 1, tables, dense)


def part_of_model(schema: Schema, weights: Mapping[str, Floats], rows: Indices, round_number: int) -> Uploads:
    """A sub-model as the server sends it: the same rows of every table, every dense tensor."""
    tables = {t.name: Rows(np.array([0, len(rows)]), rows, weights[t.name][rows]) for t in schema.tables}
    dense = {t.name: weights[t.name][np.newaxis] for t in schema.dense}
    return Uploads(round_number, 1, tables, dense)
