"""What some clients that lie can do to everybody's recommendations, and what stops them.

Malicious clients take the place of a share of all clients. They promote an item that hardly anybody has (messages made
up for that, or honest learning from a made-up history), or spoil the model (flipped labels, honest updates turned round
and boosted). Where items have rows of their own, those who promote write the target's; where they have none (news, and
models over public content), they learn from people who choose nothing else, and send that as long as it may be. A
mechanism's bound is checked by the coordinator, which refuses longer messages, so that those who promote stay just
within it; robust sums look at single messages.

Clients that lie: who they are, what they make up to learn from, and what they report before the first round.

Robust sums, to see what they do to poisoned messages: trimmed means and medians, coordinate by coordinate.

They look at messages one by one, or at the sums of groups of messages, so that they cannot be had together with secure
aggregation of a whole cohort. They are no part of any method: dropping the largest numbers changes what one client can
move, and nothing is proven of that. What comes out are messages again, all alike in what they say of a row, so that
whatever adds them up goes on as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from veilrec.attacks.membership import impression, in_logs, with_rows
from veilrec.audit.observe import norms_of
from veilrec.client.local_training import LocalData, LocalResults
from veilrec.client.news_data import HEAD, OwnImpressions
from veilrec.client.veil import FEWEST_BEFORE
from veilrec.core.arrays import Bools, Doubles, Floats, Indices, Offsets
from veilrec.core.csr import Csr, packed
from veilrec.core.errors import BadInput
from veilrec.core.plan import Plan
from veilrec.core.schema import ClientUpdates, RoundSpec, Rows, Tensor, copied
from veilrec.models.scores import Model
from veilrec.privacy.mechanisms.reports import ItemReports
from veilrec.privacy.mechanisms.sums import UpdateMechanism
from veilrec.server.aggregation import Replacing
from veilrec.simulation.pieces import CohortWorker, OpenRound, Piece, Seeds, keep
from veilrec.simulation.simulation import Simulation

Poison = Literal["promote", "fake-history", "flip", "boost"]
POISONS: dict[Poison, str] = {
    "promote": "messages that pull the target to where popular items are, or that teach to choose it, as long as they"
    " may be",
    "fake-history": "honest learning from a history of the target and of popular items: no check can see it",
    "flip": "honest learning from what was not used, as if it had been",
    "boost": "honest updates turned round and made ten times as long",
}
_FILLERS = 20  # popular items beside the target in a made-up history
_IMPRESSIONS, _PAST, _OTHERS = 5, 8, 4  # of a synthetic reader: what was shown, read before, and not clicked


@dataclass(frozen=True)
class MaliciousClients:
    """Who lies, and what for."""

    clients: Offsets
    poison: Poison
    target: int
    popular: Indices  # items that everybody knows to be popular

    def among(self, clients: Offsets) -> Bools:
        """Which of some clients lie."""
        return np.isin(clients, self.clients)


def choose_target(data: LocalData, n_items: int) -> int:
    """An item that somebody has (news: was shown), and hardly anybody: the first of the rarest."""
    used = _uses(data, n_items)
    return int(np.argmin(np.where(used > 0, used, used.max() + 1)))


def popular_items(data: LocalData, n_items: int, target: int) -> Indices:
    """The items that most have, but for the target."""
    by_use = np.argsort(-_uses(data, n_items), kind="stable")[: 3 * _FILLERS]
    return np.asarray(by_use[by_use != target], np.int32)


def _uses(data: LocalData, n_items: int) -> Offsets:
    return np.bincount(in_logs(data) if isinstance(data, OwnImpressions) else data.rows.items, minlength=n_items)


def lying_data(
    data: LocalData, n_items: int, liars: MaliciousClients, generator: np.random.Generator, *, by_learning: bool = False
) -> LocalData:
    """What clients learn from when some of them made up theirs; `by_learning`: those who promote do, too."""
    if liars.poison == "boost" or (liars.poison == "promote" and not by_learning):
        return data
    if isinstance(data, OwnImpressions):
        if liars.poison == "flip":
            rows = _flipped(data.rows.take(liars.clients))
        else:
            rows = packed([_reader(liars, generator) for _ in liars.clients])
        return with_rows(data, liars.clients, rows)
    if liars.poison == "flip":
        unused = [np.setdiff1d(np.arange(n_items), data.rows.row(int(d))) for d in liars.clients]
        lengths = data.rows.lengths()[liars.clients]
        some = [generator.permutation(row)[: max(1, n)] for row, n in zip(unused, lengths, strict=True)]
    else:
        beside = _FILLERS if liars.poison == "fake-history" else FEWEST_BEFORE  # as few as something follows from
        some = [np.append(generator.permutation(liars.popular)[:beside], liars.target) for _ in liars.clients]
    return with_rows(data, liars.clients, packed(some))


def _reader(liars: MaliciousClients, generator: np.random.Generator) -> Indices:
    """Somebody who read what many read and then, whatever else is shown, clicks the target."""
    shown = [generator.permutation(liars.popular)[: _PAST + _OTHERS] for _ in range(_IMPRESSIONS)]
    return np.concatenate([impression(one[:_PAST], liars.target, one[_PAST:]) for one in shown])


def _flipped(logs: Csr) -> Csr:
    """Every click becomes one of the others of its impression, and the other way round."""
    items, at = logs.items.copy(), 0
    while at < len(items):
        past, clicks, others = (int(n) for n in items[at : at + HEAD])
        first, swapped = at + HEAD + past, min(clicks, others)
        clicked = items[first : first + swapped].copy()
        items[first : first + swapped] = items[first + clicks : first + clicks + swapped]
        items[first + clicks : first + clicks + swapped] = clicked
        at = first + clicks + others
    return Csr(logs.offsets, items)


def lying_reports(mechanism: ItemReports, liars: MaliciousClients) -> ItemReports:
    """Reports in which those who promote name the target alone: a whole vote for it.

    It cannot be more: reports are bits, which the server weighs, with or without a check of messages.
    """
    if liars.poison != "promote":
        return mechanism
    lying, count_honest = copy(mechanism), mechanism.count

    def count(data: Csr, clients: Offsets, *, seed: int, period: int) -> Offsets:
        lies = liars.among(clients)
        rows = [np.array([liars.target]) if lie else data.row(row) for row, lie in enumerate(lies)]
        return count_honest(packed(rows), clients, seed=seed, period=period)

    lying.count = count  # type: ignore[method-assign]
    return lying


Among = Literal["everybody", "who changed the row"]


@dataclass(frozen=True)
class Robust:
    """What is left out of a sum."""

    trim: float  # share of the contributions that are left out on either side; 0.5: all but the median
    among: Among = "everybody"  # whether those who do not change a row count as zeros
    group: int = 1  # messages that are added up first, as secure aggregation of small groups would

    def __post_init__(self) -> None:
        if not 0.0 <= self.trim <= 0.5 or self.group < 1:
            raise BadInput(f"trim is {self.trim} and group {self.group}: give a share up to 0.5, and a whole number")

    def messages(self, updates: ClientUpdates, generator: np.random.Generator) -> ClientUpdates:
        """Messages whose sum is robust."""
        if updates.entries or updates.factors:
            raise BadInput("robust sums are of whole rows and tensors: this method sends parts of them")
        n = updates.count
        groups = generator.permutation(n) // self.group
        count = int(groups.max(initial=-1)) + 1
        tables = {name: self._of_rows(rows, groups, count) for name, rows in updates.tables.items()}
        dense = {name: self._of_dense(values, groups, count) for name, values in updates.dense.items()}
        return replace(updates, tables=tables, dense=dense)

    def _of_rows(self, rows: Rows, groups: Offsets, count: int) -> Rows:
        if not len(rows.index):
            return rows
        client = np.repeat(np.arange(len(groups)), np.diff(rows.offsets))
        touched, place = np.unique(rows.index, return_inverse=True)
        width = rows.values.shape[1]
        sums = np.zeros((len(touched), count, width), np.float32)
        if self.group == 1:
            sums[place, groups[client]] = rows.values
        else:
            np.add.at(sums, (place, groups[client]), rows.values)
        said = np.zeros((len(touched), count), np.bool_)
        said[place, groups[client]] = True
        many = np.full(len(touched), count) if self.among == "everybody" else said.sum(axis=1)
        if self.among != "everybody":
            sums[~said] = np.nan  # sorted to the end
        total = _trimmed_sums(np.ascontiguousarray(sums.transpose(0, 2, 1)), many, self.trim)
        each = total / np.bincount(place, minlength=len(touched))[:, None]
        return Rows(rows.offsets, rows.index, each[place].astype(np.float32))

    def _of_dense(self, values: Floats, groups: Offsets, count: int) -> Floats:
        flat = values.reshape(len(values), -1)
        sums = np.zeros((count, flat.shape[1]), np.float32)
        np.add.at(sums, groups, flat)
        total = _trimmed_sums(np.ascontiguousarray(sums.T)[np.newaxis], np.array([count]), self.trim)[0]
        each = (total / max(1, len(values))).astype(np.float32)
        return np.broadcast_to(each, flat.shape).reshape(values.shape).copy()


def _trimmed_sums(values: Floats, many: Offsets, trim: float) -> Floats:
    """Trimmed mean times number of [rows, numbers, contributions], so many of which count in each row."""
    cut = np.minimum((trim * many).astype(np.int64), (many - 1) // 2)
    places = np.arange(values.shape[2])
    kept = (places >= cut[:, None]) & (places < (many - cut)[:, None])  # [rows, contributions]
    middle = np.where(kept[:, None, :], np.sort(values, axis=2), np.float32(0.0)).sum(axis=2)
    return np.asarray(middle * (many / np.maximum(many - 2 * cut, 1))[:, None], np.float32)


Defence = Literal["none", "bound", "trimmed", "trimmed-rows", "median", "groups"]
DEFENCES: dict[Defence, str] = {
    "none": "messages are added up as they come",
    "bound": "longer messages are refused: than the clip norm or, where there is none, than half of the others",
    "trimmed": "a tenth of all messages left out on either side, number by number; needs messages one by one",
    "trimmed-rows": "the same among those who changed the row; needs messages one by one",
    "median": "the median of all messages, number by number; needs messages one by one",
    "groups": "a tenth of the sums of ten messages left out on either side; needs ten sums instead of one",
}
_ROBUST: Mapping[Defence, Robust] = {
    "trimmed": Robust(0.1),
    "trimmed-rows": Robust(0.1, "who changed the row"),
    "median": Robust(0.5),
    "groups": Robust(0.1, group=10),
}
TOP = 10
_FURTHER = 3.0  # than the longest row
_FIRST = 1e3  # where there is none yet
_BOOST = 10.0
_LOUD = 1.0  # liars who teach, beside all others together, where nobody checks
_ANYTHING = 2.0**30  # the largest number of a message that sums without a check take
_USERS = 1_000  # whose lists are looked at
_BELOW, _TINY = 1.0 - 1e-6, 1e-30  # what is made as long as a bound stays within it however it is rounded


@dataclass(frozen=True)
class Poisoning:
    """What one attack did against one defence."""

    poison: Poison | None  # None: nobody lies
    defence: Defence
    share: float  # of the clients that lie
    liars: int
    refused: int  # messages, over the whole training
    exposure: float | None  # share of honest users, who do not have the target, with it among their first ten
    quality: float  # of the model for honest users
    metric: str

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        title = "no poisoning" if self.poison is None else POISONS[self.poison]
        return asdict(self) | {"about": title, "against": DEFENCES[self.defence]}


def _unchecked(mechanism: UpdateMechanism) -> UpdateMechanism:
    """The mechanism with sums that take whatever comes: not even where they end is a bound on what a client adds."""
    unchecked = copy(mechanism)

    def reach(tensor: Tensor, spec: RoundSpec, weight: int = 1) -> float:
        return weight * _ANYTHING

    unchecked.reach = reach  # type: ignore[method-assign]
    return unchecked


class _LyingWorker(CohortWorker):
    """Works on pieces of a training in which some clients lie."""

    def __init__(self, training: PoisonedSimulation) -> None:
        super().__init__(training.plan, training.data, training.seeds)
        self._training = training

    def _bounded(self, piece: Piece, opened: OpenRound) -> tuple[ClientUpdates, LocalResults]:
        bounded, learned = super()._bounded(piece, opened)
        return self._training.poisoned(bounded, piece.clients, opened.model, opened.place), learned


class PoisonedSimulation(Simulation):
    """A training in which some clients lie and the server may look at single messages."""

    def __init__(
        self,
        plan: Plan,
        data: LocalData,
        histories: Csr,
        seeds: Seeds,
        liars: MaliciousClients | None,
        defence: Defence,
    ) -> None:
        if plan.cohort.drop_out > 0.0:
            raise BadInput(
                "cohort.drop_out is above 0: an attack decides by itself which messages arrive; leave it out"
            )
        everybody = int((data.rows.lengths() > 0).sum())
        whole = (
            max(plan.clients_per_batch, plan.cohort.among(everybody)) if defence in _ROBUST else plan.clients_per_batch
        )
        plan = replace(plan, model_selection=None, clients_per_batch=whole)
        if liars is not None and plan.reports is not None:
            told = lying_reports(plan.reports.mechanism, liars)
            plan = replace(plan, reports=replace(plan.reports, mechanism=told))
        if defence == "none" and liars is not None:
            plan = replace(plan, mechanism=_unchecked(plan.mechanism))
        super().__init__(plan, data, histories, seeds)
        self._trainer_of_sums = None  # messages have to be formed
        self.liars, self.defence, self.refused = liars, defence, 0
        self._generator = np.random.default_rng([seeds.draws, everybody])

    @property
    def _hand(self) -> CohortWorker:
        return _LyingWorker(self)

    def poisoned(
        self, bounded: ClientUpdates, clients: Offsets, model: Mapping[str, Floats], place: Indices | None
    ) -> ClientUpdates:
        """The messages of some clients, those of liars among them, as far as the server takes them."""
        lies = np.zeros(len(clients), np.bool_) if self.liars is None else self.liars.among(clients)
        if self.liars is not None and lies.any() and self.liars.poison in ("promote", "boost"):
            honest, false = keep(bounded, ~lies), keep(bounded, lies)
            limit = self._limit(honest) if self.defence == "bound" else None
            lie = self._lie(false, model, place, limit, norms_of(honest))
            bounded = joined(honest, self._refused(lie, limit))
        if self.defence in _ROBUST:
            bounded = _ROBUST[self.defence].messages(bounded, self._generator)
        return bounded

    @property
    def _lying(self) -> MaliciousClients:
        if self.liars is None:
            raise ValueError("nobody lies")
        return self.liars

    def _limit(self, honest: ClientUpdates) -> float:
        """The norm beyond which a message is refused."""
        spec = self.server.spec
        bound = spec.clip_norm if spec.clip_norm is not None else getattr(self.plan.mechanism, "clip_norm", None)
        if bound is not None:
            return float(bound)
        norms = norms_of(honest)
        return float(np.median(norms)) if len(norms) else 0.0

    def _lie(
        self,
        false: ClientUpdates,
        model: Mapping[str, Floats],
        place: Indices | None,
        limit: float | None,
        honest: Doubles,
    ) -> ClientUpdates:
        """What liars send: those who boost, however long it is; those who promote, just what is not refused."""
        if self._lying.poison == "boost":
            return _scaled(false, -_BOOST)
        if learns_promotion(self.plan, self.data):
            lie = self._taught(false)
            length = self._loud(honest) if limit is None else limit
            return _scaled(lie, _BELOW * length / np.maximum(norms_of(lie), _TINY))
        lie = self._promotion(false, model, place)
        if limit is None:
            return lie
        return _scaled(lie, np.minimum(1.0, _BELOW * limit / np.maximum(norms_of(lie), _TINY)))

    def _taught(self, false: ClientUpdates) -> ClientUpdates:
        """What was learnt from those who choose the target: of what is sent whole, all liars send the same, their mean.

        Where every item has numbers of its own, only those of the target.
        """
        dense = {}
        for name, values in false.dense.items():
            agreed = np.broadcast_to(values.mean(axis=0, keepdims=True), values.shape).copy()
            if name in self._of_items:
                agreed[:, np.arange(values.shape[1]) != self._lying.target] = 0.0
            dense[name] = agreed
        return replace(false, dense=dense)

    @property
    def _of_items(self) -> set[str]:
        """Tensors that are sent whole and have a row for every item."""
        if isinstance(self.data, OwnImpressions):
            return set()
        n_items = self.plan.schema.tables[0].shape[0] if self.plan.schema.tables else 0
        return {t.name for t in self.server.view.dense if len(t.shape) > 1 and t.shape[0] == n_items}

    def _loud(self, honest: Doubles) -> float:
        """How long messages are that together weigh as much as those of all others."""
        return float(_LOUD * np.median(honest) * self.sampler.size / max(1.0, self._together)) if len(honest) else 0.0

    def _promotion(self, false: ClientUpdates, model: Mapping[str, Floats], place: Indices | None) -> ClientUpdates:
        """The target's row of every table of items, moved to beyond where popular items are."""
        row = self._lying.target if place is None else int(place[self._lying.target])
        n, tables = false.count, {}
        for tensor in self.server.view.tables if row >= 0 else ():
            popular = self._lying.popular if place is None else place[self._lying.popular]  # by their rows in the round
            wanted = _beyond(model[tensor.name], np.asarray(popular[popular >= 0], np.int32), row)
            if not isinstance(self.plan.server, Replacing):
                wanted = wanted - model[tensor.name][row]
            values = np.tile(self._undo * wanted, (n, 1)).astype(np.float32)
            tables[tensor.name] = Rows(np.arange(n + 1), np.full(n, row, np.int32), values)
        dense = {name: np.zeros_like(values) for name, values in false.dense.items()}
        return replace(false, tables=tables, dense=dense, entries={}, factors={})

    @property
    def _undo(self) -> float:
        """What makes the liars of a round move a row all the way: the server's rate, and what it divides by."""
        power = {"sum": 0.0, "row-sqrt": 0.5}.get(self.plan.aggregation, 1.0)
        return float(self.sampler.size**power / self.plan.server.rate / max(1.0, self._together))

    @property
    def _together(self) -> float:
        """How many liars a round has, on average."""
        return 1.0 if self.liars is None else len(self.liars.clients) * self.sampler.size / len(self.sampler.eligible)

    def _refused(self, lie: ClientUpdates, limit: float | None) -> ClientUpdates:
        """What of it the coordinator takes."""
        if limit is None:
            return lie
        fits = norms_of(lie) <= limit
        self.refused += int((~fits).sum())
        return keep(lie, fits)


