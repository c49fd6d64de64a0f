"""Sums of whole numbers: what each client of a round adds, in steps that are powers of two.

A simulation, a coordinator and secure aggregation add the same integers, so that neither the order of clients nor how
they are grouped can change a bit of a sum. A number x of a message (times its examples, where clients weigh by them)
becomes k = x / step cut towards zero. A float32 times a whole number up to 2^20 is exact in double precision, and so is
dividing it by a power of two: whoever does this, wherever, gets the same k.

Cutting towards zero makes no number larger, so that an update clipped to some norm is within it on the lattice as well:
rounding costs the proof nothing.

No sum overflows. A lattice is made for at most n clients; |k| is at most K = 2^(ring - 2 - ceil(log2 n)), because what
lies beyond K steps, the reach of its tensor, is refused or cut off. So |sum| <= n K <= 2^(ring - 2), in signed integers
of `ring` bits. Row counts are at most n, and examples at most n times 2^20, for which 2^20 n <= 2^(ring - 2) is asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from veilrec.core.arrays import Doubles, Floats, Offsets
from veilrec.core.errors import BadInput, Diverged
from veilrec.core.schema import ClientUpdates, Schema, Tensor, to_vectors

Ring: TypeAlias = Literal[32, 64]

MAX_CLIENTS = 2**20  # in a round of a plan that has everybody take part, however many they are
MAX_EXAMPLES = 2**20  # that a message may tell of


@dataclass(frozen=True)
class FixedPoint:
    """The whole numbers of one round, in the order of its view: tensors, then row counts, then examples."""

    view: Schema
    reaches: tuple[float, ...]  # of every tensor: powers of two, the largest that a client adds to one of its numbers
    clients: int  # at most, in one sum
    ring: Ring = 64
    weighs_examples: bool = False  # numbers are taken times the examples of their client, and these are added up too
    counts_rows: bool = False  # how many clients sent each row is added up too
    saturates: bool = False  # what lies beyond the reach is cut off, and not refused

    @classmethod
    def fitting(cls, view: Schema, reach: Mapping[str, float], *, clients: int, **options: Any) -> FixedPoint:
        """For numbers up to `reach` (of every tensor, examples included) of up to so many clients."""
        return cls(view, tuple(_power_above(reach[tensor.name]) for tensor in view.tensors), clients, **options)

    def __post_init__(self) -> None:
        if self.ring not in get_args(Ring):
            raise BadInput(f"ring is {self.ring}: sums are of {' or '.join(map(str, get_args(Ring)))} bits")
        if self.clients < 1 or self._spare < (20 if self.weighs_examples else 8):
            raise BadInput(
                f"a sum of {self.clients} clients does not fit into {self.ring} bits: use a larger ring, or fewer"
                " clients in a round"
            )

    @property
    def _spare(self) -> int:
        """Bits that a client's own numbers may have."""
        return self.ring - 2 - (self.clients - 1).bit_length()

    @property
    def most(self) -> int:
        """K: the largest whole number that a client adds to one of its numbers."""
        return int(2**self._spare)

    @cached_property
    def steps(self) -> dict[str, float]:
        """The step of every tensor."""
        return {t.name: reach / self.most for t, reach in zip(self.view.tensors, self.reaches, strict=True)}

    @cached_property
    def places(self) -> dict[str, slice]:
        """Where the numbers of every tensor lie."""
        return self.view.places

    @cached_property
    def count_places(self) -> dict[str, slice]:
        """Where the row counts of every table lie; nowhere if they are not needed."""
        tables: tuple[Tensor, ...] = self.view.tables if self.counts_rows else ()
        ends = sum(t.size for t in self.view.tensors) + np.cumsum([t.shape[0] for t in tables], dtype=np.int64)
        return {t.name: slice(end - t.shape[0], end) for t, end in zip(tables, ends.tolist(), strict=True)}

    @cached_property
    def size(self) -> int:
        """Length of the vector that a client adds."""
        numbers, counts = (sum(p.stop - p.start for p in part.values()) for part in (self.places, self.count_places))
        return int(numbers + counts + self.weighs_examples)

    def weights(self, updates: ClientUpdates) -> Doubles:
        """How often each client counts."""
        if not self.weighs_examples:
            return np.ones(updates.count)
        if updates.examples is None:
            raise BadInput("the message does not tell its number of examples, by which this round weighs it")
        if updates.count and not 0 <= updates.examples.min() <= updates.examples.max() <= MAX_EXAMPLES:
            raise BadInput(
                f"a message tells of {updates.examples.max()} examples: it may tell of {MAX_EXAMPLES} at most"
            )
        return updates.examples.astype(np.float64)

    def integers(self, updates: ClientUpdates) -> Offsets:
        """What each client adds: [n, size]."""
        out = np.zeros((updates.count, self.size), np.int64)
        weights = self.weights(updates)
        numbers = to_vectors(updates, self.view) * weights[:, np.newaxis]
        for tensor in self.view.tensors:
            place = self.places[tensor.name]
            units = numbers[:, place] / self.steps[tensor.name]
            self._refuse(tensor.name, units)
            out[:, place] = np.trunc(np.clip(units, -float(self.most), float(self.most))).astype(np.int64)
        for name, place in self.count_places.items():
            if name in updates.tables:
                rows = updates.tables[name]
                client = np.repeat(np.arange(updates.count), np.diff(rows.offsets))
                out[client, place.start + rows.index] = 1
        if self.weighs_examples:
            out[:, -1] = weights.astype(np.int64)
        return out

    def check(self, updates: ClientUpdates) -> None:
        """Refuse what `integers` refuses, by the numbers that were sent alone: those that were not are 0."""
        weights = self.weights(updates)
        whole = {**{name: factors.product() for name, factors in updates.factors.items()}, **updates.dense}
        rows = {**updates.tables, **updates.entries}
        for name, step in self.steps.items():
            if name in whole:
                self._refuse(name, _largest(whole[name].reshape(updates.count, -1)) * weights / step)
            if name in rows:
                of_rows = np.repeat(weights, np.diff(rows[name].offsets))
                self._refuse(name, _largest(rows[name].values) * of_rows / step)

    def _refuse(self, name: str, units: Doubles) -> None:
        if np.isnan(units).any() or (not self.saturates and (np.abs(units) > self.most).any()):
            raise self.beyond(name)

    def beyond(self, name: str) -> Diverged:
        """What is said of an update that has no place on the lattice."""
        return Diverged(
            f"an update has a number of {name} that is none, or beyond {self.steps[name] * self.most:g}, the largest"
            " that is added up: the model has diverged; use smaller learning rates, or less noise"
        )

    def numbers(self, integers: Offsets, name: str) -> Doubles:
        """The numbers of a tensor that whole ones stand for."""
        return integers.astype(np.float64) * self.steps[name]

    def cut(self, vectors: Doubles) -> Doubles:
        """Updates [n, size of the view] as they are added up."""
        steps = np.concatenate([np.full(t.size, self.steps[t.name]) for t in self.view.tensors])
        return np.asarray(np.trunc(np.clip(vectors / steps, -float(self.most), float(self.most))) * steps)

    def check_sum(self, total: Offsets, clients: int) -> None:
        """Refuse a sum that so many clients cannot have: Diverged for its numbers, BadInput for its form."""
        if total.shape != (self.size,) or total.dtype != np.int64 or not 0 <= clients <= self.clients:
            raise BadInput(
                f"a sum of {clients} clients has {total.shape} numbers ({total.dtype}): it has {self.size} (int64), of"
                f" {self.clients} clients at most"
            )
        most = clients * self.most
        bounds = [(place, -most, most) for place in self.places.values()]
        bounds += [(place, 0, clients) for place in self.count_places.values()]
        if self.weighs_examples:
            bounds.append((slice(self.size - 1, None), 0, clients * MAX_EXAMPLES))
        for place, least, largest in bounds:
            part = total[place]
            if len(part) and (int(part.min()) < least or int(part.max()) > largest):
                raise Diverged(f"a sum holds a number that {clients} clients cannot have added up to")


def _largest(values: Floats) -> Floats:
    """The largest size in every row; NaN if one of its numbers is none."""
    return np.asarray(np.maximum(values.max(axis=1), -values.min(axis=1)))


def _power_above(reach: float) -> float:
    """The smallest power of two that is at least this."""
    if not (0.0 < reach < math.inf):
        raise BadInput(f"the largest number of a message is {reach}: it is above 0, and a number")
    mantissa, exponent = math.frexp(reach)
    return math.ldexp(1.0, exponent - (mantissa == 0.5))
