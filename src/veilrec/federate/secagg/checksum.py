"""One number more beside every vector, so that a wrong sum is noticed.

Server and devices share a key that helpers do not have. It names two vectors a and b of 64-bit words. A device reads
its numbers as a matrix X, row by row, and sends a' X b modulo 2^64 along, under masks like everything else. The sum of
these is a' S b for the sum S of all matrices: it tells whoever knows S and the key nothing new.

Whoever changes the sum by E and the check by e, without the key, passes if a' E b = e. Take a row of E that is not
zero, and in it the entry that 2 divides least often, v times. With uniform b the row's product is uniform among the
multiples of 2^v; 2 divides it exactly w times with probability 2^-(w - v + 1), and it is 0 with 2^-(64 - v). With
uniform a, a multiple of exactly 2^w takes any value with probability 2^-(64 - w) at most. All together at most

    sum over w = v..63 of 2^-(w - v + 1) 2^-(64 - w), and 2^-(64 - v)  =  (66 - v) / 2 * 2^-(64 - v).

Two sums that fit in q bits differ by less than 2^q, so that v is below q: 2^-28 for q = 32. See `missed`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from veilrec._arrays import Offsets
from veilrec.federate.secagg.masks import MaskStream

CHECK_KEY_BYTES = 32


def missed(width: int) -> float:
    """At most how often a wrong sum of numbers of so many bits goes unnoticed, whoever made it knowing no key."""
    v = width - 1
    return (66 - v) / 2 * 2.0 ** -(64 - v)


def check_value(values: Offsets, key: bytes) -> NDArray[np.uint64]:
    """The check of a vector, or of a sum of vectors: one word."""
    columns = math.isqrt(len(values) - 1) + 1
    rows = -(-len(values) // columns)
    factors = np.zeros(rows + columns, np.uint64)
    MaskStream(key).add_to(factors)
    left, right = factors[:rows], factors[rows:]
    words = values.view(np.uint64)
    whole = len(values) // columns
    products = np.zeros(rows, np.uint64)
    products[:whole] = words[: whole * columns].reshape(whole, columns) @ right
    rest = words[whole * columns :]
    if len(rest):
        products[whole] = rest @ right[: len(rest)]
    return np.array([left @ products], "<u8")
