"""What some devices that lie can do to everybody's recommendations, and what stops them.

Malicious devices take the place of a share of all devices. They promote an item that hardly anybody has (messages made
up for that, or honest learning from a made-up history), or spoil the model (flipped labels, honest updates turned round
and boosted). Where items have rows of their own, those who promote write the target's; where they have none (news, and
models over public content), they learn from people who choose nothing else, and send that as long as it may be. A
mechanism's bound is checked by the coordinator, which refuses longer messages, so that those who promote stay just
within it; robust sums look at single messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from veilrec._arrays import Doubles, Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec.device.learner import Learned, LocalData
from veilrec.device.news_log import OwnImpressions
from veilrec.errors import BadInput
from veilrec.models.scores import Model
from veilrec.plan import Plan
from veilrec.privacy.mechanisms.updates import UpdateMechanism
from veilrec.server.optimise import Replacing
from veilrec.simulate.attacks.liars import POISONS, Liars, Poison, lying_reports
from veilrec.simulate.attacks.robust import Robust
from veilrec.simulate.observe import norms_of
from veilrec.simulate.pieces import Hand, Opened, Piece, keep
from veilrec.simulate.seeds import Seeds
from veilrec.simulate.simulation import Simulation
from veilrec.updates import Round, Rows, Tensor, Uploads, copied

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
    share: float  # of the devices that lie
    liars: int
    refused: int  # messages, over the whole training
    exposure: float | None  # share of honest users, who do not have the target, with it among their first ten
    quality: float  # of the model for honest users
    metric: str

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        about = "nobody lies" if self.poison is None else POISONS[self.poison]
        return asdict(self) | {"about": about, "against": DEFENCES[self.defence]}


def _unchecked(mechanism: UpdateMechanism) -> UpdateMechanism:
    """The same with sums that take whatever comes: not even where they end is a bound on what a device adds."""
    unchecked = copy(mechanism)

    def reach(tensor: Tensor, about: Round, weight: int = 1) -> float:
        return weight * _ANYTHING

    unchecked.reach = reach  # type: ignore[method-assign]
    return unchecked


class _LyingHand(Hand):
    """Works on pieces of a training in which some devices lie."""

    def __init__(self, training: PoisonedSimulation) -> None:
        super().__init__(training.plan, training.data, training.seeds)
        self._training = training

    def _bounded(self, piece: Piece, opened: Opened) -> tuple[Uploads, Learned]:
        bounded, learned = super()._bounded(piece, opened)
        return self._training.poisoned(bounded, piece.devices, opened.model, opened.place), learned


class PoisonedSimulation(Simulation):
    """A training in which some devices lie and the server may look at single messages."""

    def __init__(
        self, plan: Plan, data: LocalData, histories: Csr, seeds: Seeds, liars: Liars | None, defence: Defence
    ) -> None:
        if plan.cohort.drop_out > 0.0:
            raise BadInput(
                "cohort.drop_out is above 0: an attack decides by itself which messages arrive; leave it out"
            )
        everybody = int((data.rows.lengths() > 0).sum())
        whole = max(plan.devices_at_once, plan.cohort.among(everybody)) if defence in _ROBUST else plan.devices_at_once
        plan = replace(plan, comparison=None, devices_at_once=whole)
        if liars is not None and plan.reports is not None:
            told = lying_reports(plan.reports.mechanism, liars)
            plan = replace(plan, reports=replace(plan.reports, mechanism=told))
        if defence == "none" and liars is not None:
            plan = replace(plan, mechanism=_unchecked(plan.mechanism))
        super().__init__(plan, data, histories, seeds)
        self._learner_of_sums = None  # messages have to be formed
        self.liars, self.defence, self.refused = liars, defence, 0
        self._generator = np.random.default_rng([seeds.draws, everybody])

    @property
    def _hand(self) -> Hand:
        return _LyingHand(self)

    def poisoned(
        self, bounded: Uploads, devices: Offsets, model: Mapping[str, Floats], place: Indices | None
    ) -> Uploads:
        """The messages of some devices, those of liars among them, as far as the server takes them."""
        lies = np.zeros(len(devices), np.bool_) if self.liars is None else self.liars.among(devices)
        if self.liars is not None and lies.any() and self.liars.poison in ("promote", "boost"):
            honest, false = keep(bounded, ~lies), keep(bounded, lies)
            limit = self._limit(honest) if self.defence == "bound" else None
            lie = self._lie(false, model, place, limit, norms_of(honest))
            bounded = joined(honest, self._refused(lie, limit))
        if self.defence in _ROBUST:
            bounded = _ROBUST[self.defence].messages(bounded, self._generator)
        return bounded

    def _limit(self, honest: Uploads) -> float:
        """The norm beyond which a message is refused."""
        about = self.server.about
        bound = about.clip_norm if about.clip_norm is not None else getattr(self.plan.mechanism, "clip_norm", None)
        if bound is not None:
            return float(bound)
        norms = norms_of(honest)
        return float(np.median(norms)) if len(norms) else 0.0

    def _lie(
        self, false: Uploads, model: Mapping[str, Floats], place: Indices | None, limit: float | None, honest: Doubles
    ) -> Uploads:
        """What liars send: those who boost, however long it is; those who promote, just what is not refused."""
        if self.liars is None:
            raise ValueError("nobody lies")
        if self.liars.poison == "boost":
            return _scaled(false, -_BOOST)
        if learns_promotion(self.plan, self.data):
            lie = self._taught(false)
            length = self._loud(honest) if limit is None else limit
            return _scaled(lie, _BELOW * length / np.maximum(norms_of(lie), _TINY))
        lie = self._promotion(false, model, place)
        if limit is None:
            return lie
        return _scaled(lie, np.minimum(1.0, _BELOW * limit / np.maximum(norms_of(lie), _TINY)))

    def _taught(self, false: Uploads) -> Uploads:
        """What was learnt from those who choose the target: of what is sent whole, all liars send the same, their mean.

        Where every item has numbers of its own, only those of the target.
        """
        target, dense = self.liars.target if self.liars is not None else 0, {}
        for name, values in false.dense.items():
            agreed = np.broadcast_to(values.mean(axis=0, keepdims=True), values.shape).copy()
            if name in self._of_items:
                agreed[:, np.arange(values.shape[1]) != target] = 0.0
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
        if not len(honest):
            return 0.0
        return float(_LOUD * np.median(honest) * self.sampler.size / max(1.0, self._together))

    def _promotion(self, false: Uploads, model: Mapping[str, Floats], place: Indices | None) -> Uploads:
        """The target's row of every table of items, moved to beyond where popular items are."""
        target = self.liars.target if self.liars is not None else 0
        row = target if place is None else int(place[target])
        n, tables = false.count, {}
        for tensor in self.server.view.tables if row >= 0 else ():
            wanted = _beyond(model[tensor.name], self._popular(place), row)
            if not isinstance(self.plan.server, Replacing):
                wanted = wanted - model[tensor.name][row]
            values = np.tile(self._undo * wanted, (n, 1)).astype(np.float32)
            tables[tensor.name] = Rows(np.arange(n + 1), np.full(n, row, np.int32), values)
        dense = {name: np.zeros_like(values) for name, values in false.dense.items()}
        return replace(false, tables=tables, dense=dense, entries={}, factors={})

    def _popular(self, place: Indices | None) -> Indices:
        """Popular items, by their rows in the round: which these are everybody knows."""
        popular = self.liars.popular if self.liars is not None else np.zeros(0, np.int32)
        rows = popular if place is None else place[popular]
        return np.asarray(rows[rows >= 0], np.int32)

    @property
    def _undo(self) -> float:
        """What makes the liars of a round move a row all the way: the server's rate, and what it divides by."""
        power = {"sum": 0.0, "row-sqrt": 0.5}.get(self.plan.aggregation, 1.0)
        return float(self.sampler.size**power / self.plan.server.rate / max(1.0, self._together))

    @property
    def _together(self) -> float:
        """How many liars a round has, on average."""
        return 1.0 if self.liars is None else len(self.liars.devices) * self.sampler.size / len(self.sampler.eligible)

    def _refused(self, lie: Uploads, limit: float | None) -> Uploads:
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


