"""Gradients of FedNewsRec's title model (Fig. 1), one per client, where many clients share the news.

Every distinct title goes forward once. Backward, a client's gradient of the loss in the vectors of its news goes
through its own titles only: words lie packed, without padding, and a client is a few products of matrices that stay in
the cache. Autograd gives the same (tests), but keeps whole tensors for all clients.

Through pooling and self-attention a client goes title by title, through the linear layers with all of its words at
once. The CNN comes last: what its gradients add up over positions is first added up for each distinct word of the
client and each place in the window, so that their products are over words, which are fewer than positions.

Sums over the rows of each client, compiled: the rows of a client are contiguous.
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
    DENSE,
    HIDDEN,
    HIDDEN_BIAS,
    KERNEL,
    KERNEL_BIAS,
    PROJECTIONS,
    QUERY,
    TITLE_TENSORS,
    WORDS,
    Titles,
    encode_titles,
    multiply_inside,
    packed_words,
    put_head,
    square_at,
    starts,
    take_head,
)
from veilrec.models.federated_news import FedNewsRec
from veilrec.models.news_model import NewsInput

_ZERO = np.float32(0.0)


@dataclass(frozen=True)
class Pairs:
    """The news of every client: pair p is the title `title[p]` on the device whose range has p."""

    offsets: Offsets  # [clients + 1]
    title: Offsets  # [pairs]


class CompiledTitles:
    """The news part of FedNewsRec."""

    def __init__(self, model: FedNewsRec, news: NewsInput, learned: frozenset[str]) -> None:
        self._heads, self._codes = model.sizes.heads, news.title.numpy()
        self._words = model.words.weight.detach().numpy()  # where they stay as they are
        self.learns_words = WORDS in learned
        self.names = TITLE_TENSORS & learned

    def encode(self, weights: Mapping[str, Floats], items: Offsets) -> EncodedTitles:
        """Every title forward."""
        whole = {WORDS: self._words, **weights}
        titles = encode_titles(whole, self._codes[items], self._heads)
        return EncodedTitles(whole, titles, self.learns_words)

    def count_words(self, items: Offsets, pairs: Pairs) -> Offsets:
        """How many distinct words the titles of each client have."""
        if not self.learns_words:
            return np.zeros(len(pairs.offsets) - 1, np.int64)
        return count_distinct(pairs, *packed_words(self._codes[items]), len(self._words))


@dataclass(frozen=True)
class EncodedTitles:
    """Titles that were encoded with some weights, and the way back."""

    weights: Mapping[str, Floats]
    titles: Titles
    learns_words: bool

    @property
    def vectors(self) -> Floats:
        """[titles, dim]."""
        return self.titles.vectors

    def pull_back(self, pairs: Pairs, gradients: Floats) -> tuple[dict[str, Floats], Rows | None]:
        """From gradients in the vectors of the pairs to those of every client in the weights."""
        dense, words = pull_back(self.weights, self.titles, pairs, gradients, learns_words=self.learns_words)
        return dense, words if self.learns_words else None


class BackwardInput(NamedTuple):
    """The news of the clients, weights, and slopes of the titles that are the same for all clients."""

    pair_offsets: Offsets  # [clients + 1]
    title_of: Offsets  # [pairs]
    gradients: Floats  # [pairs, dim], in the vectors of the titles
    table: Floats  # [vocabulary, word_dim]
    kernel: Floats  # [window * filters, word_dim]: by place in the window
    projections: Floats  # [3 * dim, filters]
    # Of these two only differences inside a title count: without its vector they lose fewer digits.
    values: Floats  # [rows, dim], those of self-attention less the vector of the title
    mixed: Floats  # [rows, dim], after self-attention, less the vector of the title
    logit_in_hidden: Floats  # [rows, attention], slope of a word's logit in what goes into tanh
    logit_in_mixed: Floats  # [rows, dim]
    logit_in_scores: Floats  # like Titles.attention: slope in the scores of self-attention


class _Found(NamedTuple):
    """Gradients of every client: [clients, ...], and rows of its own words if words learn."""

    kernel: Floats
    kernel_bias: Floats
    projections: Floats
    hidden: Floats
    hidden_bias: Floats
    query: Floats
    word_offsets: Offsets  # [clients + 1]
    words: Indices
    word_values: Floats


def pull_back(
    weights: Mapping[str, Floats], titles: Titles, pairs: Pairs, gradients: Floats, *, learns_words: bool
) -> tuple[dict[str, Floats], Rows]:
    """From gradients in the vectors of the pairs to those of every client in the weights; rows only of own words."""
    n = len(pairs.offsets) - 1
    given = slopes_of(weights, titles, pairs, gradients)
    counts = np.zeros(n, np.int64)
    if learns_words:
        counts = count_distinct(pairs, titles.offsets, titles.words, len(weights[WORDS]))
    words = starts(counts)
    index, values = np.empty(words[-1], np.int32), np.empty((words[-1], given.table.shape[1]), np.float32)
    dense = {name: np.zeros((n, *weights[name].shape), np.float32) for name in DENSE}
    found = _Found(
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
    _pull_back_clients(titles, given, found)
    return dense, Rows(words, index, values)


def slopes_of(weights: Mapping[str, Floats], titles: Titles, pairs: Pairs, gradients: Floats) -> BackwardInput:
    """What the backward pass reads; without a CNN, the projections are what stands over the words."""
    projections = weights[PROJECTIONS]
    in_hidden = weights[QUERY] * (1.0 - titles.hidden**2)
    in_mixed = in_hidden @ weights[HIDDEN]
    in_scores = np.zeros_like(titles.attention)
    content = titles.projected[:, -titles.mixed.shape[1] :]
    multiply_inside(titles.offsets, titles.squares, titles.heads, in_mixed, content, in_scores)
    _through_softmax(titles, in_scores)
    table = weights[WORDS]
    kernel = by_place(weights[KERNEL], table.shape[1]) if KERNEL in weights else projections
    centre = np.repeat(titles.vectors, np.diff(titles.offsets), axis=0)
    return BackwardInput(
        pairs.offsets,
        pairs.title,
        gradients,
        table,
        kernel,
        projections,
        content - centre,
        titles.mixed - centre,
        in_hidden,
        in_mixed,
        in_scores,
    )


def by_place(kernel: Floats, width: int) -> Floats:
    """[filters, window * width] -> [window * filters, width]."""
    return kernel.reshape(len(kernel), -1, width).swapaxes(0, 1).reshape(-1, width)


def count_distinct(pairs: Pairs, offsets: Offsets, words: Indices, vocabulary: int) -> Offsets:
    """Distinct words of the titles of each client, packed."""
    counts = np.zeros(len(pairs.offsets) - 1, np.int64)
    _count_distinct(pairs.offsets, pairs.title, offsets, words, vocabulary, counts)
    return counts


@jit
def _count_distinct(  # type: ignore[no-untyped-def]
    pair_offsets: Offsets, title_of: Offsets, offsets: Offsets, words: Indices, vocabulary, counts: Offsets
) -> None:
    """Distinct words of every client."""
    last = np.full(vocabulary, -1, np.int64)  # the last client that had the word
    for client in range(len(counts)):
        for pair in range(pair_offsets[client], pair_offsets[client + 1]):
            title = title_of[pair]
            for row in range(offsets[title], offsets[title + 1]):
                if last[words[row]] != client:
                    last[words[row]] = client
                    counts[client] += 1


@jit
def _through_softmax(titles: Titles, slopes: Floats) -> None:
    """From slopes in the weights of self-attention to those in the products of queries and keys, in place."""
    for title in range(len(titles.offsets) - 1):
        length, first = titles.offsets[title + 1] - titles.offsets[title], titles.squares[title]
        for row in range(titles.heads * length):
            weights = titles.attention[first + row * length : first + (row + 1) * length]
            own = slopes[first + row * length : first + (row + 1) * length]
            mean = _ZERO
            for j in range(length):
                mean += weights[j] * own[j]
            for j in range(length):
                own[j] = weights[j] * (own[j] - mean) * titles.scale


class _BackwardScratch(NamedTuple):
    """Space for the client with most words, in all of its titles."""

    words: Indices  # [most]
    convolved: Floats  # [most, filters]
    mixed: Floats  # [most, dim]
    to_logit: Floats  # [most]; `to_` stands for the gradient of the loss in what is named
    to_hidden: Floats  # [most, attention]
    to_mixed: Floats  # [most, dim]
    to_projected: Floats  # [most, 3 * dim]
    to_convolved: Floats  # [most, filters]
    along: Floats  # [2 heads, longest title], a gradient times values, then times mixed values
    to_scores: Floats  # [longest title squared], of one head
    by_word: Floats  # [most, window * filters]
    rows: Floats  # [most, word_dim], of the distinct words
    to_kernel: Floats  # [window * filters, word_dim]
    distinct: Indices  # [most], the distinct words
    place: Offsets  # [vocabulary], of a word among them; -1: not there


@jit
def _pull_back_clients(titles: Titles, given: BackwardInput, found: _Found) -> None:
    """The gradients of all clients; `found` comes with zeros."""
    scratch = _scratch(titles, given)
    for client in range(len(given.pair_offsets) - 1):
        rows = 0
        for pair in range(given.pair_offsets[client], given.pair_offsets[client + 1]):
            title = given.title_of[pair]
            low, high = titles.offsets[title], titles.offsets[title + 1]
            unpool(titles, given, given.gradients[pair], low, high, rows, scratch)
            unmix(titles, given.logit_in_scores, title, rows, scratch)
            _keep(titles, given, low, high, rows, scratch, found.hidden_bias[client], found.query[client])
            rows += high - low
        _through_linear(given, rows, scratch, client, found)
        _through_words(titles, given, rows, scratch, client, found)


@jit
def extents(titles: Titles, given: BackwardInput) -> tuple[int, int]:
    """Most words of a client in all of its titles, and of any title; at least one."""
    most = longest = 1
    for client in range(len(given.pair_offsets) - 1):
        rows = 0
        for pair in range(given.pair_offsets[client], given.pair_offsets[client + 1]):
            length = titles.offsets[given.title_of[pair] + 1] - titles.offsets[given.title_of[pair]]
            rows, longest = rows + length, max(longest, length)
        most = max(most, rows)
    return most, longest


@jit
def _scratch(titles: Titles, given: BackwardInput) -> _BackwardScratch:
    most, longest = extents(titles, given)
    filters, dim = titles.convolved.shape[1], titles.mixed.shape[1]
    window_filters, word_dim = given.kernel.shape
    distinct = min(most, len(given.table))
    return _BackwardScratch(
        np.empty(most, np.int32),
        np.empty((most, filters), np.float32),
        np.empty((most, dim), np.float32),
        np.empty(most, np.float32),
        np.empty((most, titles.hidden.shape[1]), np.float32),
        np.empty((most, dim), np.float32),
        np.empty((most, 3 * dim), np.float32),
        np.empty((most, filters), np.float32),
        np.empty((2 * titles.heads, longest), np.float32),
        np.empty(longest * longest, np.float32),
        np.empty((distinct, window_filters), np.float32),
        np.empty((distinct, word_dim), np.float32),
        np.empty((window_filters, word_dim), np.float32),
        np.empty(distinct, np.int32),
        np.full(len(given.table), -1, np.int64),
    )


@jit
def unpool(  # type: ignore[no-untyped-def]
    titles: Titles, given: BackwardInput, gradient: Floats, low, high, start, scratch
) -> None:
    """Attention over words, backward: to the logits, and to what was pooled, directly and through the logits."""
    heads, dim = titles.heads, len(gradient)
    width = dim // heads
    mean = _ZERO
    for row in range(low, high):
        whole = _ZERO
        for head in range(heads):
            with_values, with_mixed = _ZERO, _ZERO
            for q in range(head * width, (head + 1) * width):
                with_values += gradient[q] * given.values[row, q]
                with_mixed += gradient[q] * given.mixed[row, q]
            scratch.along[head, row - low] = with_values
            scratch.along[heads + head, row - low] = with_mixed
            whole += with_mixed
        scratch.to_logit[start + row - low] = whole
        mean += titles.share[row] * whole
    for row in range(low, high):
        at, share = start + row - low, titles.share[row]
        by_logit = share * (scratch.to_logit[at] - mean)
        scratch.to_logit[at] = by_logit
        for q in range(dim):
            scratch.to_mixed[at, q] = share * gradient[q] + by_logit * given.logit_in_mixed[row, q]


@jit
def unmix(  # type: ignore[no-untyped-def]
    titles: Titles, logit_in_scores: Floats, title, start, scratch
) -> None:
    """Self-attention of a title, backward: to queries, keys and values.

    The gradient in what was mixed is share * gradient + to_logit * logit_in_mixed, so that in the scores needs no
    products of vectors: those with the gradient are in `along`, the others are the same for all clients.
    """
    low, length = titles.offsets[title], titles.offsets[title + 1] - titles.offsets[title]
    heads, dim = titles.heads, titles.mixed.shape[1]
    width = dim // heads
    given, found = np.empty((length, width), np.float32), np.empty((length, width), np.float32)
    for head in range(heads):
        first = titles.squares[title] + head * length * length
        for row in range(length):
            direct, entry = titles.scale * titles.share[low + row], first + row * length
            by_logit, mean = scratch.to_logit[start + row], scratch.along[heads + head, row]
            for other in range(length):
                through_logit = by_logit * logit_in_scores[entry + other]
                weight, product = titles.attention[entry + other], scratch.along[head, other]
                scratch.to_scores[row * length + other] = direct * weight * (product - mean) + through_logit
        to_scores, weights = square_at(scratch.to_scores, 0, length), square_at(titles.attention, first, length)
        to_rows = scratch.to_projected[start : start + length]
        take_head(titles.projected[low : low + length], dim + head * width, given)
        np.dot(to_scores, given, found)
        put_head(found, head * width, to_rows)
        take_head(titles.projected[low : low + length], head * width, given)
        np.dot(to_scores.T, given, found)
        put_head(found, dim + head * width, to_rows)
        take_head(scratch.to_mixed[start : start + length], head * width, given)
        np.dot(weights.T, given, found)
        put_head(found, 2 * dim + head * width, to_rows)


@jit
def _keep(  # type: ignore[no-untyped-def]
    titles: Titles, given: BackwardInput, low, high, start, scratch: _BackwardScratch, bias: Floats, query: Floats
) -> None:
    """Put the words of a title beside those of the client's other titles; add to what needs no product."""
    for row in range(low, high):
        at = start + row - low
        by_logit = scratch.to_logit[at]
        scratch.words[at] = titles.words[row]
        for q in range(titles.mixed.shape[1]):
            scratch.mixed[at, q] = titles.mixed[row, q]
        for q in range(titles.convolved.shape[1]):
            scratch.convolved[at, q] = titles.convolved[row, q]
        for q in range(len(bias)):
            scratch.to_hidden[at, q] = by_logit * given.logit_in_hidden[row, q]
            bias[q] += by_logit * given.logit_in_hidden[row, q]
            query[q] += by_logit * titles.hidden[row, q]