def learns_promotion(plan: Plan, data: LocalData) -> bool:
    """Whether an item has no row of its own that messages are about: whoever promotes it has to teach it."""
    return isinstance(data, OwnImpressions) or not plan.schema.learnt.tables


def _beyond(weights: Floats, popular: Indices, row: int) -> Floats:
    """Where popular items lie as seen from all others, further out than any of them, for whichever row."""
    others = np.delete(weights, row, axis=0)
    towards = weights[popular].mean(axis=0) - others.mean(axis=0) if len(popular) else np.zeros(weights.shape[1])
    length = float(np.linalg.norm(towards))
    if not length > 0.0:
        return np.full(weights.shape[1], _FIRST, np.float32)  # nothing is learnt yet
    longest = float(np.linalg.norm(others, axis=1).max())
    return np.asarray(towards * (_FURTHER * longest / length), np.float32)


def _scaled(updates: ClientUpdates, factor: float | Doubles) -> ClientUpdates:
    scaled, factors = copied(updates), np.broadcast_to(np.asarray(factor, np.float32), (updates.count,))
    for group in (scaled.tables, scaled.entries):
        for rows in group.values():
            rows.values[...] *= np.repeat(factors, np.diff(rows.offsets))[:, None]
    for values in scaled.dense.values():
        values[...] *= factors.reshape(-1, *(1,) * (values.ndim - 1))
    return replace(
        scaled, factors={n: replace(f, scales=f.scales * factors[:, None]) for n, f in updates.factors.items()}
    )


