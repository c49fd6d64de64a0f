"""NeuMF on many devices, compiled: what each draws, and its steps one after another."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from veilrec import _draws
from veilrec._arrays import Floats, Indices, Offsets
from veilrec._jit import jit
from veilrec._vector import LANES, load, spread, store
from veilrec.device.ncf_step import Batch, Device, Rules, Scratch, learn_batch
from veilrec.device.optimisers import FIRST, SECOND, WEIGHTS
from veilrec.device.sampling import draw_epoch
from veilrec.models.neumf_tower import Tower

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


class Given(NamedTuple):
    """What devices learn from; rows are filled up as `Tower` says."""

    seed: int
    round_number: int
    devices: Offsets  # [n]
    offsets: Offsets  # [n + 1]: where each one's items start in `items`
    items: Indices
    table: Floats  # [items, row]
    network: Floats  # flat


class Learnt(NamedTuple):
    """What devices change; all but `users` are differences to what the server sent."""

    users: Floats  # [n, row]: theirs before, and afterwards
    offsets: Offsets  # [n + 1]: where each one's rows start in `items` and `rows`
    items: Indices
    rows: Floats
    networks: Floats  # [n, flat]
    loss: Floats  # [n]: the mean of the last epoch


class Examples(NamedTuple):
    """Space for the examples of an epoch."""

    own: Indices  # the device's items
    is_own: Indices  # [items]: the last device that has it
    items: Indices
    labels: Floats
    slots: Indices  # where an example's item lies in Device.rows
    slot_of: Indices  # [items]: its place in Learnt.rows; before the device's own rows: not met yet
    place: Indices  # [slots]: where a batch has it, if it does


@jit
def learn_cohort(tower: Tower, rules: Rules, given: Given, scratch: Scratch, learnt: Learnt) -> None:
    """Let every device learn."""
    n_items = len(given.table)
    longest = 0
    for device in range(len(given.devices)):
        longest = max(longest, given.offsets[device + 1] - given.offsets[device])
    most = longest * (1 + rules.negatives)
    met_at_most = min(longest * (1 + rules.negatives * rules.epochs), n_items)
    examples = Examples(
        np.empty(longest, np.int32),
        np.full(n_items, -1, np.int32),
        np.empty(most, np.int32),
        np.empty(most, np.float32),
        np.empty(most, np.int32),
        np.full(n_items, -1, np.int32),
        np.zeros(met_at_most, np.int32),
    )
    labels, counts, errors = np.empty((3, most), np.float32)
    batch = Batch(np.empty(most, np.int32), labels, counts, errors)
    state = Device(
        np.zeros((1, 3, tower.row), np.float32),
        np.zeros((1, 3, len(scratch.network_gradient)), np.float32),
        np.empty((met_at_most, 3, tower.row), np.float32),
    )
    learnt.offsets[0] = 0
    for device in range(len(given.devices)):
        _begin(tower, given.network, learnt.users[device], state)
        _learn_device(tower, rules, given, device, examples, batch, state, scratch, learnt)
        _end(tower, given, device, state, learnt)


@jit
def _learn_device(
    tower: Tower,
    rules: Rules,
    given: Given,
    device: int,
    examples: Examples,
    batch: Batch,
    state: Device,
    scratch: Scratch,
    learnt: Learnt,
) -> None:
    """All epochs of one device."""
    n_items = len(given.table)
    own = examples.own[: given.offsets[device + 1] - given.offsets[device]]
    for j in range(len(own)):
        own[j] = given.items[given.offsets[device] + j]
        examples.is_own[own[j]] = device
    drawn = rules.negatives if len(own) < n_items else 0  # who owns every item has nothing to draw from
    size = len(own) * (1 + drawn)
    step_size = size if rules.batch == 0 else rules.batch
    items, labels, slots = examples.items[:size], examples.labels[:size], examples.slots[:size]
    stream = _draws.stream(given.seed, _draws.LEARNING, given.round_number, given.devices[device])
    first = used = learnt.offsets[device]
    counter = steps = 0
    for epoch in range(rules.epochs):
        counter = draw_epoch(own, examples.is_own, device, n_items, drawn, stream, counter, items, labels)
        used = _find_slots(given.table, items, slots, first, used, examples.slot_of, state, learnt.items)
        loss = 0.0
        for begin in range(0, size, max(step_size, 1)):
            end = min(begin + step_size, size)
            distinct = _gather_distinct(slots[begin:end], labels[begin:end], examples.place, batch)
            steps += 1
            learn_batch(tower, rules, state, batch, distinct, end - begin, steps, scratch)
            if epoch == rules.epochs - 1:
                loss += _loss(batch, distinct)
        learnt.loss[device] = loss / max(size, 1)
    learnt.offsets[device + 1] = used


@jit
def _find_slots(
    table: Floats, items: Indices, slots: Indices, first: int, used: int, slot_of: Indices, state: Device, met: Indices
) -> int:
    """Where every item of an epoch lies; one that was not met before gets the next slot."""
    for j in range(len(items)):
        item = items[j]
        if slot_of[item] < first:
            slot_of[item] = used
            met[used] = item
            _set_row(table, item, state.rows, used - first)
            used += 1
        slots[j] = slot_of[item] - first
    return used


@jit
def _set_row(rows: Floats, row: int, states: Floats, slot: int) -> None:
    """The weights of a slot, and no moments."""
    nothing = spread(_ZERO)
    for q in range(0, rows.shape[1], LANES):
        store(states, (slot, WEIGHTS, q), load(rows, (row, q)))
        store(states, (slot, FIRST, q), nothing)
        store(states, (slot, SECOND, q), nothing)


@jit
def _begin(tower: Tower, network: Floats, user: Floats, state: Device) -> None:
    """What a device starts from."""
    state.user[:] = _ZERO
    for q in range(len(user)):
        state.user[0, WEIGHTS, q] = user[q]
    state.network[:] = _ZERO
    for q in range(len(network)):
        state.network[0, WEIGHTS, tower.places[q]] = network[q]


@jit
def _end(tower: Tower, given: Given, device: int, state: Device, learnt: Learnt) -> None:
    """What a device has learnt."""
    for q in range(tower.row):
        learnt.users[device, q] = state.user[0, WEIGHTS, q]
    first = learnt.offsets[device]
    for place in range(first, learnt.offsets[device + 1]):
        for q in range(0, tower.row, LANES):
            before = load(given.table, (learnt.items[place], q))
            store(learnt.rows, (place, q), load(state.rows, (place - first, WEIGHTS, q)) - before)
    for q in range(len(given.network)):
        learnt.networks[device, q] = state.network[0, WEIGHTS, tower.places[q]] - given.network[q]


@jit
def _gather_distinct(slots: Indices, labels: Floats, place: Indices, batch: Batch) -> int:
    """Fill the batch with each distinct item once; `place` needs no clearing: every entry is checked."""
    distinct = 0
    for j in range(len(slots)):
        at = place[slots[j]]
        if at < distinct and batch.slots[at] == slots[j]:
            batch.counts[at] += _ONE
        else:
            place[slots[j]] = distinct
            batch.slots[distinct] = slots[j]
            batch.labels[distinct] = labels[j]
            batch.counts[distinct] = _ONE
            distinct += 1
    return distinct


@jit
def _loss(batch: Batch, distinct: int) -> float:
    """The sum of the batch's losses before its step: -log(1 - |error|) each."""
    total = 0.0
    for j in range(distinct):
        total -= batch.counts[j] * np.log(max(_ONE - abs(batch.errors[j]), np.float32(1e-12)))
    return total
