"""Adding up what the devices of a round sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from veilrec._arrays import Doubles, Floats, Indices, Offsets
from veilrec._jit import jit
from veilrec.errors import unknown_name
from veilrec.updates import Schema, Uploads
from veilrec.wire.codec import BadMessage

Aggregation = Literal["sum", "mean", "weighted-mean", "row-mean", "row-sqrt"]
AGGREGATIONS: dict[Aggregation, str] = {
    "sum": "the changes of all devices added up",
    "mean": "divided by the number of devices in the round",
    "weighted-mean": "each device weighs by its number of examples, which it then has to tell (FedAvg)",
    "row-mean": "each row divided by the number of devices that changed it (FedSubAvg)",
    "row-sqrt": "each row divided by the square root of the number of devices that changed it",
}


class Aggregator:
    """Sums of one round, in double precision; a message is added and forgotten.

    Rounding moves a sum by an amount that depends on all devices, so it counts towards what one of them can change:
    see `veilrec.privacy.sensitivity.rounded_sum_l2`.
    """

    def __init__(self, schema: Schema, aggregation: Aggregation, *, every_row: bool = False) -> None:
        if aggregation not in get_args(Aggregation):
            raise unknown_name("aggregation", aggregation, get_args(Aggregation))
        self.schema = schema
        self.aggregation: Aggregation = aggregation
        self.every_row = every_row  # messages carry every row (noise fills them): each counts for each row
        self.clear()

    def clear(self) -> None:
        """Forget the round."""
        self.devices = 0
        self.weight = 0.0
        self.sums = {t.name: np.zeros(t.shape) for t in self.schema.tensors}
        self._counts = {t.name: np.zeros(t.shape[0], np.float32) for t in self.schema.tables}

    def add(self, uploads: Uploads) -> None:
        """Add the messages of some devices."""
        weights = self._weights(uploads)
        for name, rows in uploads.tables.items():
            _add_rows(self.sums[name], self._counts[name], rows.offsets, rows.index, rows.values, weights)
        for name, entries in uploads.entries.items():
            column = self.sums[name].reshape(-1, 1)
            uncounted = np.zeros(len(column), np.float32)
            _add_rows(column, uncounted, entries.offsets, entries.index, entries.values, weights)
        for name, factors in uploads.factors.items():
            _add_dense(self.sums[name].reshape(-1), _flat(factors.product()), weights)
        for name, values in uploads.dense.items():
            _add_dense(self.sums[name].reshape(-1), _flat(values), weights)
        self.devices += uploads.count
        self.weight += float(weights.sum())

    def add_to_sum(self, values: Mapping[str, Floats]) -> None:
        """Add something that no device sent: noise."""
        for name, value in values.items():
            self.sums[name] += value

    def _weights(self, uploads: Uploads) -> Doubles:
        if self.aggregation != "weighted-mean":
            return np.ones(uploads.count)
        if uploads.examples is None:
            raise BadMessage("the message does not tell its number of examples, by which this round weighs it")
        return uploads.examples.astype(np.float64)

    def change(self) -> dict[str, Floats]:
        """The change of the model that the round asks for; all zero when nobody reported."""
        return {t.name: (self.sums[t.name] * self._scale(t.name)).astype(np.float32) for t in self.schema.tensors}

    def _scale(self, name: str) -> Doubles | float:
        if self.aggregation == "sum":
            return 1.0
        if self.aggregation in ("mean", "weighted-mean"):
            return 1.0 / max(self.weight, 1.0)
        power = 1.0 if self.aggregation == "row-mean" else 0.5
        if name in self._counts and not self.every_row:
            scale: Doubles = np.maximum(self._counts[name], 1.0).astype(np.float64) ** -power
            return scale[:, np.newaxis]
        return float(max(self.devices, 1) ** -power)


def _flat(values: Floats) -> Floats:
    return values.reshape(len(values), math.prod(values.shape[1:]))


@jit
def _add_rows(
    sums: Doubles, counts: Floats, offsets: Offsets, index: Indices, values: Floats, weights: Doubles
) -> None:
    width = sums.shape[1]
    for device in range(len(weights)):
        weight = weights[device]
        for entry in range(offsets[device], offsets[device + 1]):
            row = np.uint64(index[entry])  # unsigned: no code is made for rows counted from the end
            counts[row] += np.float32(1.0)
            for q in range(width):
                sums[row, q] += weight * values[entry, q]


@jit
def _add_dense(sums: Doubles, values: Floats, weights: Doubles) -> None:
    for device in range(len(weights)):
        for q in range(len(sums)):
            sums[q] += weights[device] * values[device, q]
