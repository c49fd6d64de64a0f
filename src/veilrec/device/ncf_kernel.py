"""NeuMF on many devices, compiled: a cohort in threads, and the epochs of a device; its steps are in `ncf_step`."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from veilrec import _draws, _threads
from veilrec._arrays import Floats, Indices, Offsets
from veilrec._jit import jit
from veilrec._matrix import aligned_space
from veilrec._vector import LANES, load, spread, store
from veilrec.device.inner_loops import draw_epoch
from veilrec.device.ncf_step import (
    DeviceState,
    DistinctItems,
    Rules,
    StepScratch,
    gather_distinct,
    learn_batch,
    loss_of,
    make_scratch,
)
from veilrec.device.optimisers import FIRST, SECOND, WEIGHTS
from veilrec.models.neumf_scores import Tower

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


class Changes(NamedTuple):
    """What devices learn; all but `users` are differences to what the server sent, or negative gradients."""

    users: Floats  # [n, row]: theirs before, and afterwards
    offsets: Offsets  # [n + 1]: where each one's rows start in `items` and `rows`
    items: Indices
    rows: Floats
    networks: Floats  # [n, flat]
    loss: Floats  # [n]: the mean of the last epoch


def space_for(most: Offsets, users: Floats, network_size: int) -> Changes:
    """Room for what devices learn that change at most so many rows each."""
    devices, rows = len(most), int(most.sum())
    return Changes(
        users=users,
        offsets=np.zeros(devices + 1, np.int64),
        items=np.empty(rows, np.int32),
        rows=aligned_space(rows, users.shape[1]),
        networks=np.empty((devices, network_size), np.float32),
        loss=np.zeros(devices, np.float32),
    )


def learn_in_threads(tower: Tower, rules: Rules, given: Given, most: Offsets, learnt: Changes) -> None:
    """Let every device learn, by as many threads as there are; the outcome is the same for any number of them."""
    parts = _threads.even_parts(np.diff(given.offsets), _threads.available())
    starts = np.concatenate([[0], np.cumsum(most)])
    spaces = [_part(learnt, first, end, starts) for first, end in parts]
    _threads.run_all(
        [
            partial(_learn_cohort, tower, rules, _devices(given, first, end), make_scratch(tower), space)
            for (first, end), space in zip(parts, spaces, strict=True)
        ]
    )
    used = 0
    for (first, end), space in zip(parts, spaces, strict=True):
        count = int(space.offsets[-1])
        learnt.offsets[first : end + 1] = used + space.offsets
        if used < starts[first]:  # close the gap that an earlier part left
            learnt.items[used : used + count] = space.items[:count]
            learnt.rows[used : used + count] = space.rows[:count]
        used += count


def _devices(given: Given, first: int, end: int) -> Given:
    return given._replace(devices=given.devices[first:end], offsets=given.offsets[first : end + 1])


def _part(learnt: Changes, first: int, end: int, starts: Offsets) -> Changes:
    rows = slice(starts[first], starts[end])
    return Changes(
        users=learnt.users[first:end],
        offsets=np.zeros(end - first + 1, np.int64),
        items=learnt.items[rows],
        rows=learnt.rows[rows],
        networks=learnt.networks[first:end],
        loss=learnt.loss[first:end],
    )


class _EpochSpace(NamedTuple):
    """Space for the examples of an epoch."""

    own: Indices  # the device's items
    is_own: Indices  # [items]: the last device that has it
    items: Indices
    labels: Floats
    slots: Indices  # where an example's item lies in DeviceState.rows
    slot_of: Indices  # [items]: its place in Changes.rows; before the device's own rows: not met yet
    place: Indices  # [slots]: where a batch has it, if it does


@jit
def _learn_cohort(tower: Tower, rules: Rules, given: Given, scratch: StepScratch, learnt: Changes) -> None:
    """The devices of one thread, one after another."""
    n_items = len(given.table)
    longest = 0
    for device in range(len(given.devices)):
        longest = max(longest, given.offsets[device + 1] - given.offsets[device])
    most = longest * (1 + rules.negatives)
    met_at_most = min(longest * (1 + rules.negatives * rules.epochs), n_items)
    examples = _EpochSpace(
        np.empty(longest, np.int32),
        np.full(n_items, -1, np.int32),
        np.empty(most, np.int32),
        np.empty(most, np.float32),
        np.empty(most, np.int32),
        np.full(n_items, -1, np.int32),
        np.zeros(met_at_most, np.int32),
    )
    labels, counts, errors = np.empty((3, most), np.float32)
    batch = DistinctItems(np.empty(most, np.int32), labels, counts, errors)
    state = DeviceState(
        np.zeros((1, 3, tower.row), np.float32),
        np.zeros((1, 3, len(scratch.network_gradient)), np.float32),
        np.empty((met_at_most, 3, tower.row), np.float32),
    )
    learnt.offsets[0] = 0
    for device in range(len(given.devices)):
        _begin(tower, given.network, learnt.users[device], state)
        _learn_device(tower, rules, given, device, examples, batch, state, scratch, learnt)
        _end(tower, rules.still, given, device, state, learnt)


@jit
def _learn_device(
    tower: Tower,
    rules: Rules,
    given: Given,
    device: int,
    examples: _EpochSpace,
    batch: DistinctItems,
    state: DeviceState,
    scratch: StepScratch,
    learnt: Changes,
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
            distinct = gather_distinct(slots[begin:end], labels[begin:end], examples.place, batch)
            steps += 1
            learn_batch(tower, rules, state, batch, distinct, end - begin, steps, scratch)
            if epoch == rules.epochs - 1:
                loss += loss_of(batch, distinct)
        learnt.loss[device] = loss / max(size, 1)
    learnt.offsets[device + 1] = used


@jit
def _find_slots(
    table: Floats,
    items: Indices,
    slots: Indices,
    first: int,
    used: int,
    slot_of: Indices,
    state: DeviceState,
    met: Indices,
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
def _begin(tower: Tower, network: Floats, user: Floats, state: DeviceState) -> None:
    """What a device starts from."""
    state.user[:] = _ZERO
    for q in range(len(user)):
        state.user[0, WEIGHTS, q] = user[q]
    state.network[:] = _ZERO
    for q in range(len(network)):
        state.network[0, WEIGHTS, tower.places[q]] = network[q]


@jit
def _end(tower: Tower, still: bool, given: Given, device: int, state: DeviceState, learnt: Changes) -> None:
    """What a device has learnt."""
    for q in range(tower.row):
        learnt.users[device, q] = state.user[0, WEIGHTS, q]
    first = learnt.offsets[device]
    for place in range(first, learnt.offsets[device + 1]):
        for q in range(0, tower.row, LANES):
            if still:
                sent = spread(_ZERO) - load(state.rows, (place - first, FIRST, q))
            else:
                sent = load(state.rows, (place - first, WEIGHTS, q)) - load(given.table, (learnt.items[place], q))
            store(learnt.rows, (place, q), sent)
    for q in range(len(given.network)):
        if still:
            learnt.networks[device, q] = -state.network[0, FIRST, tower.places[q]]
        else:
            learnt.networks[device, q] = state.network[0, WEIGHTS, tower.places[q]] - given.network[q]
