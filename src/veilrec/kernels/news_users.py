"""The user part of NRMS, NAML and PLM-NR, compiled, and its gradients for every device.

Clicks are to a history what words are to a title, so that the code for titles reads histories: every distinct news is
a word, and a padded click is one more. Between the vectors of histories and those of users stands what has few numbers
(who has no history; basis vectors and noise): that is left to autograd. Candidates are scored by compiled code again.

Attention over clicks (NAML's user model), compiled: vectors of histories, and gradients for every device.

How much a click is looked at depends on its news alone, so that every distinct news goes through the layers once.
Backward, a device adds up what comes to each of its distinct news before any product of matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from veilrec.client.news_data import OwnNews
from veilrec.core.arrays import Bools, Floats, Indices, Offsets
from veilrec.core.jit import jit
from veilrec.core.schema import Rows
from veilrec.kernels.news_texts import EncodedMixed
from veilrec.kernels.tape import BARE, add_up, repeated
from veilrec.kernels.title_encoder import (
    HIDDEN,
    HIDDEN_BIAS,
    PROJECTIONS,
    QUERY,
    WORDS,
    encode_clicks,
    packed_words,
    pool,
    starts,
)
from veilrec.kernels.title_gradients import Pairs, count_distinct, number_words
from veilrec.models.news_model import Batch, MultiHeadPooling, NewsModel
from veilrec.models.news_networks import Naml, Nrms, PlmNr


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
class EncodedHistories:
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


def pool_clicks(weights: Mapping[str, Floats], codes: Offsets) -> EncodedHistories:
    """Forward, as `AdditiveAttention` does it: codes [histories, h] of rows of the table, 0 where there is no click."""
    offsets, news = packed_words(codes)
    table = weights[WORDS]
    hidden = np.tanh(table @ weights[HIDDEN].T + weights[HIDDEN_BIAS])
    share, vectors = np.empty(len(news), np.float32), np.empty((len(codes), table.shape[1]), np.float32)
    pool(offsets, (hidden @ weights[QUERY][0])[news], table[news], share, vectors)
    in_hidden = weights[QUERY] * (1.0 - hidden**2)
    return EncodedHistories(
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


Weights = Mapping[str, Floats]
COMPILED = (Nrms, Naml, PlmNr)  # with basis vectors or without
_PAD = "pad"
_MIXED = {
    PROJECTIONS: "clicks.mix.projections.weight",
    HIDDEN: "clicks.attention.hidden.weight",
    HIDDEN_BIAS: "clicks.attention.hidden.bias",
    QUERY: "clicks.attention.query.weight",
}
_POOLED = {HIDDEN: "clicks.hidden.weight", HIDDEN_BIAS: "clicks.hidden.bias", QUERY: "clicks.query.weight"}
_MOST_SQUARES = 2**20  # pairs of clicks in the histories of a run: what self-attention keeps is a few numbers for each
_ZERO = np.float32(0.0)


class _Encoded(Protocol):
    """Histories that were encoded."""

    @property
    def vectors(self) -> Floats:
        """Of every history: [histories, dim]."""

    def pull_back(self, pairs: Pairs, gradients: Floats) -> tuple[dict[str, Floats], Rows | None]:
        """From gradients in the vectors of the pairs to those of every device in the weights; rows of own news."""


@dataclass(frozen=True)
class _Users:
    """Users in a graph of autograd that begins at the vectors of histories, and at copies of bare parameters."""

    vectors: Tensor  # [histories, dim]
    extra: Tensor | None  # [histories], what is added to the losses of their examples
    pooled: Tensor  # [histories, dim]
    copies: Mapping[str, Tensor]  # [histories, ...]

    def pull_back(self, gradients: Floats, shares: Floats) -> tuple[Floats, dict[str, Floats]]:
        """From gradients in users, and what their extra losses count, to those in histories and in the copies."""
        results, slopes = [self.vectors], [torch.from_numpy(gradients)]
        if self.extra is not None:
            results, slopes = [*results, self.extra], [*slopes, torch.from_numpy(shares)]
        leaves = [self.pooled, *self.copies.values()]
        in_pooled, *found = torch.autograd.grad(results, leaves, slopes, materialize_grads=True)
        return in_pooled.numpy(), {name: g.numpy() for name, g in zip(self.copies, found, strict=True)}


class CompiledUsers:
    """For models whose users are what the layer `clicks` makes of the history."""

    def __init__(self, model: Nrms | Naml | PlmNr) -> None:
        self._model, self._behind = model, _BehindClicks(model)
        self._heads = model.clicks.mix.heads if isinstance(model.clicks, MultiHeadPooling) else 0
        self._names = _MIXED if self._heads else _POOLED

    def each(
        self, weights: Weights, vectors: Floats, own: OwnNews, pairs: Pairs
    ) -> tuple[dict[str, Floats], Floats, Floats]:
        """Of every device where the vectors of the news are known: in the weights, and in them; the losses."""
        n = len(own.offsets) - 1
        runs = list(_runs(own))
        if len(runs) <= 1:
            return self._of_run(weights, vectors, own, pairs)
        dense = {name: np.empty((n, *value.shape), np.float32) for name, value in weights.items()}
        in_vectors, losses = np.empty((len(pairs.title), vectors.shape[1]), np.float32), np.empty(n, np.float32)
        for first, last in runs:
            low, high = own.offsets[first], own.offsets[last]
            needed, title = np.unique(pairs.title[low:high], return_inverse=True)
            some = own.between(first, last)
            found, in_vectors[low:high], losses[first:last] = self._of_run(
                weights, vectors[needed], some, Pairs(some.offsets, title)
            )
            for name, value in found.items():
                dense[name][first:last] = value
        return dense, in_vectors, losses

    def _of_run(
        self, weights: Weights, vectors: Floats, own: OwnNews, pairs: Pairs
    ) -> tuple[dict[str, Floats], Floats, Floats]:
        """Of all devices at once."""
        n, share = len(own.offsets) - 1, own.shares()
        encoded = self._encode(weights, vectors, own, pairs)
        users = self._users(weights, encoded.vectors, own)
        in_users = np.zeros_like(encoded.vectors)
        in_vectors, losses = np.zeros((len(pairs.title), vectors.shape[1]), np.float32), np.empty_like(share)
        candidates = own.candidates + own.offsets[own.device, np.newaxis]
        examples = _Examples(own.history_of, candidates, own.candidate_mask, share)
        _score(users.vectors.detach().numpy(), vectors, pairs.title, examples, losses, in_users, in_vectors)
        if users.extra is not None:
            losses += users.extra.detach().numpy()[own.history_of]
        counted = np.bincount(own.history_of, share, minlength=len(in_users)).astype(np.float32)
        in_pooled, in_copies = users.pull_back(in_users, counted)
        order = np.argsort(own.owner, kind="stable")
        histories = Pairs(np.searchsorted(own.owner[order], np.arange(n + 1)), order)
        of_clicks, rows = encoded.pull_back(histories, in_pooled[order])
        found = {self._names[name]: value for name, value in of_clicks.items()}
        dense = {
            name: found[name] if name in found else np.zeros((n, *value.shape), np.float32)
            for name, value in weights.items()
        }
        for name, value in in_copies.items():
            add_up(dense[name], own.owner, value)
        if rows is not None:
            _add_clicks(rows, pairs, len(vectors), in_vectors, dense.get(_PAD))
        return dense, in_vectors, np.bincount(own.device, losses * share, minlength=n).astype(np.float32)

    def _encode(self, weights: Weights, vectors: Floats, own: OwnNews, pairs: Pairs) -> _Encoded:
        """The vectors of all histories; news are numbered from 1, the pad comes behind the last one."""
        place = own.histories + own.offsets[own.owner, np.newaxis]
        codes = np.zeros(own.histories.shape, np.int64)
        codes[own.history_mask] = pairs.title[place[own.history_mask]] + 1
        table = np.zeros((len(vectors) + 2, vectors.shape[1]), np.float32)
        table[1:-1] = vectors
        if own.pads is not None:
            codes[own.pads & own.history_mask] = len(vectors) + 1
            table[-1] = self._weight(weights, _PAD)
        known = {name: self._weight(weights, in_model) for name, in_model in self._names.items()} | {WORDS: table}
        if self._heads:
            return EncodedMixed(known, encode_clicks(known, codes, self._heads), learns_words=True)
        return pool_clicks(known, codes)

    def _weight(self, weights: Weights, name: str) -> Floats:
        """One that does not learn is the model's own."""
        return weights[name] if name in weights else self._model.get_parameter(name).detach().numpy()

    def _users(self, weights: Weights, pooled: Floats, own: OwnNews) -> _Users:
        """From the vectors of histories to those of users."""
        copies = {name: repeated(torch.from_numpy(weights[name]), len(pooled)) for name in BARE if name in weights}
        leaf = torch.from_numpy(pooled).requires_grad_()
        noise = None if own.noise is None else torch.from_numpy(own.noise)
        known = torch.from_numpy(own.history_mask.any(1, keepdims=True))
        exchanged = {f"model.{name}": copy for name, copy in copies.items()}
        users, extra = functional_call(self._behind, exchanged, (leaf, known, noise, own.pads is not None))
        return _Users(users, extra, leaf, copies)


