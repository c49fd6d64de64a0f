"""Products of small matrices whose columns are filled up to whole vectors; none starts a thread.

The space comes from `aligned`, because loads that straddle two cache lines cost up to a third more. At
256 x 32 x 32 this measured 45 billion multiplications a second, of 50 that the processor could make.
"""

from __future__ import annotations

import math

import numpy as np

from veilrec._arrays import Floats
from veilrec._jit import jit
from veilrec._vector import LANES, Vector, load, load_spread, store, where_positive

_LINE = 64  # bytes of a cache line
_BLOCK = 4  # rows of two vectors: eight sums in flight keep two multipliers with a latency of four busy
_AS_IT_IS, _RECTIFIED, _GATED = 0, 1, 2  # how a product is stored: rectifying it later would be one more pass


def aligned(*shape: int) -> Floats:
    """Zeros that start at the beginning of a cache line."""
    space = aligned_space(*shape)
    space[...] = 0.0
    return space


def aligned_space(*shape: int) -> Floats:
    """The same without the zeros: whatever was there before."""
    size = math.prod(shape)
    space = np.empty(size + _LINE // 4, np.float32)
    start = (-space.ctypes.data % _LINE) // 4
    return space[start : start + size].reshape(shape)


def whole_vectors(width: int) -> int:
    """The width, filled up to whole vectors."""
    return -(-width // LANES) * LANES


@jit
def whole_blocks(rows: int) -> int:
    """The number of rows, filled up to whole blocks of a product."""
    return -(-rows // _BLOCK) * _BLOCK


@jit
def fill(row: Floats, value: np.float32) -> None:
    """row[:] = value, in vector instructions, which numba's own assignment to a slice is not."""
    for j in range(len(row)):
        row[j] = value


@jit
def set_product(left: Floats, right: Floats, start: Floats, out: Floats) -> None:
    """out = start + left @ right; `start` has one row for all, or as many as `out`, which it may be.

    `out` has whole blocks of rows, and whole vectors of columns.
    """
    _multiply(left, right, start, out, out, _AS_IT_IS)


@jit
def set_rectified_product(left: Floats, right: Floats, start: Floats, out: Floats) -> None:
    """The same with 0 for whatever would be below."""
    _multiply(left, right, start, out, out, _RECTIFIED)


@jit
def set_gated_product(left: Floats, right: Floats, start: Floats, gates: Floats, out: Floats) -> None:
    """The same with 0 wherever `gates`, of the shape of `out`, is not above 0."""
    _multiply(left, right, start, gates, out, _GATED)


@jit
def _multiply(left: Floats, right: Floats, start: Floats, gates: Floats, out: Floats, finish: int) -> None:
    rows, columns = out.shape
    start_step = 1 if len(start) == rows else 0
    pairs = columns - columns % (2 * LANES)
    for column in range(0, pairs, 2 * LANES):
        for row in range(0, rows, _BLOCK):
            _set_block(left, right, start, start_step, gates, out, finish, row, column)
    if pairs < columns:
        for row in range(0, rows, _BLOCK):
            _set_narrow_block(left, right, start, start_step, gates, out, finish, row, pairs)


@jit
def _set_block(
    left: Floats,
    right: Floats,
    start: Floats,
    step: int,
    gates: Floats,
    out: Floats,
    finish: int,
    row: int,
    column: int,
) -> None:
    """Four rows of two vectors, which stay in registers."""
    first, other = row * step, column + LANES
    a, a_other = load(start, (first, column)), load(start, (first, other))
    b, b_other = load(start, (first + step, column)), load(start, (first + step, other))
    c, c_other = load(start, (first + 2 * step, column)), load(start, (first + 2 * step, other))
    d, d_other = load(start, (first + 3 * step, column)), load(start, (first + 3 * step, other))
    for k in range(left.shape[1]):
        factor, factor_other = load(right, (k, column)), load(right, (k, other))
        weight = load_spread(left, (row, k))
        a, a_other = a + weight * factor, a_other + weight * factor_other
        weight = load_spread(left, (row + 1, k))
        b, b_other = b + weight * factor, b_other + weight * factor_other
        weight = load_spread(left, (row + 2, k))
        c, c_other = c + weight * factor, c_other + weight * factor_other
        weight = load_spread(left, (row + 3, k))
        d, d_other = d + weight * factor, d_other + weight * factor_other
    _put(out, (row, column), a, gates, finish)
    _put(out, (row, other), a_other, gates, finish)
    _put(out, (row + 1, column), b, gates, finish)
    _put(out, (row + 1, other), b_other, gates, finish)
    _put(out, (row + 2, column), c, gates, finish)
    _put(out, (row + 2, other), c_other, gates, finish)
    _put(out, (row + 3, column), d, gates, finish)
    _put(out, (row + 3, other), d_other, gates, finish)


@jit
def _set_narrow_block(
    left: Floats,
    right: Floats,
    start: Floats,
    step: int,
    gates: Floats,
    out: Floats,
    finish: int,
    row: int,
    column: int,
) -> None:
    """Four rows of one vector."""
    first = row * step
    a, b = load(start, (first, column)), load(start, (first + step, column))
    c, d = load(start, (first + 2 * step, column)), load(start, (first + 3 * step, column))
    for k in range(left.shape[1]):
        factor = load(right, (k, column))
        a, b = a + load_spread(left, (row, k)) * factor, b + load_spread(left, (row + 1, k)) * factor
        c, d = c + load_spread(left, (row + 2, k)) * factor, d + load_spread(left, (row + 3, k)) * factor
    _put(out, (row, column), a, gates, finish)
    _put(out, (row + 1, column), b, gates, finish)
    _put(out, (row + 2, column), c, gates, finish)
    _put(out, (row + 3, column), d, gates, finish)


@jit
def _put(out: Floats, place: tuple[int, int], value: Vector, gates: Floats, finish: int) -> None:
    if finish == _RECTIFIED:
        store(out, place, where_positive(value, value))
    elif finish == _GATED:
        store(out, place, where_positive(load(gates, place), value))
    else:
        store(out, place, value)


@jit
def add_combination(weights: Floats, rows: Floats, out: Floats) -> None:
    """out += sum over i of weights[i] * rows[i], eight rows at a time."""
    eights = len(weights) - len(weights) % 8
    for i in range(0, eights, 8):
        a, b, c, d = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
        e, f, g, h = rows[i + 4], rows[i + 5], rows[i + 6], rows[i + 7]
        wa, wb, wc, wd = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        we, wf, wg, wh = weights[i + 4], weights[i + 5], weights[i + 6], weights[i + 7]
        for j in range(len(out)):
            left = wa * a[j] + wb * b[j] + wc * c[j] + wd * d[j]
            out[j] += left + we * e[j] + wf * f[j] + wg * g[j] + wh * h[j]
    for i in range(eights, len(weights)):
        row, weight = rows[i], weights[i]
        for j in range(len(out)):
            out[j] += weight * row[j]


@jit
def dot(left: Floats, right: Floats, size: int) -> np.float32:
    """left[:size] . right[:size]."""
    total = np.float32(0.0)
    for j in range(size):
        total += left[j] * right[j]
    return total
