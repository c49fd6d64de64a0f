"""A CNN over words and attention over what it finds (NAML, LSTUR), compiled: vectors, and gradients for every client.

Every distinct text goes forward once. Backward, the gradients of a client in the outputs of the CNN are added up for
each of its distinct words and each place in the window as soon as they are there: see `title_gradients`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.jit import jit
from veilrec.core.schema import Rows
from veilrec.kernels.title_encoder import (
    HIDDEN,
    HIDDEN_BIAS,
    KERNEL,
    KERNEL_BIAS,
    QUERY,
    WORDS,
    packed_words,
    pool,
    starts,
)
from veilrec.kernels.title_gradients import Pairs, by_place, count_distinct, number_words

_ZERO = np.float32(0.0)


class _Texts(NamedTuple):
    """Encoded texts, and slopes that are the same for all clients."""

    offsets: Offsets  # [texts + 1], first row of every text
    words: Indices  # [rows]
    convolved: Floats  # [rows, filters]
    centred: Floats  # [rows, filters], less the vector of the text: only differences inside it count
    hidden: Floats  # [rows, attention]
    share: Floats  # [rows], the weight of a word in its text
    logit_in_hidden: Floats  # [rows, attention], slope of a word's logit in what goes into tanh
    logit_in_convolved: Floats  # [rows, filters]


class _Found(NamedTuple):
    """Gradients of every client: [clients, ...], and rows of its own words if words learn."""

    kernel: Floats
    kernel_bias: Floats
    hidden: Floats
    hidden_bias: Floats
    query: Floats
    word_offsets: Offsets  # [clients + 1]
    words: Indices
    word_values: Floats


@dataclass(frozen=True)
class EncodedTexts:
    """Texts that were encoded with some weights, and the way back."""

    weights: Mapping[str, Floats]
    texts: _Texts
    vectors: Floats  # [texts, filters]
    learns_words: bool

    def pull_back(self, pairs: Pairs, gradients: Floats) -> tuple[dict[str, Floats], Rows | None]:
        """From gradients in the vectors of the pairs to those of every client in the weights; rows of own words."""
        n, weights, texts = len(pairs.offsets) - 1, self.weights, self.texts
        counts = np.zeros(n, np.int64)
        if self.learns_words:
            counts = count_distinct(pairs, texts.offsets, texts.words, len(weights[WORDS]))
        words = Rows(
            starts(counts),
            np.empty(counts.sum(), np.int32),
            np.empty((counts.sum(), weights[WORDS].shape[1]), np.float32),
        )
        dense = {
            name: np.zeros((n, *weights[name].shape), np.float32)
            for name in (KERNEL, KERNEL_BIAS, HIDDEN, HIDDEN_BIAS, QUERY)
        }
        found = _Found(
            dense[KERNEL],
            dense[KERNEL_BIAS],
            dense[HIDDEN],
            dense[HIDDEN_BIAS],
            dense[QUERY][:, 0],
            words.offsets,
            words.index,
            words.values,
        )
        kernel = by_place(weights[KERNEL], weights[WORDS].shape[1])
        _pull_back_clients(texts, pairs.offsets, pairs.title, gradients, weights[WORDS], kernel, found)
        return dense, words if self.learns_words else None


def encode_texts(weights: Mapping[str, Floats], codes: Offsets, *, learns_words: bool) -> EncodedTexts:
    """Forward, as `CnnEncoder` does it: codes [texts, l], 0 behind the last word."""
    offsets, words = packed_words(codes)
    convolved = _convolved(weights, offsets, words)
    hidden = np.tanh(convolved @ weights[HIDDEN].T + weights[HIDDEN_BIAS])
    share, vectors = np.empty(len(words), np.float32), np.empty((len(codes), convolved.shape[1]), np.float32)
    pool(offsets, hidden @ weights[QUERY][0], convolved, share, vectors)
    in_hidden = weights[QUERY] * (1.0 - hidden**2)
    centred = convolved - np.repeat(vectors, np.diff(offsets), axis=0)
    texts = _Texts(offsets, words, convolved, centred, hidden, share, in_hidden, in_hidden @ weights[HIDDEN])
    return EncodedTexts(weights, texts, vectors, learns_words)


def _convolved(weights: Mapping[str, Floats], offsets: Offsets, words: Indices) -> Floats:
    """The CNN over all words: every distinct word goes once through every place of the window."""
    distinct, slots = np.unique(words, return_inverse=True)
    table = weights[WORDS]
    seen = table[distinct] @ by_place(weights[KERNEL], table.shape[1]).T  # [distinct, window * filters]
    convolved = np.empty((len(words), len(weights[KERNEL])), np.float32)
    _see(offsets, slots, seen, weights[KERNEL_BIAS], convolved)
    return convolved


@jit
def _see(offsets: Offsets, slots: Offsets, seen: Floats, bias: Floats, convolved: Floats) -> None:
    """What a position sees, added up, and ReLU."""
    filters = convolved.shape[1]
    reach = seen.shape[1] // filters // 2
    for text in range(len(offsets) - 1):
        low, high = offsets[text], offsets[text + 1]
        for row in range(low, high):
            for q in range(filters):
                convolved[row, q] = bias[q]
            for other in range(max(low, row - reach), min(high, row + reach + 1)):
                begin = (other - row + reach) * filters
                for q in range(filters):
                    convolved[row, q] += seen[slots[other], begin + q]
            for q in range(filters):
                convolved[row, q] = max(convolved[row, q], _ZERO)


@jit
def _pull_back_clients(
    texts: _Texts,
    pair_offsets: Offsets,
    text_of: Offsets,
    gradients: Floats,
    table: Floats,
    kernel: Floats,
    found: _Found,
) -> None:
    """The gradients of all clients; `found` comes with zeros."""
    most = 1
    for client in range(len(pair_offsets) - 1):
        rows = 0
        for pair in range(pair_offsets[client], pair_offsets[client + 1]):
            rows += texts.offsets[text_of[pair] + 1] - texts.offsets[text_of[pair]]
        most = max(most, rows)
    filters, word_dim = texts.convolved.shape[1], table.shape[1]
    words, distinct, place = np.empty(most, np.int32), np.empty(most, np.int32), np.full(len(table), -1, np.int64)
    slots = np.empty(most, np.int64)
    convolved, to_hidden = np.empty((most, filters), np.float32), np.empty((most, texts.hidden.shape[1]), np.float32)
    to_logit, whole_by_word = np.empty(most, np.float32), np.empty((min(most, len(table)), len(kernel)), np.float32)
    own, to_kernel = np.empty((len(whole_by_word), word_dim), np.float32), np.empty(kernel.shape, np.float32)
    for client in range(len(pair_offsets) - 1):
        rows = 0
        for pair in range(pair_offsets[client], pair_offsets[client + 1]):
            for row in range(texts.offsets[text_of[pair]], texts.offsets[text_of[pair] + 1]):
                words[rows] = texts.words[row]
                rows += 1
        count = number_words(words[:rows], distinct, place)
        for row in range(rows):
            slots[row] = place[words[row]]
        by_word = whole_by_word[:count]
        by_word[:] = _ZERO
        at = 0
        for pair in range(pair_offsets[client], pair_offsets[client + 1]):
            low, high = texts.offsets[text_of[pair]], texts.offsets[text_of[pair] + 1]
            _unpool(texts, gradients[pair], low, high, to_logit)
            _unsee(texts, gradients[pair], low, high, to_logit, slots[at : at + high - low], by_word)
            for row in range(low, high):
                by_logit = to_logit[row - low]
                for q in range(filters):
                    convolved[at, q] = texts.convolved[row, q]
                for q in range(to_hidden.shape[1]):
                    to_hidden[at, q] = by_logit * texts.logit_in_hidden[row, q]
                    found.hidden_bias[client, q] += to_hidden[at, q]
                    found.query[client, q] += by_logit * texts.hidden[row, q]
                at += 1
        np.dot(to_hidden[:rows].T, convolved[:rows], found.hidden[client])
        centre = len(kernel) // filters // 2 * filters  # where every position sees itself
        for slot in range(count):
            place[distinct[slot]] = -1
            for q in range(word_dim):
                own[slot, q] = table[distinct[slot], q]
            for q in range(filters):
                found.kernel_bias[client, q] += by_word[slot, centre + q]
        np.dot(by_word.T, own[:count], to_kernel)  # [window * filters, word_dim]; found: [filters, window * word_dim]
        for row in range(len(kernel)):
            begin = row // filters * word_dim
            for q in range(word_dim):
                found.kernel[client, row % filters, begin + q] = to_kernel[row, q]
        first, last = found.word_offsets[client], found.word_offsets[client + 1]
        if last > first:
            found.words[first:last] = distinct[:count]
            np.dot(by_word, kernel, found.word_values[first:last])


@jit
def _unpool(texts: _Texts, gradient: Floats, low, high, to_logit: Floats) -> None:  # type: ignore[no-untyped-def]
    """Attention over words, backward: to the logits."""
    mean = _ZERO
    for row in range(low, high):
        product = _ZERO
        for q in range(len(gradient)):
            product += gradient[q] * texts.centred[row, q]
        to_logit[row - low] = product
        mean += texts.share[row] * product
    for row in range(low, high):
        to_logit[row - low] = texts.share[row] * (to_logit[row - low] - mean)


@jit
def _unsee(  # type: ignore[no-untyped-def]
    texts: _Texts, gradient: Floats, low, high, to_logit: Floats, slots: Offsets, by_word: Floats
) -> None:
    """ReLU and the CNN's window, backward: a position adds to every word that it sees, at its place in the window."""
    filters = len(gradient)
    reach = by_word.shape[1] // filters // 2
    to_convolved = np.empty(filters, np.float32)
    for row in range(low, high):
        share, by_logit = texts.share[row], to_logit[row - low]
        for q in range(filters):
            slope = share * gradient[q] + by_logit * texts.logit_in_convolved[row, q]
            to_convolved[q] = slope if texts.convolved[row, q] > _ZERO else _ZERO
        for other in range(max(low, row - reach), min(high, row + reach + 1)):
            slot, begin = slots[other - low], (other - row + reach) * filters
            for q in range(filters):
                by_word[slot, begin + q] += to_convolved[q]
