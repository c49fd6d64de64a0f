"""Sums over the rows of each client, compiled: the rows of a client are contiguous."""

from __future__ import annotations

import numpy as np

from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.jit import jit
from veilrec.kernels.title_encoder import packed_words
from veilrec.kernels.title_gradients import Pairs


@jit
def multiply_segments(offsets: Offsets, left: Floats, right: Floats, out: Floats) -> None:
    """The product left' right of every device's rows: [rows, a], [rows, b] -> [devices, a, b]."""
    for device in range(len(out)):
        low, high = offsets[device], offsets[device + 1]
        np.dot(left[low:high].T, right[low:high], out[device])


@jit
def add_segments(offsets: Offsets, values: Floats, out: Floats) -> None:
    """The sum of every device's rows: [rows, a] -> [devices, a]; `out` comes with zeros."""
    for device in range(len(out)):
        for row in range(offsets[device], offsets[device + 1]):
            for q in range(values.shape[1]):
                out[device, q] += values[row, q]


@jit
def add_to_tables(offsets: Offsets, codes: Indices, values: Floats, out: Floats) -> None:
    """Rows added where their codes say: [rows, a] -> [devices, codes, a]; `out` comes with zeros."""
    for device in range(len(out)):
        for row in range(offsets[device], offsets[device + 1]):
            for q in range(values.shape[1]):
                out[device, codes[row], q] += values[row, q]


@jit
def add_to_rows(offsets: Offsets, codes: Indices, values: Floats, starts: Offsets, index: Indices, out: Floats) -> None:
    """The same in a table of each device's own codes: `index` from `starts` on, in rising order; 0 is padding."""
    for device in range(len(offsets) - 1):
        own = index[starts[device] : starts[device + 1]]
        for row in range(offsets[device], offsets[device + 1]):
            if codes[row] == 0:
                continue
            at = starts[device] + np.searchsorted(own, codes[row])
            for q in range(values.shape[1]):
                out[at, q] += values[row, q]


def own_codes(codes: Offsets, pairs: Pairs, count: int) -> tuple[Offsets, Indices]:
    """The distinct codes of every device's items but 0, in rising order: where each device begins, and all of them."""
    offsets, packed = packed_words(codes)
    most = int(np.diff(offsets)[pairs.title].sum())
    found, ends = np.empty(most, np.int32), np.zeros(len(pairs.offsets), np.int64)
    _find_distinct(pairs.offsets, pairs.title, offsets, packed, count, ends, found)
    return ends, found[: ends[-1]]


@jit
def _find_distinct(  # type: ignore[no-untyped-def]
    pair_offsets: Offsets, title_of: Offsets, offsets: Offsets, codes: Indices, count, ends: Offsets, found: Indices
) -> None:
    last = np.full(count, -1, np.int64)  # the last device that had the code
    end = 0
    for device in range(len(ends) - 1):
        begin = end
        for pair in range(pair_offsets[device], pair_offsets[device + 1]):
            for row in range(offsets[title_of[pair]], offsets[title_of[pair] + 1]):
                if last[codes[row]] != device:
                    last[codes[row]] = device
                    found[end] = codes[row]
                    end += 1
        found[begin:end].sort()
        ends[device + 1] = end
