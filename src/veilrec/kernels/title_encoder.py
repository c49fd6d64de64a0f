"""FedNewsRec's title model (Fig. 1) forward, compiled: words lie packed, one row per word, without padding.

That of NRMS is the same without its first layer, the CNN: self-attention looks at the words themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.jit import jit

WORDS = "words.weight"
KERNEL, KERNEL_BIAS = "cnn.kernel.weight", "cnn.kernel.bias"
PROJECTIONS = "title.mix.projections.weight"
HIDDEN, HIDDEN_BIAS = "title.attention.hidden.weight", "title.attention.hidden.bias"
QUERY = "title.attention.query.weight"
DENSE = (KERNEL, KERNEL_BIAS, PROJECTIONS, HIDDEN, HIDDEN_BIAS, QUERY)
TITLE_TENSORS = frozenset({WORDS, *DENSE})
_ZERO = np.float32(0.0)


class Titles(NamedTuple):
    """Encoded titles, and what their gradients need."""

    heads: int
    scale: np.float32  # of the scores of self-attention
    offsets: Offsets  # [titles + 1], first row of every title
    squares: Offsets  # [titles + 1], first entry of every title in `attention`
    words: Indices  # [rows]
    convolved: Floats  # [rows, filters]; no column without a CNN
    projected: Floats  # [rows, 3 * dim], queries, keys, values
    attention: Floats  # of every title [heads, length, length], one behind the other
    mixed: Floats  # [rows, dim], after self-attention
    hidden: Floats  # [rows, attention]
    share: Floats  # [rows], the weight of a word in its title
    vectors: Floats  # [titles, dim], as the model has it


def encode_titles(weights: Mapping[str, Floats], codes: Offsets, heads: int) -> Titles:
    """Forward, as the model's `encode_news` does it: codes [titles, l], 0 behind the last word."""
    offsets, words = packed_words(codes)
    has_cnn = KERNEL in weights
    convolved = convolve(weights, offsets, words) if has_cnn else np.empty((len(words), 0), np.float32)
    projected: Floats = (convolved if has_cnn else weights[WORDS][words]) @ weights[PROJECTIONS].T
    squares = starts(heads * np.diff(offsets) ** 2)
    rows, dim = len(words), weights[HIDDEN].shape[1]
    attention, mixed = np.empty(squares[-1], np.float32), np.empty((rows, dim), np.float32)
    scale = np.float32((dim // heads) ** -0.5)
    multiply_inside(offsets, squares, heads, projected[:, :dim], projected[:, dim:], attention)
    _mix_values(offsets, squares, heads, scale, projected, attention, mixed)
    hidden = np.tanh(mixed @ weights[HIDDEN].T + weights[HIDDEN_BIAS])
    share, vectors = np.empty(rows, np.float32), np.empty((len(offsets) - 1, dim), np.float32)
    pool(offsets, hidden @ weights[QUERY][0], mixed, share, vectors)
    return Titles(heads, scale, offsets, squares, words, convolved, projected, attention, mixed, hidden, share, vectors)


def convolve(weights: Mapping[str, Floats], offsets: Offsets, words: Indices) -> Floats:
    """The CNN over all words: [rows, filters]."""
    seen = np.empty((len(words), weights[KERNEL].shape[1]), np.float32)
    _see(offsets, words, weights[WORDS], seen)
    convolved: Floats = seen @ weights[KERNEL].T
    convolved += weights[KERNEL_BIAS]
    np.maximum(convolved, np.float32(0.0), out=convolved)
    return convolved


def packed_words(codes: Offsets) -> tuple[Offsets, Indices]:
    """Titles without their padding: where each begins, and all words."""
    is_word = codes > 0
    return starts(is_word.sum(1)), codes[is_word].astype(np.int32)


def starts(lengths: Offsets) -> Offsets:
    """Where each of several runs begins, and behind the last where it ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


@jit
def _see(offsets: Offsets, words: Indices, table: Floats, seen: Floats) -> None:
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
        length = high - low
        ours, theirs = np.empty((length, width), np.float32), np.empty((length, width), np.float32)
        for head in range(heads):
            take_head(left[low:high], head * width, ours)
            take_head(right[low:high], head * width, theirs)
            np.dot(ours, theirs.T, square_at(out, entry, length))
            entry += length * length


@jit
def square_at(flat: Floats, start: int, length: int) -> Floats:
    """A view of a flat vector as a square matrix."""
    return flat[start : start + length * length].reshape(length, length)


@jit
def take_head(rows: Floats, start: int, out: Floats) -> None:
    """Copy the columns of one head."""
    for row in range(len(out)):
        for q in range(out.shape[1]):
            out[row, q] = rows[row, start + q]


@jit
def put_head(values: Floats, start: int, out: Floats) -> None:
    """Copy the columns of one head back to where they belong."""
    for row in range(len(values)):
        for q in range(values.shape[1]):
            out[row, start + q] = values[row, q]


@jit
def _mix_values(  # type: ignore[no-untyped-def]
    offsets: Offsets, squares: Offsets, heads, scale, projected: Floats, attention: Floats, mixed: Floats
) -> None:
    """Self-attention inside every title: from products of queries and keys to weights, and to mixed values."""
    dim = mixed.shape[1]
    width = dim // heads
    for title in range(len(offsets) - 1):
        low, high, entry = offsets[title], offsets[title + 1], squares[title]
        length = high - low
        values, mix = np.empty((length, width), np.float32), np.empty((length, width), np.float32)
        for head in range(heads):
            weights = square_at(attention, entry, length)
            for row in range(length):
                _softmax(weights[row], scale)
            take_head(projected[low:high], 2 * dim + head * width, values)
            np.dot(weights, values, mix)
            put_head(mix, head * width, mixed[low:high])
            entry += length * length


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