@jit
def _through_linear(given: BackwardInput, rows, scratch: _BackwardScratch, client, found: _Found) -> None:  # type: ignore[no-untyped-def]
    """All words of a client through the linear layers of attention and self-attention, down to the CNN's ReLU."""
    np.dot(scratch.to_hidden[:rows].T, scratch.mixed[:rows], found.hidden[client])
    np.dot(scratch.to_projected[:rows].T, scratch.convolved[:rows], found.projections[client])
    np.dot(scratch.to_projected[:rows], given.projections, scratch.to_convolved[:rows])
    bias = found.kernel_bias[client]
    for row in range(rows):
        for q in range(len(bias)):
            passes = scratch.convolved[row, q] > _ZERO
            scratch.to_convolved[row, q] = scratch.to_convolved[row, q] if passes else _ZERO
            bias[q] += scratch.to_convolved[row, q]


@jit
def _through_words(  # type: ignore[no-untyped-def]
    titles: Titles, given: BackwardInput, rows, scratch: _BackwardScratch, client, found: _Found
) -> None:
    """The CNN, backward: to its kernel and to the words."""
    count = number_words(scratch.words[:rows], scratch.distinct, scratch.place)
    distinct, by_word, own = scratch.distinct[:count], scratch.by_word[:count], scratch.rows[:count]
    by_word[:] = _ZERO
    at = 0
    for pair in range(given.pair_offsets[client], given.pair_offsets[client + 1]):
        title = given.title_of[pair]
        length = titles.offsets[title + 1] - titles.offsets[title]
        _unsee(scratch.words[at : at + length], scratch.place, scratch.to_convolved[at : at + length], by_word)
        at += length
    for slot in range(count):
        scratch.place[distinct[slot]] = -1
        for q in range(own.shape[1]):
            own[slot, q] = given.table[distinct[slot], q]
    np.dot(by_word.T, own, scratch.to_kernel)  # [window * filters, word_dim], to lie as [filters, window * word_dim]
    filters, word_dim = scratch.to_convolved.shape[1], own.shape[1]
    for row in range(len(scratch.to_kernel)):
        begin = row // filters * word_dim
        found.kernel[client, row % filters, begin : begin + word_dim] = scratch.to_kernel[row]
    low, high = found.word_offsets[client], found.word_offsets[client + 1]
    if high > low:
        found.words[low:high] = distinct
        np.dot(by_word, given.kernel, found.word_values[low:high])


