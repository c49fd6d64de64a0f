"""Attention over clicks (NAML's user model), compiled: vectors of histories, and gradients for every device.

How much a click is looked at depends on its news alone, so that every distinct news goes through the layers once.
Backward, a device adds up what comes to each of its distinct news before any product of matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._jit import jit
from veilrec.device.title_encoder import HIDDEN, HIDDEN_BIAS, QUERY, WORDS, packed_words, pool, starts
from veilrec.device.title_gradients import Pairs, count_distinct, number_words
from veilrec.updates import Rows

_ZERO = np.float32(0.0)


class _Histories(NamedTuple):
    """Histories that were encoded, and slopes of the news that are the same for all devices."""

    offsets: Offsets  # [histories + 1], first row of every history
    news: Indices  # [rows], of the table
    share: Floats  # [rows], the weight of a click in its history
    vectors: Floats  # [histories, dim]
    table: Floats  # [news, dim]
    hidden: Floats  # [news, attention]
    logit_in_hidden: Floats  # [news, attention], slope of a news's logit in what goes into tanh
    logit_in_table: Floats  # [news, dim]


class _Found(NamedTuple):
    """Gradients of every device: [devices, ...], and rows of its own news."""

    hidden: Floats
    hidden_bias: Floats
    query: Floats
    news_offsets: Offsets  # [devices + 1]
    news: Indices
    news_values: Floats


@dataclass(frozen=True)
class PooledClicks:
    """Histories that were encoded with some weights, and the way back."""

    histories: _Histories

    @property
    def vectors(self) -> Floats:
        """[histories, dim]."""
        return self.histories.vectors

    def pull_back(self, pairs: Pairs, gradients: Floats) -> tuple[dict[str, Floats], Rows]:
        """From gradients in the vectors of the pairs to those of every device in the weights; rows of own news."""
        n, past = len(pairs.offsets) - 1, self.histories
        attention, dim = past.hidden.shape[1], past.table.shape[1]
        news = starts(count_distinct(pairs, past.offsets, past.news, len(past.table)))
        index, values = np.empty(news[-1], np.int32), np.empty((news[-1], dim), np.float32)
        dense = {
            HIDDEN: np.zeros((n, attention, dim), np.float32),
            HIDDEN_BIAS: np.zeros((n, attention), np.float32),
            QUERY: np.zeros((n, 1, attention), np.float32),
        }
        found = _Found(dense[HIDDEN], dense[HIDDEN_BIAS], dense[QUERY][:, 0], news, index, values)
        _pull_back_devices(past, pairs.offsets, pairs.title, gradients, found)
        return dense, Rows(news, index, values)


def pool_clicks(weights: Mapping[str, Floats], codes: Offsets) -> PooledClicks:
    """Forward, as `AdditiveAttention` does it: codes [histories, h] of rows of the table, 0 where there is no click."""
    offsets, news = packed_words(codes)
    table = weights[WORDS]
    hidden = np.tanh(table @ weights[HIDDEN].T + weights[HIDDEN_BIAS])
    share, vectors = np.empty(len(news), np.float32), np.empty((len(codes), table.shape[1]), np.float32)
    pool(offsets, (hidden @ weights[QUERY][0])[news], table[news], share, vectors)
    in_hidden = weights[QUERY] * (1.0 - hidden**2)
    return PooledClicks(
        _Histories(offsets, news, share, vectors, table, hidden, in_hidden, in_hidden @ weights[HIDDEN])
    )


@jit
def _pull_back_devices(
    past: _Histories, pair_offsets: Offsets, history_of: Offsets, gradients: Floats, found: _Found
) -> None:
    """The gradients of all devices; `found` comes with zeros."""
    most = 1
    for device in range(len(pair_offsets) - 1):
        rows = 0
        for pair in range(pair_offsets[device], pair_offsets[device + 1]):
            rows += past.offsets[history_of[pair] + 1] - past.offsets[history_of[pair]]
        most = max(most, rows)
    dim, attention = past.table.shape[1], past.hidden.shape[1]
    news, distinct, place = np.empty(most, np.int32), np.empty(most, np.int32), np.full(len(past.table), -1, np.int64)
    to_click, to_logit = np.empty(most, np.float32), np.empty(most, np.float32)  # of a position, of a distinct news
    own, to_hidden = np.empty((most, dim), np.float32), np.empty((most, attention), np.float32)
    for device in range(len(pair_offsets) - 1):
        rows = 0
        for pair in range(pair_offsets[device], pair_offsets[device + 1]):
            for row in range(past.offsets[history_of[pair]], past.offsets[history_of[pair] + 1]):
                news[rows] = past.news[row]
                rows += 1
        count = number_words(news[:rows], distinct, place)
        begin = found.news_offsets[device]
        values = found.news_values[begin : begin + count]
        values[:], to_logit[:count] = _ZERO, _ZERO
        for pair in range(pair_offsets[device], pair_offsets[device + 1]):
            low, high = past.offsets[history_of[pair]], past.offsets[history_of[pair] + 1]
            _unpool(past, history_of[pair], gradients[pair], to_click)
            for row in range(low, high):
                slot, share = place[past.news[row]], past.share[row]
                to_logit[slot] += to_click[row - low]
                for q in range(dim):
                    values[slot, q] += share * gradients[pair, q]
        for slot in range(count):
            one, by_logit = distinct[slot], to_logit[slot]
            place[one] = -1
            found.news[begin + slot] = one
            for q in range(dim):
                own[slot, q] = past.table[one, q]
                values[slot, q] += by_logit * past.logit_in_table[one, q]
            for q in range(attention):
                to_hidden[slot, q] = by_logit * past.logit_in_hidden[one, q]
                found.hidden_bias[device, q] += to_hidden[slot, q]
                found.query[device, q] += by_logit * past.hidden[one, q]
        np.dot(to_hidden[:count].T, own[:count], found.hidden[device])


@jit
def _unpool(past: _Histories, history, gradient: Floats, to_click: Floats) -> None:  # type: ignore[no-untyped-def]
    """Attention over the clicks of a history, backward: to their logits, in which only differences count."""
    low, high = past.offsets[history], past.offsets[history + 1]
    for row in range(low, high):
        product = _ZERO
        for q in range(len(gradient)):
            product += gradient[q] * (past.table[past.news[row], q] - past.vectors[history, q])
        to_click[row - low] = past.share[row] * product
