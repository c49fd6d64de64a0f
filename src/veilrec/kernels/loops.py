"""Inner loops that the kernels of clients share: sampling of examples, sigmoids, products of rows and vectors.

They are written so that the compiler makes vector instructions of them.
"""

from __future__ import annotations

import numpy as np

from veilrec.core.arrays import Floats, Indices
from veilrec.core.jit import jit
from veilrec.core.rng import below, word

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)  # ln 2 in two parts, so that x - k ln 2 keeps its last bits
_LN2_LOW = np.float32(-2.12194440e-4)
_LARGEST = np.float32(87.0)
# Minimax polynomial of (exp(r) - 1 - r) / r^2 on |r| <= ln(2)/2 (the single-precision one of Cephes).
_P5, _P4, _P3 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P2, _P1, _P0 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_ONE = np.float32(1.0)
_HALF = np.float32(0.5)


@jit
def draw_epoch(
    own: Indices,
    is_own: Indices,
    stamp: int,
    n_items: int,
    negatives: int,
    start: np.uint64,
    counter: int,
    items: Indices,
    labels: Floats,
) -> int:
    """Fill an epoch: every own item once, in random order, each followed by items drawn from all others.

    `own` is shuffled in place. `is_own[i] == stamp` marks the client's training items: only those are left
    out, so a held-out item is drawn as often as any other. Returns how many words of the stream were used.
    """
    filled = 0
    for j in range(len(own)):
        pick = j + below(word(start, counter), len(own) - j)
        counter += 1
        item = own[pick]
        own[pick] = own[j]
        own[j] = item
        items[filled] = item
        labels[filled] = np.float32(1.0)
        filled += 1
        for _ in range(negatives):
            item = np.int32(below(word(start, counter), n_items))
            counter += 1
            while is_own[item] == stamp:
                item = np.int32(below(word(start, counter), n_items))
                counter += 1
            items[filled] = item
            labels[filled] = np.float32(0.0)
            filled += 1
    return counter


@jit
def sigmoids(values: Floats, size: int, exponents: Indices) -> None:
    """Replace the first `size` values x by 1 / (1 + exp(-x)); `exponents` is scratch space.

    To single precision for |x| <= 87; beyond, the value at 87.

    numba calls exp one by one; this form is four times as fast because every step is a vector instruction.
    """
    powers = exponents.view(np.float32)
    for j in range(size):
        x = min(max(-values[j], -_LARGEST), _LARGEST)
        k = np.floor(x * _LOG2_E + _HALF)
        exponents[j] = (np.int32(k) + np.int32(127)) << np.int32(23)  # the bits of 2^k
        r = x - k * _LN2_HIGH - k * _LN2_LOW
        p = ((((_P5 * r + _P4) * r + _P3) * r + _P2) * r + _P1) * r + _P0
        values[j] = p * r * r + r + _ONE
    for j in range(size):
        values[j] = _ONE / (_ONE + values[j] * powers[j])


@jit
def inner_product(left: Floats, right: Floats) -> np.float32:
    """The inner product of two vectors."""
    total = np.float32(0.0)
    for q in range(len(left)):
        total += left[q] * right[q]
    return total


@jit
def add_scaled(out: Floats, vector: Floats, scale: np.float32) -> None:
    """out += scale * vector."""
    for q in range(len(out)):
        out[q] += scale * vector[q]


@jit
def copy(source: Floats, out: Floats) -> None:
    """out[:] = source, in vector instructions."""
    for q in range(len(out)):
        out[q] = source[q]


@jit
def row_dots(rows: Floats, slots: Indices, vector: Floats, out: Floats) -> None:
    """out[j] = rows[slots[j]] . vector, four rows at a time."""
    dim = len(vector)
    size = len(slots)
    j = 0
    while j + 4 <= size:
        a, b, c, d = _four(slots, j)
        sa = np.float32(0.0)
        sb = np.float32(0.0)
        sc = np.float32(0.0)
        sd = np.float32(0.0)
        for q in range(dim):
            v = vector[q]
            sa += rows[a, q] * v
            sb += rows[b, q] * v
            sc += rows[c, q] * v
            sd += rows[d, q] * v
        out[j], out[j + 1], out[j + 2], out[j + 3] = sa, sb, sc, sd
        j += 4
    while j < size:
        a = np.uint64(slots[j])
        sa = np.float32(0.0)
        for q in range(dim):
            sa += rows[a, q] * vector[q]
        out[j] = sa
        j += 1


@jit
def add_scaled_rows(rows: Floats, slots: Indices, scales: Floats, out: Floats) -> None:
    """out += sum over j of scales[j] * rows[slots[j]], eight rows at a time."""
    dim = len(out)
    size = len(slots)
    j = 0
    while j + 8 <= size:
        a, b, c, d = _four(slots, j)
        e, f, g, h = _four(slots, j + 4)
        wa, wb, wc, wd = scales[j], scales[j + 1], scales[j + 2], scales[j + 3]
        we, wf, wg, wh = scales[j + 4], scales[j + 5], scales[j + 6], scales[j + 7]
        for q in range(dim):
            first = wa * rows[a, q] + wb * rows[b, q] + wc * rows[c, q] + wd * rows[d, q]
            second = we * rows[e, q] + wf * rows[f, q] + wg * rows[g, q] + wh * rows[h, q]
            out[q] += first + second
        j += 8
    while j < size:
        a, wa = np.uint64(slots[j]), scales[j]
        for q in range(dim):
            out[q] += wa * rows[a, q]
        j += 1


@jit
def _four(slots: Indices, j: int) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Four row numbers, unsigned: then no code is made for rows counted from the end."""
    return np.uint64(slots[j]), np.uint64(slots[j + 1]), np.uint64(slots[j + 2]), np.uint64(slots[j + 3])


@jit
def mean_logistic_loss(errors: Floats) -> np.float32:
    """The mean loss of examples whose errors are sigmoid(score) - label: -log(1 - |error|).

    The logarithm of a product of sixteen is one logarithm instead of sixteen; none underflows, as each is >= 1e-12.
    """
    total = 0.0
    size = len(errors)
    for begin in range(0, size, 16):
        product = 1.0
        for j in range(begin, min(begin + 16, size)):
            product *= float(max(_ONE - abs(errors[j]), np.float32(1e-12)))
        total -= np.log(product)
    return np.float32(total / max(size, 1))


@jit
def mean_squared_loss(errors: Floats) -> np.float32:
    """The mean loss of examples whose errors are 2 (score - label), the derivatives of (score - label)^2."""
    total = 0.0
    for j in range(len(errors)):
        total += 0.25 * float(errors[j]) ** 2
    return np.float32(total / max(len(errors), 1))
