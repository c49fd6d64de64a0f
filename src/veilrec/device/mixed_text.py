"""Self-attention over words and attention over what it finds (NRMS), compiled: gradients for every device.

Every distinct text goes forward once. Backward, a device goes text by text, and adds up the gradients in queries, keys
and values for each of its distinct words as soon as they are there: see `title_gradients`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._jit import jit
from veilrec.device.title_encoder import HIDDEN, HIDDEN_BIAS, PROJECTIONS, QUERY, Titles, starts
from veilrec.device.title_gradients import BackwardInput, Pairs, count_distinct, number_words, slopes_of, unmix, unpool
from veilrec.updates import Rows

_ZERO = np.float32(0.0)


class _Found(NamedTuple):
    """Gradients of every device: [devices, ...], and rows of its own words if words learn."""

    projections: Floats
    hidden: Floats
    hidden_bias: Floats
    query: Floats
    word_offsets: Offsets  # [devices + 1]
    words: Indices
    word_values: Floats


class _Scratch(NamedTuple):
    """Space for the longest text; `to_` stands for the gradient of the loss in what is named."""

    to_logit: Floats  # [longest]
    to_mixed: Floats  # [longest, dim]
    to_projected: Floats  # [longest, 3 * dim]
    along: Floats  # [2 heads, longest], a gradient times values, then times mixed values
    to_scores: Floats  # [longest squared], of one head


@dataclass(frozen=True)
class EncodedMixed:
    """Texts that were encoded with some weights, and the way back."""

    weights: Mapping[str, Floats]
    titles: Titles
    learns_words: bool

    @property
    def vectors(self) -> Floats:
        """[texts, dim]."""
        return self.titles.vectors

    def pull_back(self, pairs: Pairs, gradients: Floats) -> tuple[dict[str, Floats], Rows | None]:
        """From gradients in the vectors of the pairs to those of every device in the weights; rows of own words."""
        n, weights, titles = len(pairs.offsets) - 1, self.weights, self.titles
        given = slopes_of(weights, titles, pairs, gradients)
        counts = np.zeros(n, np.int64)
        if self.learns_words:
            counts = count_distinct(pairs, titles.offsets, titles.words, len(given.table))
        words = Rows(
            starts(counts), np.empty(counts.sum(), np.int32), np.empty((counts.sum(), given.table.shape[1]), np.float32)
        )
        found = _Found(
            np.zeros((n, *given.projections.shape), np.float32),
            np.zeros((n, len(weights[HIDDEN]), titles.mixed.shape[1]), np.float32),
            np.zeros((n, len(weights[HIDDEN])), np.float32),
            np.zeros((n, len(weights[HIDDEN])), np.float32),
            words.offsets,
            words.index,
            words.values,
        )
        _pull_back_devices(titles, given, found)
        dense = {
            PROJECTIONS: found.projections,
            HIDDEN: found.hidden,
            HIDDEN_BIAS: found.hidden_bias,
            QUERY: found.query[:, np.newaxis],
        }
        return dense, words if self.learns_words else None


@jit
def _pull_back_devices(titles: Titles, given: BackwardInput, found: _Found) -> None:
    """The gradients of all devices; `found` comes with zeros."""
    most = longest = 1
    for device in range(len(given.pair_offsets) - 1):
        rows = 0
        for pair in range(given.pair_offsets[device], given.pair_offsets[device + 1]):
            length = titles.offsets[given.title_of[pair] + 1] - titles.offsets[given.title_of[pair]]
            rows, longest = rows + length, max(longest, length)
        most = max(most, rows)
    dim, word_dim = titles.mixed.shape[1], given.table.shape[1]
    words, distinct, place = np.empty(most, np.int32), np.empty(most, np.int32), np.full(len(given.table), -1, np.int64)
    mixed, to_hidden = np.empty((most, dim), np.float32), np.empty((most, titles.hidden.shape[1]), np.float32)
    all_by_word = np.empty((min(most, len(given.table)), 3 * dim), np.float32)
    own = np.empty((len(all_by_word), word_dim), np.float32)
    scratch = _Scratch(
        np.empty(longest, np.float32),
        np.empty((longest, dim), np.float32),
        np.empty((longest, 3 * dim), np.float32),
        np.empty((2 * titles.heads, longest), np.float32),
        np.empty(longest * longest, np.float32),
    )
    for device in range(len(given.pair_offsets) - 1):
        first, last = given.pair_offsets[device], given.pair_offsets[device + 1]
        rows = 0
        for pair in range(first, last):
            for row in range(titles.offsets[given.title_of[pair]], titles.offsets[given.title_of[pair] + 1]):
                words[rows] = titles.words[row]
                rows += 1
        count = number_words(words[:rows], distinct, place)
        by_word = all_by_word[:count]
        by_word[:] = _ZERO
        at = 0
        for pair in range(first, last):
            title = given.title_of[pair]
            low, high = titles.offsets[title], titles.offsets[title + 1]
            unpool(titles, given, given.gradients[pair], low, high, 0, scratch)
            unmix(titles, given.logit_in_scores, title, 0, scratch)
            for row in range(low, high):
                by_logit, slot = scratch.to_logit[row - low], place[titles.words[row]]
                for q in range(3 * dim):
                    by_word[slot, q] += scratch.to_projected[row - low, q]
                for q in range(dim):
                    mixed[at, q] = titles.mixed[row, q]
                for q in range(to_hidden.shape[1]):
                    to_hidden[at, q] = by_logit * given.logit_in_hidden[row, q]
                    found.hidden_bias[device, q] += to_hidden[at, q]
                    found.query[device, q] += by_logit * titles.hidden[row, q]
                at += 1
        np.dot(to_hidden[:rows].T, mixed[:rows], found.hidden[device])
        for slot in range(count):
            place[distinct[slot]] = -1
            for q in range(word_dim):
                own[slot, q] = given.table[distinct[slot], q]
        np.dot(by_word.T, own[:count], found.projections[device])
        begin, end = found.word_offsets[device], found.word_offsets[device + 1]
        if end > begin:
            found.words[begin:end] = distinct[:count]
            np.dot(by_word, given.projections, found.word_values[begin:end])