class _BehindClicks(nn.Module):
    """A model's users where the vectors of histories are given, as a module: `functional_call` can then exchange the
    weights.
    """

    def __init__(self, model: NewsModel) -> None:
        super().__init__()
        self.model = deepcopy(model)
        for name, _ in model.named_children():
            setattr(self.model, name, nn.Identity())  # nothing that is large stays
        self._given = _Given()
        self.model.clicks = self._given

    def forward(self, pooled: Tensor, known: Tensor, noise: Tensor | None, pads: bool) -> tuple[Tensor, Tensor | None]:
        """Vectors of users, and what is added to the losses of their examples; a history is known by one click."""
        self._given.vectors = pooled
        nothing = torch.zeros_like(known, dtype=torch.int64)
        batch = Batch(
            nothing,
            nothing,
            known,
            nothing,
            nothing,
            known,
            padded=torch.zeros_like(known) if pads else None,
            noise=noise,
        )
        return self.model.learning_users(pooled.detach().unsqueeze(1), batch)


class _Given(nn.Module):
    """Stands in the place of the layer over clicks."""

    vectors: Tensor

    def forward(self, _: Tensor, __: Tensor) -> Tensor:
        """What was given."""
        return self.vectors


def _add_clicks(rows: Rows, pairs: Pairs, news: int, in_vectors: Floats, in_pad: Floats | None) -> None:
    """Gradients in the clicks of each device, added to those in the vectors of its news and in the pad."""
    device = np.repeat(np.arange(len(rows.offsets) - 1), np.diff(rows.offsets))
    is_news = rows.index <= news
    if in_pad is not None:
        in_pad[device[~is_news]] += rows.values[~is_news]
    span = news + 1
    own = np.repeat(np.arange(len(pairs.offsets) - 1), np.diff(pairs.offsets)) * span + pairs.title
    place = np.searchsorted(own, device[is_news] * span + rows.index[is_news] - 1)
    in_vectors[place] += rows.values[is_news]


