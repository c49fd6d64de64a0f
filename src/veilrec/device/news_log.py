"""What a news device keeps: its impressions, packed into one row of whole numbers, and the examples drawn from it.

A row is a sequence of blocks, one per impression with both labels, in time order:

    [history length, clicks, others, history items..., clicked items..., other items...]

so that a device's data, like that of all devices, is a row of a `Csr`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veilrec import _draws
from veilrec._arrays import Bytes, Indices, Offsets
from veilrec._csr import Csr
from veilrec._jit import jit
from veilrec.data.population import Impressions
from veilrec.errors import BadInput

NONE = -1  # no item: padding of histories and candidates
_HEAD = 3


@dataclass(frozen=True)
class Examples:
    """One example per click: the click first, then news of the same impression that were not clicked."""

    device: Offsets  # [examples], row of the logs, in rising order
    candidates: Indices  # [examples, 1 + negatives], NONE where the impression has too few others
    history_of: Offsets  # [examples], row of `histories`, in rising order
    histories: Indices  # [distinct, longest], oldest click first, NONE behind the last

    def __len__(self) -> int:
        return len(self.device)


@dataclass(frozen=True)
class OwnImpressions:
    """What each device's user was shown and clicked, packed as above."""

    rows: Csr

    def take(self, devices: Offsets) -> OwnImpressions:
        """The impressions of some devices."""
        return OwnImpressions(self.rows.take(devices))

    def inside(self, place: Indices) -> OwnImpressions:
        """Rounds of news models are about all news."""
        raise BadInput("impressions cannot be cut to a part of the items: train on all news")


def pack_logs(impressions: Impressions, n_users: int, longest: int = 50) -> Csr:
    """One row per user; of each history the `longest` latest clicks; users without a usable impression are empty."""
    order = np.lexsort((impressions.times, impressions.users)).astype(np.int64)
    offsets = np.zeros(n_users + 1, np.int64)
    arguments = (
        order,
        impressions.users,
        impressions.shown.offsets,
        impressions.shown.items,
        impressions.clicked,
        impressions.histories.offsets,
        impressions.histories.items,
        impressions.history_of,
        longest,
    )
    _measure(*arguments, offsets)
    np.cumsum(offsets, out=offsets)
    rows = np.empty(offsets[-1], np.int32)
    _pack(*arguments, offsets[:-1].copy(), rows)
    return Csr(offsets, rows)


def count_clicks(logs: Csr) -> Offsets:
    """The number of examples of every row."""
    counts = np.zeros(len(logs), np.int64)
    _count(logs.offsets, logs.items, counts)
    return counts


def draw_examples(logs: Csr, devices: Offsets, *, negatives: int, longest: int, seed: int, number: int) -> Examples:
    """The examples of round (or epoch) `number`; the draws of a row are keyed by its device's number."""
    counts = count_clicks(logs)
    total = int(counts.sum())
    candidates = np.full((total, 1 + negatives), NONE, np.int32)
    history_of = np.empty(total, np.int64)
    histories = np.full((_count_histories(logs.offsets, logs.items), longest), NONE, np.int32)
    _draw(logs.offsets, logs.items, devices, negatives, seed, number, candidates, history_of, histories)
    device = np.repeat(np.arange(len(logs), dtype=np.int64), counts)
    return Examples(device, candidates, history_of, histories)


@jit
def _usable(clicked: Bytes, low: int, high: int) -> bool:
    clicks = 0
    for entry in range(low, high):
        clicks += clicked[entry] > 0
    return 0 < clicks < high - low


@jit
def _measure(  # type: ignore[no-untyped-def]
    order: Offsets,
    users: Indices,
    shown_offsets: Offsets,
    shown: Indices,
    clicked: Bytes,
    history_offsets: Offsets,
    histories: Indices,
    history_of: Indices,
    longest,
    sizes: Offsets,
) -> None:
    for row in order:
        low, high = shown_offsets[row], shown_offsets[row + 1]
        if _usable(clicked, low, high):
            past = history_offsets[history_of[row] + 1] - history_offsets[history_of[row]]
            sizes[users[row] + 1] += _HEAD + min(past, longest) + high - low


@jit
def _pack(  # type: ignore[no-untyped-def]
    order: Offsets,
    users: Indices,
    shown_offsets: Offsets,
    shown: Indices,
    clicked: Bytes,
    history_offsets: Offsets,
    histories: Indices,
    history_of: Indices,
    longest,
    at: Offsets,
    out: Indices,
) -> None:
    for row in order:
        low, high = shown_offsets[row], shown_offsets[row + 1]
        if not _usable(clicked, low, high):
            continue
        place = at[users[row]]
        end = history_offsets[history_of[row] + 1]
        past = min(end - history_offsets[history_of[row]], longest)
        clicks = 0
        for entry in range(low, high):
            clicks += clicked[entry] > 0
        out[place], out[place + 1], out[place + 2] = past, clicks, high - low - clicks
        place += _HEAD
        for entry in range(end - past, end):
            out[place] = histories[entry]
            place += 1
        for wanted in (True, False):
            for entry in range(low, high):
                if (clicked[entry] > 0) == wanted:
                    out[place] = shown[entry]
                    place += 1
        at[users[row]] = place


@jit
def _count(offsets: Offsets, rows: Indices, counts: Offsets) -> None:
    for device in range(len(counts)):
        at = offsets[device]
        while at < offsets[device + 1]:
            counts[device] += rows[at + 1]
            at += _HEAD + rows[at] + rows[at + 1] + rows[at + 2]


@jit
def _same_history(rows: Indices, one: int, other: int) -> bool:
    """Whether the blocks at two places have the same history."""
    for j in range(rows[one] + 1):
        if rows[one + (j + _HEAD - 1 if j else 0)] != rows[other + (j + _HEAD - 1 if j else 0)]:
            return False
    return True


@jit
def _count_histories(offsets: Offsets, rows: Indices) -> int:
    """Blocks whose history is not that of the block before them on the same device."""
    count = 0
    for device in range(len(offsets) - 1):
        at, before = offsets[device], -1
        while at < offsets[device + 1]:
            count += before < 0 or not _same_history(rows, before, at)
            before = at
            at += _HEAD + rows[at] + rows[at + 1] + rows[at + 2]
    return count


@jit
def _draw(  # type: ignore[no-untyped-def]
    offsets: Offsets,
    rows: Indices,
    devices: Offsets,
    negatives,
    seed,
    number,
    candidates: Indices,
    history_of: Offsets,
    histories: Indices,
) -> None:
    example, history = 0, -1
    for device in range(len(devices)):
        start = _draws.stream(seed, _draws.LEARNING, number, devices[device])
        at, before, drawn = offsets[device], -1, 0
        while at < offsets[device + 1]:
            past, clicks, others = rows[at], rows[at + 1], rows[at + 2]
            first = at + _HEAD
            if before < 0 or not _same_history(rows, before, at):
                history += 1
                kept = min(past, histories.shape[1])
                for j in range(kept):
                    histories[history, j] = rows[first + past - kept + j]
            unclicked = rows[first + past + clicks : first + past + clicks + others].copy()
            for click in range(clicks):
                history_of[example] = history
                candidates[example, 0] = rows[first + past + click]
                for j in range(min(negatives, others)):  # the beginning of a shuffle
                    k = j + _draws.below(_draws.word(start, drawn), others - j)
                    drawn += 1
                    unclicked[j], unclicked[k] = unclicked[k], unclicked[j]
                    candidates[example, 1 + j] = unclicked[j]
                example += 1
            before = at
            at = first + past + clicks + others
