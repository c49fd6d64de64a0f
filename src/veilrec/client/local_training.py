"""Interfaces of local training, batched over a leading cohort dimension: a real client is a cohort of one.

`VoteLocalTrainer`, the simplest trainer, sends a one for every distinct item of a client (private popularity).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from veilrec.core.arrays import Bools, Floats, Indices, Offsets
from veilrec.core.csr import Csr, without_repeats
from veilrec.core.features import Side
from veilrec.core.fixed_point import MAX_EXAMPLES
from veilrec.core.jit import jit
from veilrec.core.schema import ClientUpdates, Factors, RoundSpec, Rows, Schema, Tensor, whole_model
from veilrec.privacy.randomness import Source

_OUTSIDE = -1


class LocalData(Protocol):
    """What clients learn from, a row for each; its type says what the rows hold."""

    @property
    def rows(self) -> Csr:
        """A client's data, packed into a row of whole numbers; an empty one has nothing to learn from."""

    @property
    def kept(self) -> Mapping[str, NDArray[Any]]:
        """What clients rank with beside their items and what they learnt: [n, ...] each."""

    def take(self, clients: Offsets) -> Self:
        """The data of some clients."""

    def inside(self, place: Indices) -> Self:
        """Only what concerns the items of a sub-model, numbered as there (-1: outside)."""


@dataclass(frozen=True)
class OwnItems:
    """The items that each client's user has used."""

    rows: Csr

    @property
    def kept(self) -> Mapping[str, NDArray[Any]]:
        """Nothing."""
        return {}

    def take(self, clients: Offsets) -> OwnItems:
        """The items of some clients."""
        return OwnItems(self.rows.take(clients))

    def inside(self, place: Indices) -> OwnItems:
        """The items inside the sub-model, by their numbers there."""
        return OwnItems(narrow(self.rows, place))


@dataclass(frozen=True)
class OwnItemsAndFeatures:
    """The items that each client's user has used, and what the client knows of its user."""

    rows: Csr
    people: Side
    ratings: Floats | None = None  # [len(rows.items)], out of 1; None: nobody rates

    @property
    def kept(self) -> Mapping[str, NDArray[Any]]:
        """The user's features."""
        return self.people.kept()

    def take(self, clients: Offsets) -> OwnItemsAndFeatures:
        """The data of some clients."""
        ratings = None
        if self.ratings is not None:
            chosen = Csr(self.rows.offsets, np.arange(len(self.rows.items), dtype=np.int32)).take(clients)
            ratings = self.ratings[chosen.items]
        return OwnItemsAndFeatures(self.rows.take(clients), self.people.take(clients), ratings)

    def inside(self, place: Indices) -> OwnItemsAndFeatures:
        """The items inside the sub-model, by their numbers there."""
        ratings = None if self.ratings is None else self.ratings[place[self.rows.items] >= 0]
        return OwnItemsAndFeatures(narrow(self.rows, place), self.people, ratings)


Data = TypeVar("Data", bound=LocalData)


class OwnSources:
    """What clients draw the noise of their learning from: a source of its own each."""

    def __init__(self, source_of: Callable[[int], Source]) -> None:
        self._source_of = source_of

    def split(self, clients: Offsets) -> Iterator[tuple[slice, Source]]:
        """The places of clients that draw together, and what from."""
        for place, client in enumerate(clients):
            yield slice(place, place + 1), self._source_of(int(client))


class SharedSource(OwnSources):
    """One source for all clients, in simulations without a formal guarantee."""

    def __init__(self, source: Source) -> None:
        super().__init__(lambda _: source)

    def split(self, clients: Offsets) -> Iterator[tuple[slice, Source]]:
        """All of them at once."""
        yield slice(0, len(clients)), self._source_of(0)