def _runs(own: OwnNews) -> Iterator[tuple[int, int]]:
    """Devices side by side whose histories are kept at once; one that has more is alone."""
    n = len(own.offsets) - 1
    squares = np.bincount(own.owner, own.history_mask.sum(1) ** 2, minlength=n)
    ends = starts(squares.astype(np.int64))
    first = 0
    while first < n:
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + _MOST_SQUARES, "right")) - 1)
        yield first, last
        first = last


class _Examples(NamedTuple):
    """What is scored."""

    history_of: Offsets  # [examples]
    candidates: Offsets  # [examples, 1 + negatives], pairs; the first is learnt as the click
    real: Bools  # [examples, 1 + negatives]
    share: Floats  # [examples], what each counts


@jit
def _score(
    users: Floats,
    vectors: Floats,
    title: Offsets,
    examples: _Examples,
    losses: Floats,
    in_users: Floats,
    in_vectors: Floats,
) -> None:
    """Losses of all examples; their gradients in users and in the vectors of pairs are added to what is there."""
    width, dim = examples.candidates.shape[1], users.shape[1]
    scores = np.empty(width, np.float32)
    for row in range(len(losses)):
        history, top, whole = examples.history_of[row], np.float32(-np.inf), _ZERO
        for c in range(width):
            if examples.real[row, c]:
                news, score = title[examples.candidates[row, c]], _ZERO
                for q in range(dim):
                    score += users[history, q] * vectors[news, q]
                scores[c] = score
                top = max(top, score)
        of_click = scores[0] - top
        for c in range(width):
            if examples.real[row, c]:
                scores[c] = np.exp(scores[c] - top)
                whole += scores[c]
        losses[row] = np.log(whole) - of_click
        for c in range(width):
            if examples.real[row, c]:
                pair = examples.candidates[row, c]
                slope = examples.share[row] * (scores[c] / whole - (np.float32(1.0) if c == 0 else _ZERO))
                for q in range(dim):
                    in_users[history, q] += slope * vectors[title[pair], q]
                    in_vectors[pair, q] += slope * users[history, q]
