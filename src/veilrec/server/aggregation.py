"""Aggregation of client updates in fixed-point integers, and the server optimisers: SGD, FedAdam and FedYogi.

To an optimiser the aggregated update plays the part of the negative gradient (Reddi et al., Adaptive Federated
Optimization, 2021). Symbols: eta `rate`, beta_1 `momentum`, beta_2 `second_momentum`, tau `caution`, m_t and v_t the
first and second moments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from veilrec.core.arrays import Doubles, Floats, Indices, Offsets
from veilrec.core.errors import BadInput, VeilrecError, unknown_name
from veilrec.core.fixed_point import FixedPoint
from veilrec.core.jit import exact_jit
from veilrec.core.plan import Aggregation
from veilrec.core.schema import ClientUpdates


class Aggregator:
    """Sums of one round, in whole numbers of its lattice; a message is added and forgotten.

    `vector` is the sum of what `fixed_point.integers` gives of each client, in whichever order and however they were
    grouped. Only the sum of all becomes numbers (`sums`), and from then on nothing can be added any more.
    """

    def __init__(self, fixed_point: FixedPoint, aggregation: Aggregation) -> None:
        if aggregation not in get_args(Aggregation):
            raise unknown_name("aggregation", aggregation, get_args(Aggregation))
        self.aggregation: Aggregation = aggregation
        self.clear(fixed_point)

    def clear(self, fixed_point: FixedPoint) -> None:
        """Begin a round."""
        self.fixed_point = fixed_point
        self.clients = 0
        self.vector = np.zeros(fixed_point.size, np.int64)
        self._sums: dict[str, Doubles] | None = None

    @property
    def sums(self) -> dict[str, Doubles]:
        """The sums as numbers: the same arrays whenever they are asked for."""
        if self._sums is None:
            fixed_point = self.fixed_point
            self._sums = {
                t.name: fixed_point.numbers(self.vector[fixed_point.places[t.name]], t.name).reshape(t.shape)
                for t in fixed_point.view.tensors
            }
        return self._sums

    def add(self, updates: ClientUpdates) -> None:
        """Add the messages of some clients."""
        self._expect(updates.count)
        weights = self.fixed_point.weights(updates)
        for name, rows in (*updates.tables.items(), *updates.entries.items()):
            counted = name in self.fixed_point.count_places and name in updates.tables
            self._add(name, rows.offsets, rows.index, rows.values, weights, counts_rows=counted)
        whole = {**{name: factors.product() for name, factors in updates.factors.items()}, **updates.dense}
        places = np.arange(updates.count + 1), np.zeros(updates.count, np.int32)
        for name, values in whole.items():
            self._add(name, *places, values.reshape(len(values), math.prod(values.shape[1:])), weights)
        if self.fixed_point.weighs_examples:
            self.vector[-1] += int(weights.sum())
        self.clients += updates.count

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
        fixed_point = self.fixed_point
        table = self.vector[fixed_point.places[name]].reshape(-1, values.shape[1])
        counts = self.vector[fixed_point.count_places[name]] if counts_rows else self.vector[:0]
        per_step, most = 1.0 / fixed_point.steps[name], float(fixed_point.most)
        within = _add_units(table, counts, offsets, index, values, weights, per_step, most, fixed_point.saturates)
        if not within:
            raise fixed_point.beyond(name)

    def add_integers(self, total: Offsets, *, clients: int) -> None:
        """Add what some clients have added up to already: under masks, or in another process."""
        self.fixed_point.check_sum(total, clients)
        self._expect(clients)
        self.vector += total
        self.clients += clients

    def _expect(self, clients: int) -> None:
        if self._sums is not None:
            raise VeilrecError("the sum of this round has been taken: nothing can be added before the next round")
        if self.clients + clients > self.fixed_point.clients:
            raise BadInput(
                f"a round has messages of {self.clients + clients} clients: its sums are made for"
                f" {self.fixed_point.clients} at most"
            )

    def add_to_sum(self, values: Mapping[str, Floats]) -> None:
        """Add something that no client sent: noise."""
        for name, value in values.items():
            self.sums[name] += value

    def change(self) -> dict[str, Floats]:
        """Aggregate of the round; all zero without messages."""
        return {name: (total * self._scale(name)).astype(np.float32) for name, total in self.sums.items()}

    def _scale(self, name: str) -> Doubles | float:
        if self.aggregation == "sum":
            return 1.0
        if self.aggregation in ("mean", "weighted-mean"):
            return 1.0 / max(int(self.vector[-1]) if self.fixed_point.weighs_examples else self.clients, 1)
        power = 1.0 if self.aggregation == "row-mean" else 0.5
        if name in self.fixed_point.count_places:
            counts = self.vector[self.fixed_point.count_places[name]]
            scale: Doubles = np.maximum(counts, 1).astype(np.float64) ** -power
            return scale[:, np.newaxis]
        return float(max(self.clients, 1) ** -power)


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
    for client in range(len(weights)):
        units_of_one = weights[client] * per_step
        for entry in range(offsets[client], offsets[client + 1]):
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
    """Add numbers beyond the fixed-point range as its ends; return False where one is NaN."""
    numbers = True
    for q in range(len(sums)):
        units = values[q] * units_of_one
        numbers &= not math.isnan(units)
        if abs(units) > most:
            sums[q] += np.int64(math.copysign(most, units))
    return numbers


class ServerOptimiser:
    """Changes the weights in place; its state survives a restart. This one puts the sums of a round in their place."""

    def __init__(self, settings: ServerRate) -> None:
        self.settings = settings
        self._moments: dict[str, Floats] = {}  # by kind and name, such as "velocity.items"

    def step(self, weights: Mapping[str, Floats], change: Mapping[str, Floats]) -> None:
        """Move the weights by one round: w = change."""
        for name, value in change.items():
            weights[name][...] = value

    def state(self) -> dict[str, Floats]:
        """Return the state that the next step depends on."""
        return dict(self._moments)

    def load_state(self, state: Mapping[str, Floats]) -> None:
        """Go on from a saved state."""
        self._moments = {name: value.copy() for name, value in state.items()}


_LARGEST = 1e12  # whose square, times that of the size of a cohort, is still a number in single precision


@dataclass(frozen=True)
class ServerRate:
    """Settings of the server's step."""

    optimiser: Literal["sgd", "adam", "yogi"] = "sgd"  # what turns the sum of a round into a step
    rate: float = 1.0  # SGD with rate 1 and no momentum is plain averaging (or summing)
    momentum: float = 0.0  # beta_1
    second_momentum: float = 0.99  # beta_2 of FedAdam and FedYogi
    caution: float = 1e-3  # tau: keeps small second moments from giving large steps

    def __post_init__(self) -> None:
        for name in ("rate", "caution"):
            if not 0.0 < getattr(self, name) <= _LARGEST:
                raise BadInput(
                    f"server.{name} is {getattr(self, name)}: it has to be a number above 0 and up to {_LARGEST:g}"
                )
        for name in ("momentum", "second_momentum"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise BadInput(f"server.{name} is {getattr(self, name)}: it has to be from 0 to below 1")


@dataclass(frozen=True)
class Replacing(ServerRate):
    """No optimiser step: the model is the sum of the last round."""


def make_optimiser(settings: ServerRate) -> ServerOptimiser:
    """The optimiser that the settings name."""
    if isinstance(settings, Replacing):
        return ServerOptimiser(settings)
    if settings.optimiser == "sgd":
        return Sgd(settings)
    if settings.optimiser in ("adam", "yogi"):
        return Adaptive(settings)
    raise unknown_name("server optimiser", settings.optimiser, ("sgd", "adam", "yogi"))


class Sgd(ServerOptimiser):
    """w += rate * m, with m = momentum * m + change."""

    def step(self, weights: Mapping[str, Floats], change: Mapping[str, Floats]) -> None:
        """Move the weights by one round."""
        rate, momentum = np.float32(self.settings.rate), np.float32(self.settings.momentum)
        for name, value in change.items():
            move = value
            if momentum:
                move = self._moments.get(f"velocity.{name}", np.float32(0.0)) * momentum + value
                self._moments[f"velocity.{name}"] = move
            weights[name][...] += move if rate == 1.0 else rate * move


class Adaptive(ServerOptimiser):
    """FedAdam and FedYogi (Reddi et al. 2021, Algorithm 2), which differ in the second moment only."""

    def step(self, weights: Mapping[str, Floats], change: Mapping[str, Floats]) -> None:
        """Move the weights by one round."""
        s, moments = self.settings, self._moments
        rate, beta1, beta2 = np.float32(s.rate), np.float32(s.momentum), np.float32(s.second_momentum)
        for name, value in change.items():
            square = value * value
            first = moments.get(f"first.{name}", np.zeros_like(value)) * beta1 + (1 - beta1) * value
            second = moments.get(f"second.{name}", np.full_like(value, s.caution**2))
            if s.optimiser == "adam":
                second = beta2 * second + (1 - beta2) * square
            else:
                second = second - (1 - beta2) * square * np.sign(second - square)
            moments[f"first.{name}"], moments[f"second.{name}"] = first, second
            weights[name][...] += rate * first / (np.sqrt(second) + np.float32(s.caution))
