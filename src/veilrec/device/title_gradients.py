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
from veilrec.device import title_kernels as kernels
from veilrec.wire.messages import Rows

WORDS = "words.weight"
KERNEL, KERNEL_BIAS = "cnn.kernel.weight", "cnn.kernel.bias"
PROJECTIONS = "title.mix.projections.weight"
HIDDEN, HIDDEN_BIAS = "title.attention.hidden.weight", "title.attention.hidden.bias"
QUERY = "title.attention.query.weight"
_DENSE = (KERNEL, KERNEL_BIAS, PROJECTIONS, HIDDEN, HIDDEN_BIAS, QUERY)
TENSORS = frozenset({WORDS, *_DENSE})


@dataclass(frozen=True)
class Titles:
    """Encoded titles, and what their gradients need; all but the vectors have one row per word, packed."""

    offsets: Offsets  # [titles + 1], first row of every title
    squares: Offsets  # [titles + 1], first entry of every title in `attention`
    words: Indices  # [rows]
    seen: Floats  # [rows, window * word_dim], what the CNN sees
    convolved: Floats  # [rows, dim]
    projected: Floats  # [rows, 3 * dim], queries, keys, values
    attention: Floats  # [sum of length^2, heads]
    mixed: Floats  # [rows, dim], after self-attention
    hidden: Floats  # [rows, attention]
    share: Floats  # [rows], the weight of a word in its title
    vectors: Floats  # [titles, dim]


@dataclass(frozen=True)
class Pairs:
    """The news of every device: pair p is the title `title[p]` on the device whose range has p."""

    offsets: Offsets  # [devices + 1]
    title: Offsets  # [pairs]


def encode(weights: Mapping[str, Floats], codes: Offsets, heads: int) -> Titles:
    """Forward, as `FedNewsRec.encode_news` does it: codes [titles, l], 0 behind the last word."""
    offsets, words = _packed(codes)
    squares = starts(np.diff(offsets) ** 2)
    rows, dim = len(words), weights[KERNEL].shape[0]
    seen = np.empty((rows, weights[KERNEL].shape[1]), np.float32)
    kernels.see(offsets, words, weights[WORDS], seen)
    convolved = np.maximum(seen @ weights[KERNEL].T + weights[KERNEL_BIAS], np.float32(0.0))
    projected = convolved @ weights[PROJECTIONS].T
    attention, mixed = np.empty((squares[-1], heads), np.float32), np.empty((rows, dim), np.float32)
    kernels.mix(offsets, squares, projected, attention, mixed)
    hidden = np.tanh(mixed @ weights[HIDDEN].T + weights[HIDDEN_BIAS])
    share, vectors = np.empty(rows, np.float32), np.empty((len(codes), dim), np.float32)
    kernels.pool(offsets, hidden @ weights[QUERY][0], mixed, share, vectors)
    return Titles(
        offsets, squares, words, seen, convolved, projected, attention, mixed, hidden, share, vectors
    )


def pull_back(
    weights: Mapping[str, Floats], titles: Titles, pairs: Pairs, gradients: Floats, *, learns_words: bool
) -> tuple[dict[str, Floats], Rows]:
    """From gradients in the vectors of the pairs to those of every device in the weights; rows only of own words."""
    n = len(pairs.offsets) - 1
    dense = {name: np.empty((n, *weights[name].shape), np.float32) for name in _DENSE}
    counts = np.zeros(n, np.int64)
    if learns_words:
        counts = _counted(pairs, titles.offsets, titles.words, len(weights[WORDS]))
    words = starts(counts)
    index = np.empty(words[-1], np.int32)
    values = np.zeros((words[-1], weights[WORDS].shape[1]), np.float32)
    slope = weights[QUERY] * (1.0 - titles.hidden**2)  # of a word's logit in what goes into tanh
    slope_in_mixed = slope @ weights[HIDDEN]
    slope_in_content = np.empty_like(titles.attention)
    kernels.multiply_inside(
        titles.offsets, titles.squares, slope_in_mixed, titles.projected, slope_in_content
    )
    kernels.pull_back(
        pairs.offsets, pairs.title, gradients, titles.offsets, titles.squares, titles.words, titles.seen,
        titles.convolved, titles.projected, titles.attention, titles.mixed, titles.hidden, titles.share, slope,
        slope_in_mixed, slope_in_content, weights[PROJECTIONS], weights[KERNEL], len(weights[WORDS]),
        dense[KERNEL], dense[KERNEL_BIAS], dense[PROJECTIONS], dense[HIDDEN], dense[HIDDEN_BIAS],
        dense[QUERY].reshape(n, -1), words, index, values,
    )  # fmt: skip
    return dense, Rows(words, index, values)


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
