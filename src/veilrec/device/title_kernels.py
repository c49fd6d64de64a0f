"""Compiled forward passes through titles whose words lie packed, one row per word, without padding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._jit import jit
from veilrec._vector import LANES, load, load_spread, spread, store, total

_ZERO = np.float32(0.0)


class Titles(NamedTuple):
    """Encoded titles, and what their gradients need. LANES divides the width of a head, which zeros fill up."""

    heads: int
    scale: np.float32  # of the scores of self-attention
    offsets: Offsets  # [titles + 1], first row of every title
    squares: Offsets  # [titles + 1], first entry of every title in `attention`
    words: Indices  # [rows]
    convolved: Floats  # [rows, filters]
    projected: Floats  # [rows, 3 * dim], queries, keys, values
    attention: Floats  # of every title [heads, length, length], one behind the other; then LANES that nobody uses
    mixed: Floats  # [rows, dim], after self-attention
    hidden: Floats  # [rows, attention]
    share: Floats  # [rows], the weight of a word in its title
    vectors: Floats  # [titles, dim], as the model has it


@jit
def see(offsets: Offsets, words: Indices, table: Floats, seen: Floats) -> None:
    """What the CNN's window sees at every word; zero beyond the title."""
    width = table.shape[1]
    reach = seen.shape[1] // width // 2
    for title in range(len(offsets) - 1):
        low, high = offsets[title], offsets[title + 1]
        for row in range(low, high):
            for shift in range(2 * reach + 1):
                source = row + shift - reach
                for q in range(width):
                    inside = low <= source < high
                    seen[row, shift * width + q] = table[words[source], q] if inside else _ZERO


@jit
def multiply_inside(  # type: ignore[no-untyped-def]
    offsets: Offsets, squares: Offsets, heads, left: Floats, right: Floats, out: Floats
) -> None:
    """Products of every row of a title with every row of it, head by head."""
    width = left.shape[1] // heads
    for title in range(len(offsets) - 1):
        low, high, entry = offsets[title], offsets[title + 1], squares[title]
        for head in range(heads):
            for row in range(low, high):
                for other in range(low, high):
                    product = spread(_ZERO)
                    for q in range(head * width, (head + 1) * width, LANES):
                        product = product + load(left, (row, q)) * load(right, (other, q))
                    out[entry] = total(product)
                    entry += 1


@jit
def mix(  # type: ignore[no-untyped-def]
    offsets: Offsets, squares: Offsets, heads, scale, projected: Floats, attention: Floats, mixed: Floats
) -> None:
    """Self-attention inside every title: from products of queries and keys to weights, and to mixed values."""
    dim = mixed.shape[1]
    width = dim // heads
    for title in range(len(offsets) - 1):
        low, length, entry = offsets[title], offsets[title + 1] - offsets[title], squares[title]
        for head in range(heads):
            for row in range(length):
                _softmax(attention[entry : entry + length], scale)
                for q in range(head * width, (head + 1) * width, LANES):
                    content = spread(_ZERO)
                    for other in range(length):
                        weight = load_spread(attention, (entry + other,))
                        content = content + weight * load(projected, (low + other, 2 * dim + q))
                    store(mixed, (low + row, q), content)
                entry += length


@jit
def _softmax(values: Floats, scale: np.float32) -> None:
    top, whole = np.float32(-np.inf), _ZERO
    for j in range(len(values)):
        top = max(top, values[j])
    for j in range(len(values)):
        values[j] = np.exp((values[j] - top) * scale)
        whole += values[j]
    for j in range(len(values)):
        values[j] /= whole


@jit
def pool(offsets: Offsets, logits: Floats, mixed: Floats, share: Floats, vectors: Floats) -> None:
    """The weighted mean of every title; zero for one without words."""
    vectors[:] = 0.0
    for title in range(len(offsets) - 1):
        low, high = offsets[title], offsets[title + 1]
        share[low:high] = logits[low:high]
        _softmax(share[low:high], np.float32(1.0))
        for row in range(low, high):
            for q in range(mixed.shape[1]):
                vectors[title, q] += share[row] * mixed[row, q]


@jit
def count_words(  # type: ignore[no-untyped-def]
    pair_offsets: Offsets, title_of: Offsets, offsets: Offsets, words: Indices, vocabulary, counts: Offsets
) -> None:
    """Distinct words of every device."""
    last = np.full(vocabulary, -1, np.int64)  # the last device that had the word
    for device in range(len(counts)):
        for pair in range(pair_offsets[device], pair_offsets[device + 1]):
            title = title_of[pair]
            for row in range(offsets[title], offsets[title + 1]):
                if last[words[row]] != device:
                    last[words[row]] = device
                    counts[device] += 1
