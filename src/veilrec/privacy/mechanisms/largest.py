"""The entries of largest size of every device's update: exact, in a few passes, the same for any number of threads.

The bits of a float without its sign, read as a whole number, are in the order of its size; so the smallest size that
is kept is found digit by digit from counts. Of entries of that very size the first ones are kept.
"""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from veilrec import _threads
from veilrec._arrays import Floats, Indices, Offsets
from veilrec._jit import jit
from veilrec.updates import Rows

Bits: TypeAlias = NDArray[np.uint32]

_SIGNLESS = np.uint32(0x7FFFFFFF)
_DIGITS = ((20, 11), (10, 10), (0, 10))  # (lowest bit, number of bits) of the three digits of a size
_MOST_DIGITS = 1 << 11


def largest_of_dense(values: Floats, count: int) -> Rows:
    """The entries of largest size of each of [n, ...], by their places in the flattened tensor."""
    flat = values.reshape(len(values), -1)
    return largest_of_rows(Rows(np.arange(len(flat) + 1), np.zeros(len(flat), np.int32), flat), count)


def largest_of_rows(rows: Rows, count: int) -> Rows:
    """The entries of largest size of each device's rows, by their places in the flattened table; all where there
    are fewer."""
    lengths = np.diff(rows.offsets)
    offsets = np.concatenate([[0], np.cumsum(np.minimum(lengths * rows.values.shape[1], count))])
    places, kept = np.empty(offsets[-1], np.int32), np.empty((offsets[-1], 1), np.float32)
    bits = np.ascontiguousarray(rows.values, np.float32).view(np.uint32)
    _threads.run_all(
        [
            partial(
                _choose,
                rows.offsets[first : end + 1],
                rows.index,
                bits,
                offsets[first : end + 1],
                places,
                kept.view(np.uint32)[:, 0],
            )
            for first, end in _threads.even_parts(lengths, _threads.available())
        ]
    )
    return Rows(offsets, places, kept)


@jit
def _choose(  # type: ignore[no-untyped-def]
    starts: Offsets, index: Indices, bits: Bits, offsets: Offsets, places: Indices, kept: Bits
):
    width = bits.shape[1]
    counts = np.empty(_MOST_DIGITS, np.int64)
    for device in range(len(starts) - 1):
        place, end = offsets[device], offsets[device + 1]
        least, equal = _smallest_kept(bits[starts[device] : starts[device + 1]], end - place, counts)
        for row in range(starts[device], starts[device + 1]):
            for column in range(width):
                size = bits[row, column] & _SIGNLESS
                if size >= least:
                    if size == least:
                        if equal == 0:
                            continue
                        equal -= 1
                    places[place] = index[row] * width + column
                    kept[place] = bits[row, column]
                    place += 1


@jit
def _smallest_kept(mine: Bits, count, counts: Offsets):  # type: ignore[no-untyped-def]
    """The smallest size among the `count` largest, and how many of exactly that size are among them."""
    found, left = np.uint32(0), count  # the digits found so far
    for low, n_bits in _DIGITS:
        above, highest = np.uint32(low + n_bits), np.uint32((1 << n_bits) - 1)
        counts[:] = 0
        for row in range(len(mine)):
            for column in range(mine.shape[1]):
                size = mine[row, column] & _SIGNLESS
                if size >> above == found:
                    counts[(size >> np.uint32(low)) & highest] += 1
        digit = np.int64(highest)
        while digit > 0 and counts[digit] < left:
            left -= counts[digit]
            digit -= 1
        found = (found << np.uint32(n_bits)) | np.uint32(digit)
    return found, left