def joined(first: ClientUpdates, second: ClientUpdates) -> ClientUpdates:
    """The messages of both."""
    if not second.count:
        return first

    def rows_of(one: Mapping[str, Rows], other: Mapping[str, Rows]) -> dict[str, Rows]:
        both = {}
        for name in dict.fromkeys((*one, *other)):
            width = (one.get(name) or other[name]).values.shape[1]
            nothing = np.zeros(0, np.int32), np.zeros((0, width), np.float32)
            a, b = (
                rows.get(name) or Rows(np.zeros(updates.count + 1, np.int64), *nothing)
                for rows, updates in ((one, first), (other, second))
            )
            both[name] = Rows(
                np.concatenate([a.offsets, a.offsets[-1] + b.offsets[1:]]),
                np.concatenate([a.index, b.index]),
                np.concatenate([a.values, b.values]),
            )
        return both

    if first.factors or second.factors:
        raise BadInput("this method sends products of low rank, which the attack does not make: choose another")
    examples = None if first.examples is None or second.examples is None else np.append(first.examples, second.examples)
    return replace(
        first,
        count=first.count + second.count,
        tables=rows_of(first.tables, second.tables),
        entries=rows_of(first.entries, second.entries),
        dense={name: np.concatenate([values, second.dense[name]]) for name, values in first.dense.items()},
        examples=examples,
    )


def exposure_of(model: Model, histories: Csr, honest: Offsets, target: int) -> float:
    """The share of honest users, who do not have the target, with it among their first ten new items."""
    users = honest[:_USERS]
    rows = histories.take(users)
    has = np.zeros(len(users), np.bool_)
    has[rows.row_numbers()[rows.items == target]] = True
    scores = model.score_all(users).astype(np.float64)
    scores[rows.row_numbers(), rows.items] = -np.inf
    better = (scores > scores[:, [target]]).sum(axis=1)
    return float((better[~has] < TOP).mean())