def _scaled(uploads: Uploads, factor: float | Doubles) -> Uploads:
    scaled, factors = copied(uploads), np.broadcast_to(np.asarray(factor, np.float32), (uploads.count,))
    for packed in (scaled.tables, scaled.entries):
        for rows in packed.values():
            rows.values[...] *= np.repeat(factors, np.diff(rows.offsets))[:, None]
    for values in scaled.dense.values():
        values[...] *= factors.reshape(-1, *(1,) * (values.ndim - 1))
    return replace(
        scaled, factors={n: replace(f, scales=f.scales * factors[:, None]) for n, f in uploads.factors.items()}
    )


def joined(first: Uploads, second: Uploads) -> Uploads:
    """The messages of both."""
    if not second.count:
        return first

    def rows_of(one: Mapping[str, Rows], other: Mapping[str, Rows]) -> dict[str, Rows]:
        both = {}
        for name in dict.fromkeys((*one, *other)):
            width = (one.get(name) or other[name]).values.shape[1]
            a, b = (
                packed.get(name) or _no_rows(uploads.count, width)
                for packed, uploads in ((one, first), (other, second))
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


def _no_rows(count: int, width: int) -> Rows:
    return Rows(np.zeros(count + 1, np.int64), np.zeros(0, np.int32), np.zeros((0, width), np.float32))


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
