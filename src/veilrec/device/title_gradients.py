"""Gradients of FedNewsRec's title model (Fig. 1), one per device, where many devices share the news.

Every distinct title goes forward once. Backward, a device's gradient of the loss in the vectors of its news goes
through its own titles only: words lie packed, without padding, and a device is a few products of matrices that stay in
the cache. Autograd gives the same (tests), but keeps whole tensors for all devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._vector import LANES
from veilrec.device import title_backward as backward
from veilrec.device import title_kernels as kernels
from veilrec.device.title_backward import Found, Given
from veilrec.device.title_kernels import Titles
from veilrec.updates import Rows

WORDS = "words.weight"
KERNEL, KERNEL_BIAS = "cnn.kernel.weight", "cnn.kernel.bias"
PROJECTIONS = "title.mix.projections.weight"
HIDDEN, HIDDEN_BIAS = "title.attention.hidden.weight", "title.attention.hidden.bias"
QUERY = "title.attention.query.weight"
_DENSE = (KERNEL, KERNEL_BIAS, PROJECTIONS, HIDDEN, HIDDEN_BIAS, QUERY)
TENSORS = frozenset({WORDS, *_DENSE})


@dataclass(frozen=True)
class Pairs:
    """The news of every device: pair p is the title `title[p]` on the device whose range has p."""

    offsets: Offsets  # [devices + 1]
    title: Offsets  # [pairs]


def encode(weights: Mapping[str, Floats], codes: Offsets, heads: int) -> Titles:
    """Forward, as `FedNewsRec.encode_news` does it: codes [titles, l], 0 behind the last word."""
    projections, hidden_weights = _widened(weights, heads)
    offsets, words = _packed(codes)
    squares = starts(heads * np.diff(offsets) ** 2)
    rows, dim = len(words), hidden_weights.shape[1]
    seen = np.empty((rows, weights[KERNEL].shape[1]), np.float32)
    kernels.see(offsets, words, weights[WORDS], seen)
    convolved: Floats = seen @ weights[KERNEL].T
    convolved += weights[KERNEL_BIAS]
    np.maximum(convolved, np.float32(0.0), out=convolved)
    projected: Floats = convolved @ projections.T
    attention, mixed = np.zeros(squares[-1] + LANES, np.float32), np.empty((rows, dim), np.float32)
    scale = np.float32((weights[HIDDEN].shape[1] // heads) ** -0.5)
    kernels.multiply_inside(offsets, squares, heads, projected[:, :dim], projected[:, dim:], attention)
    kernels.mix(offsets, squares, heads, scale, projected, attention, mixed)
    hidden = np.tanh(mixed @ hidden_weights.T + weights[HIDDEN_BIAS])
    share, vectors = np.empty(rows, np.float32), np.empty((len(codes), dim), np.float32)
    kernels.pool(offsets, hidden @ weights[QUERY][0], mixed, share, vectors)
    vectors = _cut(vectors, heads, weights[HIDDEN].shape[1])
    return Titles(heads, scale, offsets, squares, words, convolved, projected, attention, mixed, hidden, share, vectors)


def pull_back(
    weights: Mapping[str, Floats], titles: Titles, pairs: Pairs, gradients: Floats, *, learns_words: bool
) -> tuple[dict[str, Floats], Rows]:
    """From gradients in the vectors of the pairs to those of every device in the weights; rows only of own words."""
    n, heads = len(pairs.offsets) - 1, titles.heads
    given = _given(weights, titles, pairs, gradients)
    counts = np.zeros(n, np.int64)
    if learns_words:
        counts = _counted(pairs, titles.offsets, titles.words, len(weights[WORDS]))
    words = starts(counts)
    index, values = np.empty(words[-1], np.int32), np.empty((words[-1], given.table.shape[1]), np.float32)
    shapes = {name: weights[name].shape for name in _DENSE} | {
        PROJECTIONS: given.projections.shape,
        HIDDEN: (len(weights[HIDDEN]), titles.mixed.shape[1]),
    }
    dense = {name: np.zeros((n, *shape), np.float32) for name, shape in shapes.items()}
    found = Found(
        dense[KERNEL],
        dense[KERNEL_BIAS],
        dense[PROJECTIONS],
        dense[HIDDEN],
        dense[HIDDEN_BIAS],
        dense[QUERY][:, 0],
        words,
        index,
        values,
    )
    backward.pull_back(titles, given, found)
    dim = weights[HIDDEN].shape[1]
    by_column = dense[PROJECTIONS].swapaxes(1, 2)
    dense[PROJECTIONS] = _cut(by_column, 3 * heads, 3 * dim).swapaxes(1, 2)
    dense[HIDDEN] = _cut(dense[HIDDEN], heads, dim)
    return dense, Rows(words, index, values)


def _given(weights: Mapping[str, Floats], titles: Titles, pairs: Pairs, gradients: Floats) -> Given:
    """What the backward pass reads."""
    projections, hidden_weights = _widened(weights, titles.heads)
    in_hidden = weights[QUERY] * (1.0 - titles.hidden**2)
    in_mixed = in_hidden @ hidden_weights
    in_scores = np.zeros_like(titles.attention)
    content = titles.projected[:, -titles.mixed.shape[1] :]
    kernels.multiply_inside(titles.offsets, titles.squares, titles.heads, in_mixed, content, in_scores)
    backward.through_softmax(titles, in_scores)
    table, filters = weights[WORDS], len(weights[KERNEL])
    kernel = weights[KERNEL].reshape(filters, -1, table.shape[1]).swapaxes(0, 1).reshape(-1, table.shape[1])
    centre = np.repeat(_widen(titles.vectors, titles.heads), np.diff(titles.offsets), axis=0)
    return Given(
        pairs.offsets,
        pairs.title,
        _widen(gradients, titles.heads),
        table,
        kernel,
        projections,
        content - centre,
        titles.mixed - centre,
        in_hidden,
        in_mixed,
        in_scores,
    )


def _widened(weights: Mapping[str, Floats], heads: int) -> tuple[Floats, Floats]:
    """Weights of self-attention and of attention for heads of a width that LANES divides, filled up with zeros."""
    projections = _widen(weights[PROJECTIONS].T, 3 * heads).T
    return np.ascontiguousarray(projections), _widen(weights[HIDDEN], heads)


def _widen(values: Floats, heads: int) -> Floats:
    """[..., heads * width] -> [..., heads * (width and zeros)]."""
    spare = -(values.shape[-1] // heads) % LANES
    if not spare:
        return values
    apart = values.reshape(*values.shape[:-1], heads, -1)
    filled = np.pad(apart, [(0, 0)] * values.ndim + [(0, spare)])
    return filled.reshape(*values.shape[:-1], -1)


def _cut(values: Floats, heads: int, dim: int) -> Floats:
    """The other way round: [..., wide] -> [..., dim]."""
    if values.shape[-1] == dim:
        return values
    apart = values.reshape(*values.shape[:-1], heads, -1)
    return apart[..., : dim // heads].reshape(*values.shape[:-1], dim)


def count_words(codes: Offsets, pairs: Pairs, vocabulary: int) -> Offsets:
    """How many distinct words the titles of each device have."""
    return _counted(pairs, *_packed(codes), vocabulary)


def _counted(pairs: Pairs, offsets: Offsets, words: Indices, vocabulary: int) -> Offsets:
    counts = np.zeros(len(pairs.offsets) - 1, np.int64)
    kernels.count_words(pairs.offsets, pairs.title, offsets, words, vocabulary, counts)
    return counts


def _packed(codes: Offsets) -> tuple[Offsets, Indices]:
    """Titles without their padding: where each begins, and all words."""
    is_word = codes > 0
    return starts(is_word.sum(1)), codes[is_word].astype(np.int32)


def starts(lengths: Offsets) -> Offsets:
    """Where each of several runs begins, and behind the last where it ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