@dataclass(frozen=True)
class Cohort(Generic[Data]):
    """The clients that learn together in one call: their data and their own state, side by side."""

    clients: Offsets  # [n], the number of each client: with the seed, the key of its draws
    data: Data
    private: Mapping[str, Floats]  # [n, ...] each: what never leaves a client; clients that train change it in place
    draws_seed: int  # what a client draws locally is keyed by (this, round, client)
    noise: OwnSources | None = None  # of trainers that add noise before they learn


@dataclass(frozen=True)
class LocalResults:
    """What a round of local learning gives: updates not yet bounded or perturbed, and a log."""

    updates: ClientUpdates
    examples: Offsets  # [n], number of local examples, positives and negatives of all epochs
    loss: Floats  # [n], mean loss of the last local epoch
    shares: Floats | None = None  # [B], mean attention over basis vectors, of models that have them


class LocalTrainer(Protocol[Data]):
    """Local learning of one family of models.

    A trainer may also say what of its client's data a message is computed from, and which rows of a table are sent:
    `reads` and `rows`, see `veilrec.privacy.disclosure`. A statement takes one that does not to read everything.
    """

    keeps_state: bool  # whether a client keeps anything from one round to the next

    def fresh_private_state(self, clients: Offsets, draws_seed: int) -> dict[str, Floats]:
        """The starting state of clients that take part for the first time."""

    def learn(self, cohort: Cohort[Data], model: Mapping[str, Floats], spec: RoundSpec) -> LocalResults:
        """Learn from each client's data; the model is the one that the server sent, and is not changed."""


@runtime_checkable
class SumLocalTrainer(LocalTrainer[Data], Protocol[Data]):
    """One that can give the mean of all updates of a cohort without forming any of them."""

    def learn_sum(
        self, cohort: Cohort[Data], model: Mapping[str, Floats], spec: RoundSpec, *, weighs_examples: bool
    ) -> tuple[LocalResults, ClientUpdates]:
        """The weighted mean as if it were one update, and messages as long as those that the clients would send."""


def places(rows: Indices, n_items: int) -> Indices:
    """Place of each item in the sub-model; -1 outside."""
    place = np.full(n_items, _OUTSIDE, np.int32)
    place[rows] = np.arange(len(rows), dtype=np.int32)
    return place


def narrow(data: Csr, place: Indices) -> Csr:
    """Rows of items with only those inside a sub-model, by their numbers there."""
    offsets = np.zeros(len(data) + 1, np.int64)
    items = np.empty(len(data.items), np.int32)
    used = _narrow(data.offsets, data.items, place, offsets, items)
    return Csr(offsets, items[:used])


@jit
def _narrow(source: Offsets, data: Indices, place: Indices, offsets: Offsets, items: Indices) -> int:
    used = 0
    for row in range(len(source) - 1):
        for entry in range(source[row], source[row + 1]):
            if place[data[entry]] >= 0:
                items[used] = place[data[entry]]
                used += 1
        offsets[row + 1] = used
    return used


ITEMS = "items"


def schema(n_items: int) -> Schema:
    """One number per item."""
    return Schema((Tensor(ITEMS, (n_items, 1), by_row=True),))


def start_weights(n_items: int) -> dict[str, Floats]:
    """Nobody has used anything yet."""
    return {ITEMS: np.zeros((n_items, 1), np.float32)}


class VoteLocalTrainer:
    """A one for every item of a client: it learns nothing, draws nothing, keeps nothing."""

    keeps_state = False
    reads = ("items",)
    rows = "own"

    def __init__(self, table: str = ITEMS) -> None:
        self.table = table  # the tensor that the votes are about

    def fresh_private_state(self, clients: Offsets, draws_seed: int) -> dict[str, Floats]:
        """Nothing."""
        return {}

    def learn(self, cohort: Cohort[OwnItems], model: Mapping[str, Floats], spec: RoundSpec) -> LocalResults:
        """The items that each client has, whatever the model says."""
        once = without_repeats(cohort.data.rows, len(model[self.table]))
        votes = Rows(once.offsets, once.items, np.ones((len(once.items), 1), np.float32))
        examples = once.lengths()
        updates = ClientUpdates(spec.number, len(once), {self.table: votes}, examples=examples)
        return LocalResults(updates, examples, np.zeros(len(once), np.float32))


