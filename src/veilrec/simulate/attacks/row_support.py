"""Which items somebody has, from which rows of a message are there and how large they are.

A device changes the rows of its own items, and of others that it drew; reports before the first round name items
outright. Where the noise lies on a sum, the attacker sees the sum and knows what everybody else sent. News have no rows
of their own: their words do, see `gradient_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from veilrec import _draws
from veilrec._arrays import Bools, Doubles, Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec.device.learner import LocalData
from veilrec.device.news_log import OwnImpressions
from veilrec.errors import BadInput
from veilrec.plan import Plan
from veilrec.privacy.randomness import FastSource
from veilrec.simulate.attacks.gradient_rows import recover_clicks
from veilrec.simulate.attacks.observed import Clicks, Observation, View, seen_of, views_of
from veilrec.simulate.attacks.readers import BestScore, Finding, LikeOwn, Reader, Score, found_by
from veilrec.simulate.attacks.witness import Opened, Witness, reported, updates_of
from veilrec.simulate.simulation import Seeds, one_of
from veilrec.updates import Tensor

REPORTS = "reports"  # what a device told before the round, beside the tensors of its message
_MATRIX = 2


@dataclass(frozen=True)
class Place:
    """Where a model is attacked: so far trained, on these devices' data."""

    plan: Plan
    data: LocalData
    histories: Csr
    weights: Mapping[str, Floats]
    n_items: int
    seed: int

    def rounds(self) -> list[Opened]:
        """One of each kind of round, as devices meet it: rounds may be about different tensors."""
        witness = Witness(self.plan, self.data, self.histories, Seeds.all_from(self.seed))
        kinds: dict[tuple[str, ...] | None, Opened] = {}
        for number in range(self.plan.rounds):
            about = self.plan.agenda.next(number, self.weights, None) if self.plan.reports is None else None
            if about is not None and about.tensors in kinds:
                continue
            opened = witness.open(number, self.weights)
            kinds.setdefault(opened.about.tensors, opened)
            if opened.about.tensors is None:
                break
        return list(kinds.values())


def recover_rows(place: Place, *, uploads: int) -> tuple[Finding, ...]:
    """Attack so many devices; first what the method protects against, then what the server sees that it trusts."""
    if uploads < 1:
        raise BadInput(f"uploads is {uploads}: give at least 1")
    if isinstance(place.data, OwnImpressions):
        return recover_clicks(place.plan, place.data, place.weights, uploads=uploads, seed=place.seed)
    rounds = place.rounds()
    targets, own = histories_of(place, uploads)
    views = views_of(place.plan)
    readers = [reader for view in views for reader in _readers(place, rounds, own, view)]
    seen_own, seen = (_observed(place, rounds, people.devices, views) for people in (own, targets))
    return found_by(readers, seen_own, seen, targets)


def histories_of(place: Place, count: int) -> tuple[Clicks, Clicks]:
    """Devices to attack, and as many of the attacker's own, with what they have."""
    able = np.flatnonzero(place.data.rows.lengths() > 0).astype(np.int64)
    if len(able) < 2:
        raise BadInput(f"only {len(able)} devices can learn: an attack needs 2, one of them the attacker's own")
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([place.seed, _draws.COHORT])))
    devices = generator.permutation(able)[: 2 * count]
    rows = place.data.rows.take(devices)
    has: Bools = np.zeros((len(devices), place.n_items), np.bool_)
    has[rows.row_numbers(), rows.items] = True
    return Clicks(devices, np.arange(place.n_items), has, np.zeros_like(has)).halves()


def item_tensors(opened: Opened, n_items: int) -> Iterator[Tensor]:
    """The tensors of a round's answers with a row for every item."""
    rows = n_items if opened.about.rows is None else len(opened.about.rows)
    for tensor in opened.view.tensors:
        if len(tensor.shape) == _MATRIX and tensor.shape[0] == rows:
            yield tensor