@jit
def number_words(words: Indices, distinct: Indices, place: Offsets) -> int:
    """The distinct words of a client in rising order, and the place of each."""
    count = 0
    for word in words:
        if place[word] < 0:
            place[word] = 0
            distinct[count] = word
            count += 1
    distinct[:count].sort()
    for slot in range(count):
        place[distinct[slot]] = slot
    return count


@jit
def _unsee(words: Indices, place: Offsets, to_convolved: Floats, by_word: Floats) -> None:
    """The CNN's window, backward: a position adds to every word that it sees, at the word's place in the window."""
    filters = to_convolved.shape[1]
    reach = by_word.shape[1] // filters // 2
    for row in range(len(words)):
        for other in range(max(0, row - reach), min(len(words), row + reach + 1)):
            slot, begin = place[words[other]], (other - row + reach) * filters
            for q in range(filters):
                by_word[slot, begin + q] += to_convolved[row, q]


@jit
def multiply_segments(offsets: Offsets, left: Floats, right: Floats, out: Floats) -> None:
    """The product left' right of every client's rows: [rows, a], [rows, b] -> [clients, a, b]."""
    for client in range(len(out)):
        low, high = offsets[client], offsets[client + 1]
        np.dot(left[low:high].T, right[low:high], out[client])


@jit
def add_segments(offsets: Offsets, values: Floats, out: Floats) -> None:
    """The sum of every client's rows: [rows, a] -> [clients, a]; `out` comes with zeros."""
    for client in range(len(out)):
        for row in range(offsets[client], offsets[client + 1]):
            for q in range(values.shape[1]):
                out[client, q] += values[row, q]


