"""A training, watched by somebody who sees what it releases: counts of reports, noisy sums, models.

Where noise lies on sums, the sums with their noise are what is released; models follow from them. Where it does not,
the changes of the model are. Nothing is seen that a method keeps from those whom it protects against.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from veilrec.audit.observe import simulate_as
from veilrec.client.federated import examples_if_asked, weights_of
from veilrec.client.local_training import Cohort, LocalData, OwnSources, SharedSource, places
from veilrec.core.arrays import Csr, Doubles, Floats, Offsets
from veilrec.core.plan import Plan
from veilrec.core.schema import BOUND, ClientUpdates, RoundSpec, Schema, Tensor
from veilrec.privacy.mechanisms.sums import UpdateMechanism
from veilrec.privacy.randomness import FastSource, Source
from veilrec.server.round_specs import Tally
from veilrec.simulation.simulation import Seeds, Simulation
from veilrec.wire import messages

_UNKNOWN = 7_919  # of the seed of what devices add to their data: nobody knows what they drew


class _Overheard:
    """The mechanism of a plan, and the sums that it has put its noise on."""

    def __init__(self, mechanism: UpdateMechanism) -> None:
        self._mechanism = mechanism
        self.sums: dict[str, Doubles] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def protect(self, sums: MutableMapping[str, Doubles], about: RoundSpec, source: Source) -> None:
        self._mechanism.protect(sums, about, source)
        self.sums = {name: total.copy() for name, total in sums.items()}


@dataclass(frozen=True)
class WitnessedRound:
    """A round as everybody may know it before its first message."""

    about: RoundSpec
    model: Mapping[str, Floats]  # that devices get
    view: Schema  # of their answers
    tally: Tally | None  # of reports, as it may be used


@dataclass(frozen=True)
class RoundRelease:
    """What a round gave away."""

    opened: WitnessedRound
    seen: Doubles  # the noisy sums, or the change of the model: all numbers of the view, end to end
    kept: Mapping[str, Floats]  # what devices kept for themselves before the round, [devices, ...] each


class Witness(Simulation):
    """A simulation that remembers what its last round gave away."""

    def __init__(self, plan: Plan, data: LocalData, histories: Csr, seeds: Seeds) -> None:
        self._overheard = _Overheard(plan.mechanism)
        super().__init__(
            replace(plan, mechanism=cast(UpdateMechanism, self._overheard), comparison=None), data, histories, seeds
        )

    def _ask(self, number: int, devices: Offsets) -> tuple[Tally | None, int]:
        self._last_tally, sent = super()._ask(number, devices)
        return self._last_tally, sent

    def _open_round(self, number: int, devices: Offsets) -> int:
        sent = super()._open_round(number, devices)
        server = self.server
        model = weights_of(messages.rounded_update(server.broadcast(), server.schema), server.view)
        copies = {name: values.copy() for name, values in model.items()}
        self.opened = WitnessedRound(server.about, copies, server.view, self._last_tally)
        return sent

    def open(self, number: int, weights: Mapping[str, Floats]) -> WitnessedRound:
        """A round with these weights, before anybody has answered."""
        for name, values in weights.items():
            self.server.weights[name][...] = values
        self._open_round(number, self.sampler.draw(number))
        return self.opened

    def releases(self, rounds: int | None = None) -> Iterator[RoundRelease]:
        """All rounds of the plan, one after the other, or the first ones."""
        for number in range(self.plan.rounds if rounds is None else min(rounds, self.plan.rounds)):
            before = {name: values.copy() for name, values in self.server.weights.items()}
            kept = {name: values.copy() for name, values in self.private.items()}
            self.step(number)
            yield RoundRelease(self.opened, self._seen(before), kept)

    def _seen(self, before: Mapping[str, Floats]) -> Doubles:
        about, view = self.opened.about, self.opened.view
        if self.plan.mechanism.noise_on == "sum":
            parts = [self._overheard.sums[tensor.name] for tensor in view.tensors]
        else:
            changes = {name: values.astype(np.float64) - before[name] for name, values in self.server.weights.items()}
            rows = slice(None) if about.rows is None else about.rows
            parts = [changes[t.name][rows] if t.by_row else changes[t.name] for t in view.tensors]
        return np.concatenate([part.ravel() for part in parts])


def watched(plan: Plan, data: LocalData, histories: Csr, seeds: Seeds, removed: Offsets) -> Witness:
    """A training without the data of some devices: they still count, and are not there."""
    return simulate_as(Witness, plan, data, histories, seeds, removed=removed)


def updates_of(
    plan: Plan,
    devices: Offsets,
    data: LocalData,
    opened: WitnessedRound,
    draws: int,
    kept: Mapping[str, Floats] | None = None,
) -> ClientUpdates:
    """The bounded updates that these devices would send in a round: their first one, or with what they kept."""
    about = opened.about
    if about.rows is not None:
        data = data.inside(places(about.rows, plan.schema.tables[0].shape[0]))
    private = plan.learner.fresh_private_state(devices, draws) if kept is None else dict(kept)
    noise: OwnSources = SharedSource(FastSource(draws + _UNKNOWN, about.number))
    learned = plan.learner.learn(Cohort(devices, data, private, draws, noise), opened.model, about)
    return plan.mechanism.bound(examples_if_asked(learned.uploads, plan.tells_examples), about)


def sum_of(plan: Plan, devices: Offsets, data: LocalData, release: RoundRelease, draws: int) -> Doubles:
    """What all these devices together sent in a round that they were in: all numbers of the view, end to end."""
    view, at_once = release.opened.view, plan.devices_at_once
    sums = {tensor.name: np.zeros(tensor.shape) for tensor in view.tensors}
    for begin in range(0, len(devices), at_once):
        some = devices[begin : begin + at_once]
        kept = {name: values[some] for name, values in release.kept.items()}
        updates = updates_of(plan, some, data.take(some), release.opened, draws, kept)
        for tensor in view.tensors:
            add_to(sums[tensor.name], updates, tensor)
    return np.concatenate([sums[tensor.name].ravel() for tensor in view.tensors])


def add_to(total: Doubles, updates: ClientUpdates, tensor: Tensor) -> None:
    """Add what updates say of a tensor."""
    from scipy.sparse import csr_matrix

    for packed, target in ((updates.tables, total), (updates.entries, total.reshape(-1, 1))):
        rows = packed.get(tensor.name)
        if rows is not None and len(rows.index):
            entries = np.arange(len(rows.index))
            one_for_each = csr_matrix((np.ones(len(entries)), (rows.index, entries)), (len(target), len(entries)))
            np.add(target, one_for_each @ rows.values.astype(np.float64), out=target)
    whole = _whole(updates, tensor.name)
    if whole is not None:
        total += whole.sum(axis=0, dtype=np.float64)


def products(uploads: ClientUpdates, view: Schema, seen: Doubles) -> tuple[Doubles, Doubles]:
    """The products of updates with each other, [n, n], and with what is seen, [n]; how a bound is met is no part."""
    together, with_seen = np.zeros((uploads.count, uploads.count)), np.zeros(uploads.count)
    start = 0
    for tensor in view.tensors:
        part = seen[start : start + tensor.size]
        for block, columns in _blocks(uploads, tensor):
            together += block @ block.T
            with_seen += block @ part[columns].astype(np.float32)
        start += tensor.size
    return together, with_seen


def _blocks(uploads: ClientUpdates, tensor: Tensor) -> Iterator[tuple[Floats, Offsets | slice]]:
    """What the updates say of a tensor, [n, numbers], and of which of its numbers that is."""
    n = uploads.count
    for packed, width in ((uploads.tables, tensor.shape[-1]), (uploads.entries, 1)):
        rows = packed.get(tensor.name)
        if rows is None or not len(rows.index):
            continue
        touched, place = np.unique(rows.index, return_inverse=True)
        block = np.zeros((n, len(touched), width), np.float32)
        block[np.repeat(np.arange(n), np.diff(rows.offsets)), place] = rows.values
        yield block.reshape(n, -1), (touched.astype(np.int64)[:, None] * width + np.arange(width)).ravel()
    whole = _whole(uploads, tensor.name)
    if whole is not None and tensor.name != BOUND:
        yield whole.reshape(n, -1), slice(None)


def _whole(uploads: ClientUpdates, name: str) -> Floats | None:
    if name in uploads.factors:
        return uploads.factors[name].product()
    return uploads.dense.get(name)


def reported(plan: Plan, devices: Offsets, data: LocalData, draws: int, period: int) -> Doubles:
    """What each device adds to the counts of reports, [devices, items]; of lies that it draws nobody knows."""
    if plan.reports is None:
        raise ValueError("the plan asks for no reports")
    mechanism, rows = plan.reports.mechanism, data.rows
    if mechanism.keep_probability < 1.0:
        own = np.zeros((len(devices), mechanism.length))
        own[rows.row_numbers(), rows.items] = 1.0
        return own
    told = [
        mechanism.count(rows.take(np.array([row])), devices[row : row + 1], seed=draws, period=period)
        for row in range(len(devices))
    ]
    return np.asarray(np.array(told, np.float64) * mechanism.step)
