"""A cohort of NeuMF devices in several threads: each takes neighbours, and their rows are then put together."""

from __future__ import annotations

from functools import partial

import numpy as np

from veilrec import _threads
from veilrec._arrays import Floats, Offsets
from veilrec._matrix import aligned_space
from veilrec.device.ncf_kernel import Given, Learnt, learn_cohort
from veilrec.device.ncf_step import Rules, make_scratch
from veilrec.models.neumf_tower import Tower


def space_for(most: Offsets, users: Floats, network_size: int) -> Learnt:
    """Room for what devices learn that change at most so many rows each."""
    devices, rows = len(most), int(most.sum())
    return Learnt(
        users=users,
        offsets=np.zeros(devices + 1, np.int64),
        items=np.empty(rows, np.int32),
        rows=aligned_space(rows, users.shape[1]),
        networks=np.empty((devices, network_size), np.float32),
        loss=np.zeros(devices, np.float32),
    )


def learn_in_threads(tower: Tower, rules: Rules, given: Given, most: Offsets, learnt: Learnt) -> None:
    """`learn_cohort`, by as many threads as there are; the outcome is the same for any number of them."""
    parts = _threads.even_parts(np.diff(given.offsets), _threads.available())
    starts = np.concatenate([[0], np.cumsum(most)])
    spaces = [_part(learnt, first, end, starts) for first, end in parts]
    _threads.run_all(
        [
            partial(learn_cohort, tower, rules, _devices(given, first, end), make_scratch(tower), space)
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


def _part(learnt: Learnt, first: int, end: int, starts: Offsets) -> Learnt:
    rows = slice(starts[first], starts[end])
    return Learnt(
        users=learnt.users[first:end],
        offsets=np.zeros(end - first + 1, np.int64),
        items=learnt.items[rows],
        rows=learnt.rows[rows],
        networks=learnt.networks[first:end],
        loss=learnt.loss[first:end],
    )