@jit
def add_to_tables(offsets: Offsets, codes: Indices, values: Floats, out: Floats) -> None:
    """Rows added where their codes say: [rows, a] -> [clients, codes, a]; `out` comes with zeros."""
    for client in range(len(out)):
        for row in range(offsets[client], offsets[client + 1]):
            for q in range(values.shape[1]):
                out[client, codes[row], q] += values[row, q]


@jit
def add_to_rows(offsets: Offsets, codes: Indices, values: Floats, starts: Offsets, index: Indices, out: Floats) -> None:
    """Add up rows in a table of each client's own codes: `index` from `starts` on, in rising order; 0 is padding."""
    for client in range(len(offsets) - 1):
        own = index[starts[client] : starts[client + 1]]
        for row in range(offsets[client], offsets[client + 1]):
            if codes[row] == 0:
                continue
            at = starts[client] + np.searchsorted(own, codes[row])
            for q in range(values.shape[1]):
                out[at, q] += values[row, q]


def own_codes(codes: Offsets, pairs: Pairs, count: int) -> tuple[Offsets, Indices]:
    """The distinct codes of every client's items but 0, in rising order: where each client begins, and all of them."""
    offsets, packed = packed_words(codes)
    most = int(np.diff(offsets)[pairs.title].sum())
    found, ends = np.empty(most, np.int32), np.zeros(len(pairs.offsets), np.int64)
    _find_distinct(pairs.offsets, pairs.title, offsets, packed, count, ends, found)
    return ends, found[: ends[-1]]


@jit
def _find_distinct(  # type: ignore[no-untyped-def]
    pair_offsets: Offsets, title_of: Offsets, offsets: Offsets, codes: Indices, count, ends: Offsets, found: Indices
) -> None:
    last = np.full(count, -1, np.int64)  # the last client that had the code
    end = 0
    for client in range(len(ends) - 1):
        begin = end
        for pair in range(pair_offsets[client], pair_offsets[client + 1]):
            for row in range(offsets[title_of[pair]], offsets[title_of[pair] + 1]):
                if last[codes[row]] != client:
                    last[codes[row]] = client
                    found[end] = codes[row]
                    end += 1
        found[begin:end].sort()
        ends[client + 1] = end