def named(opened: Opened, name: str) -> str:
    """A tensor of one of several rounds."""
    return f"{name} in round {opened.about.number + 1}"


def _readers(place: Place, rounds: list[Opened], own: Clicks, view: View) -> list[Reader]:
    readers: list[Reader] = []
    scores: dict[str, Score] = {}
    for opened in rounds:
        for tensor in item_tensors(opened, place.n_items):
            key = named(opened, tensor.name)
            whose = Items(key, opened, place.n_items)
            scores[f"length of the rows of {key}"] = Lengths(whose)
            scores[f"place of the rows of {key} by their length"] = Lengths(whose, by_place=True)
    if scores:
        readers.append(BestScore(view, "item-rows", own, scores))
    if place.plan.reports is not None:
        readers.append(BestScore(view, "reports", own, {"what was reported of each item": _of_reports}))
    return readers or [LikeOwn(view, "sum" if view == "sum" else "dense", own)]


def _of_reports(seen: Observation) -> Floats:
    return np.asarray(seen[REPORTS], np.float32)


@dataclass(frozen=True)
class Items:
    """From rows of a round to all items."""

    key: str
    opened: Opened
    n_items: int

    def of(self, of_rows: Doubles) -> Floats:
        """A score for every item; 0, which is no surprise, for those that the round is not about."""
        rows = self.opened.about.rows
        if rows is None:
            return np.asarray(of_rows, np.float32)
        scores = np.zeros(self.n_items, np.float32)
        scores[rows] = of_rows
        return scores


@dataclass(frozen=True)
class Lengths:
    """How long every row is; or its place among the rows of the message, which long and short histories share."""

    items: Items
    by_place: bool = False

    def __call__(self, seen: Observation) -> Floats:
        """Of every item."""
        lengths = np.linalg.norm(seen[self.items.key], axis=1)
        return self.items.of(np.argsort(np.argsort(lengths, kind="stable")).astype(float) if self.by_place else lengths)


def _observed(
    place: Place, rounds: list[Opened], devices: Offsets, views: tuple[View, ...]
) -> Iterator[Mapping[View, Observation]]:
    """What is seen of one device after the other, in all kinds of rounds."""
    plan = place.plan
    for begin in range(0, len(devices), plan.devices_at_once):
        some = devices[begin : begin + plan.devices_at_once]
        data = place.data.take(some)
        bounded = [(opened, updates_of(plan, some, data, opened, place.seed)) for opened in rounds]
        told = None if plan.reports is None else reported(plan, some, data, place.seed, 0)
        for row, device in enumerate(some):
            seen: dict[View, dict[str, Doubles]] = {view: {} for view in views}
            for opened, updates in bounded:
                number = opened.about.number
                for view in views:
                    source = FastSource(place.seed, _draws.NOISE, number, int(device), one_generator=True)
                    parts = seen_of(plan, one_of(updates, row), opened.about, view, source)
                    seen[view] |= {named(opened, name): values for name, values in parts.items()}
            if told is not None:
                for view in views:
                    seen[view][REPORTS] = _told(place, view, told[row], int(device), data.rows.row(row))
            yield seen


def _told(place: Place, view: View, exact: Doubles, device: int, items: Indices) -> Doubles:
    """A device's report as it is seen: the bits that it sent, the noisy counts less those of all others, or itself."""
    if place.plan.reports is None:
        raise ValueError("the plan asks for no reports")
    mechanism = place.plan.reports.mechanism
    source = FastSource(place.seed, _draws.HISTOGRAM, device, one_generator=True)
    if mechanism.keep_probability < 1.0:  # a device lies by itself
        own = np.zeros(mechanism.length, np.bool_)
        own[items] = True
        return np.asarray(mechanism.report(own, source).value, np.float64)
    if view != "sum":
        return exact
    return np.asarray(mechanism.protect(np.rint(exact / mechanism.step).astype(np.int64), source))
