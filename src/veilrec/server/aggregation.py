"""Adding up what the devices of a round sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from veilrec.core.arrays import Doubles, Floats, Indices, Offsets
from veilrec.core.errors import BadInput, VeilrecError, unknown_name
from veilrec.core.fixed_point import FixedPoint
from veilrec.core.jit import exact_jit
from veilrec.core.schema import ClientUpdates

Aggregation = Literal["sum", "mean", "weighted-mean", "row-mean", "row-sqrt"]
AGGREGATIONS: dict[Aggregation, str] = {
    "sum": "the changes of all devices added up",
    "mean": "divided by the number of devices in the round",
    "weighted-mean": "each device weighs by its number of examples, which it then has to tell (FedAvg)",
    "row-mean": "each row divided by the number of devices that changed it (FedSubAvg)",
    "row-sqrt": "each row divided by the square root of the number of devices that changed it",
}

ROW_COUNTS = ("row-mean", "row-sqrt")  # rules that need to know how many devices sent each row


class Aggregator:
    """Sums of one round, in whole numbers of its lattice; a message is added and forgotten.

    `vector` is the sum of what `lattice.integers` gives of each device, in whichever order and however they were
    grouped. Only the sum of all becomes numbers (`sums`), and from then on nothing can be added any more.
    """

    def __init__(self, lattice: FixedPoint, aggregation: Aggregation) -> None:
        if aggregation not in get_args(Aggregation):
            raise unknown_name("aggregation", aggregation, get_args(Aggregation))
        self.aggregation: Aggregation = aggregation
        self.clear(lattice)

    def clear(self, lattice: FixedPoint) -> None:
        """Begin a round."""
        self.lattice = lattice
        self.devices = 0
        self.vector = np.zeros(lattice.size, np.int64)
        self._sums: dict[str, Doubles] | None = None

    @property
    def sums(self) -> dict[str, Doubles]:
        """The sums as numbers: the same arrays whenever they are asked for."""
        if self._sums is None:
            lattice = self.lattice
            self._sums = {
                t.name: lattice.numbers(self.vector[lattice.places[t.name]], t.name).reshape(t.shape)
                for t in lattice.view.tensors
            }
        return self._sums

    @property
    def weight(self) -> int:
        """What a mean is divided by: the number of examples, or of devices."""
        return int(self.vector[-1]) if self.lattice.weighs_examples else self.devices

    def add(self, uploads: ClientUpdates) -> None:
        """Add the messages of some devices."""
        self._expect(uploads.count)
        weights = self.lattice.weights(uploads)
        for name, rows in (*uploads.tables.items(), *uploads.entries.items()):
            counted = name in self.lattice.count_places and name in uploads.tables
            self._add(name, rows.offsets, rows.index, rows.values, weights, counts_rows=counted)
        whole = {**{name: factors.product() for name, factors in uploads.factors.items()}, **uploads.dense}
        places = np.arange(uploads.count + 1), np.zeros(uploads.count, np.int32)
        for name, values in whole.items():
            self._add(name, *places, values.reshape(len(values), math.prod(values.shape[1:])), weights)
        if self.lattice.weighs_examples:
            self.vector[-1] += int(weights.sum())
        self.devices += uploads.count

    def _add(
        self,
        name: str,
        offsets: Offsets,
        index: Indices,
        values: Floats,
        weights: Doubles,
        *,
        counts_rows: bool = False,
    ) -> None:
        lattice = self.lattice
        table = self.vector[lattice.places[name]].reshape(-1, values.shape[1])
        counts = self.vector[lattice.count_places[name]] if counts_rows else self.vector[:0]
        per_step, most = 1.0 / lattice.steps[name], float(lattice.most)
        within = _add_units(table, counts, offsets, index, values, weights, per_step, most, lattice.saturates)
        if not within:
            raise lattice.beyond(name)

    def add_integers(self, total: Offsets, *, devices: int) -> None:
        """Add what some devices have added up to already: under masks, or in another process."""
        self.lattice.check_sum(total, devices)
        self._expect(devices)
        self.vector += total
        self.devices += devices

    def _expect(self, devices: int) -> None:
        if self._sums is not None:
            raise VeilrecError("the sum of this round has been taken: nothing can be added before the next round")
        if self.devices + devices > self.lattice.devices:
            raise BadInput(
                f"a round has messages of {self.devices + devices} devices: its sums are made for"
                f" {self.lattice.devices} at most"
            )

    def add_to_sum(self, values: Mapping[str, Floats]) -> None:
        """Add something that no device sent: noise."""
        for name, value in values.items():
            self.sums[name] += value

    def change(self) -> dict[str, Floats]:
        """The change of the model that the round asks for; all zero when nobody reported."""
        return {name: (total * self._scale(name)).astype(np.float32) for name, total in self.sums.items()}

    def _scale(self, name: str) -> Doubles | float:
        if self.aggregation == "sum":
            return 1.0
        if self.aggregation in ("mean", "weighted-mean"):
            return 1.0 / max(self.weight, 1)
        power = 1.0 if self.aggregation == "row-mean" else 0.5
        if name in self.lattice.count_places:
            counts = self.vector[self.lattice.count_places[name]]
            scale: Doubles = np.maximum(counts, 1).astype(np.float64) ** -power
            return scale[:, np.newaxis]
        return float(max(self.devices, 1) ** -power)


@exact_jit
def _add_units(
    sums: Offsets,
    counts: Offsets,
    offsets: Offsets,
    index: Indices,
    values: Floats,
    weights: Doubles,
    per_step: float,
    most: float,
    saturates: bool,
) -> bool:
    """Cut, and add; whether every number had its place on the lattice. `counts` is empty where rows do not count."""
    within = True
    for device in range(len(weights)):
        units_of_one = weights[device] * per_step
        for entry in range(offsets[device], offsets[device + 1]):
            row = np.uint64(index[entry])  # unsigned: no code is made for rows counted from the end
            if len(counts):
                counts[row] += 1
            beyond = 0
            for q in range(sums.shape[1]):
                units = values[entry, q] * units_of_one
                fits = abs(units) <= most
                sums[row, q] += np.int64(units if fits else 0.0)
                beyond += 0 if fits else 1
            if beyond:
                within &= saturates and _add_ends(sums[row], values[entry], units_of_one, most)
    return within


@exact_jit
def _add_ends(sums: Offsets, values: Floats, units_of_one: float, most: float) -> bool:
    """Of numbers that lie beyond the lattice, where it ends; whether all are numbers."""
    numbers = True
    for q in range(len(sums)):
        units = values[q] * units_of_one
        numbers &= not math.isnan(units)
        if abs(units) > most:
            sums[q] += np.int64(math.copysign(most, units))
    return numbers
