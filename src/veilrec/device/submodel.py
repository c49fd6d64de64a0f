"""Learning on a part of the item table, and telling which part would be needed (DP-SUB, priv-fedmf-sub section 4).

The part that is sent is public and the same for everybody. A device drops its items outside of it and numbers the
others anew, so that learners and kernels see a small table and never know.
"""

from __future__ import annotations

import numpy as np

from veilrec import _draws
from veilrec._arrays import Bools, Indices, Offsets
from veilrec._csr import Csr
from veilrec._jit import jit
from veilrec.privacy.mechanisms.bits import RandomisedResponse
from veilrec.privacy.mechanisms.memoised import Memoised, Store
from veilrec.privacy.randomness import Source
from veilrec.wire import bits

_OUTSIDE = -1


def places(rows: Indices, n_items: int) -> Indices:
    """Where each item lies in the sub-model; -1 outside."""
    place = np.full(n_items, _OUTSIDE, np.int32)
    place[rows] = np.arange(len(rows), dtype=np.int32)
    return place


def narrow(data: Csr, place: Indices) -> Csr:
    """The devices' items inside the sub-model, by their numbers there."""
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


class Reporter:
    """A real device's report on its items: randomised response (eq. 7), drawn once per public period.

    As published, every round is a period of its own; memoised, the period never changes during a run.
    """

    def __init__(self, mechanism: RandomisedResponse, store: Store) -> None:
        self._memoised = Memoised(mechanism, store, key="items of the sub-model")
        self._length = mechanism.length

    def report(self, items: Indices, source: Source, *, period: int, round_number: int) -> bytes:
        """The message."""
        own = np.zeros(self._length, np.bool_)
        own[items] = True
        told: Bools = self._memoised.release(own, source, period=period).value.astype(np.bool_)
        return bits.encode(told, round_number)


def few_items(items: Indices, most: int, source: Source) -> Indices:
    """At most so many of a device's items, at random: what a histogram on sums may count of it."""
    if len(items) <= most:
        return items
    return items[np.sort(np.argsort(source.words(len(items)))[:most])]


def simulated_reports(
    data: Csr, devices: Offsets, n_items: int, flip_probability: float, *, seed: int, period: int
) -> Offsets:
    """How many of the simulated devices report each item; a device's report depends on (seed, period) alone."""
    counts = np.zeros(n_items, np.int64)
    flips_below = np.uint64(min(int(flip_probability * 2.0**64), 2**64 - 1))
    _count_reports(data.offsets, data.items, devices, flips_below, seed, period, counts)
    return counts


@jit
def _count_reports(
    offsets: Offsets, items: Indices, devices: Offsets, flips_below: np.uint64, seed: int, period: int, counts: Offsets
) -> None:
    own = np.full(len(counts), -1, np.int64)
    for row in range(len(devices)):
        for entry in range(offsets[row], offsets[row + 1]):
            own[items[entry]] = row
        start = _draws.stream(seed, _draws.REPORT, period, devices[row])
        for item in range(len(counts)):
            turned = _draws.word(start, item) < flips_below
            counts[item] += (own[item] == row) != turned


def simulated_histogram(data: Csr, devices: Offsets, n_items: int, most: int, *, seed: int) -> Offsets:
    """How many of the simulated devices report each item when each names at most `most`, chosen at random."""
    counts = np.zeros(n_items, np.int64)
    _count_few(data.offsets, data.items, devices, most, seed, counts)
    return counts


@jit
def _count_few(offsets: Offsets, items: Indices, devices: Offsets, most: int, seed: int, counts: Offsets) -> None:
    for row in range(len(devices)):
        own = items[offsets[row] : offsets[row + 1]].copy()
        start = _draws.stream(seed, _draws.REPORT, 0, devices[row])
        for j in range(min(most, len(own))):
            pick = j + _draws.below(_draws.word(start, j), len(own) - j)
            own[j], own[pick] = own[pick], own[j]
            counts[own[j]] += 1