_LARGEST = 2.0**60  # its square is still a number in single precision, in which norms are taken


def examples_if_asked(updates: ClientUpdates, tell_examples: bool) -> ClientUpdates:
    """Leave the number of examples out of the messages unless the aggregation needs it; no more than it takes."""
    if not tell_examples or updates.examples is None:
        return replace(updates, examples=None)
    return replace(updates, examples=np.minimum(updates.examples, MAX_EXAMPLES))


def nothing_if_overflown(updates: ClientUpdates) -> ClientUpdates:
    """Replace the update of a client by zeros where one of its numbers is none, or too large to be squared.

    Whoever sends the model can make it overflow for some data alone: a client that then fell silent would tell that it
    has such data, as often as it is asked, and pay for nothing.
    """
    keeps = ~overflown(updates)
    if keeps.all():
        return updates

    def zeros(parts: Mapping[str, Rows]) -> dict[str, Rows]:
        return {
            name: Rows(rows.offsets, rows.index, _only_of(keeps[_owners(rows)], rows.values))
            for name, rows in parts.items()
        }

    products = {
        name: Factors(_only_of(keeps, f.left), _only_of(keeps, f.scales), _only_of(keeps, f.right))
        for name, f in updates.factors.items()
    }
    dense = {name: _only_of(keeps, values) for name, values in updates.dense.items()}
    tables, entries = zeros(updates.tables), zeros(updates.entries)
    return replace(updates, tables=tables, entries=entries, dense=dense, factors=products)


def nothing_learnt(spec: RoundSpec, view: Schema) -> ClientUpdates:
    """The answer of one client whose learning broke down: zeros, and no examples."""
    zeros = {tensor.name: np.zeros(tensor.shape, np.float32) for tensor in view.tensors}
    return replace(whole_model(view, zeros, spec.number), examples=np.zeros(1, np.int64))


def overflown(updates: ClientUpdates) -> Bools:
    """Mark the clients in whose update a number is none, or too large to be squared."""
    packed = (*updates.tables.values(), *updates.entries.values())
    factors = (part for f in updates.factors.values() for part in (f.left, f.scales, f.right))
    whole, found = (*updates.dense.values(), *factors), np.zeros(updates.count, np.bool_)
    if all(map(is_within, (*(rows.values for rows in packed), *whole))):
        return found
    for rows in packed:
        found[_owners(rows)[~(np.abs(rows.values) <= _LARGEST).all(axis=1)]] = True
    for values in whole:
        found |= ~(np.abs(values) <= _LARGEST).all(axis=tuple(range(1, values.ndim)))
    return found


def put_back(private: Mapping[str, Floats], before: Mapping[str, Floats], lost: Bools) -> None:
    """Give clients whose update has overflown, or whose state has, the state that they had before, in place.

    Otherwise one model would take them out of all later rounds, and their user's lists with them.
    """
    for values in private.values():
        lost = lost | ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    if lost.any():
        for name, values in private.items():
            values[lost] = before[name][lost]


def is_within(values: Floats, largest: float = _LARGEST) -> bool:
    """Whether no number is larger in size, by default than one that can be squared; NaN compares false."""
    return not values.size or (bool(values.max() <= largest) and bool(values.min() >= -largest))


def _owners(rows: Rows) -> Offsets:
    """The client of every row."""
    return np.repeat(np.arange(len(rows.offsets) - 1), np.diff(rows.offsets))


def _only_of(keeps: Bools, values: Floats) -> Floats:
    """The values of some clients (or rows), and zeros in the place of the others."""
    chosen: Floats = np.where(keeps.reshape(-1, *([1] * (values.ndim - 1))), values, np.zeros((), values.dtype))
    return chosen
