"""The encoders of texts inside a model that compiled code can do, and the model without them.

Self-attention over words and attention over what it finds (NRMS), compiled: gradients for every client.

Every distinct text goes forward once. Backward, a client goes text by text, and adds up the gradients in queries, keys
and values for each of its distinct words as soon as they are there: see `title_gradients`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.jit import jit
from veilrec.core.schema import Rows
from veilrec.kernels.text_cnn import EncodedTexts, encode_texts
from veilrec.kernels.title_encoder import (
    HIDDEN,
    HIDDEN_BIAS,
    KERNEL,
    KERNEL_BIAS,
    PROJECTIONS,
    QUERY,
    WORDS,
    Titles,
    encode_titles,
    starts,
)
from veilrec.kernels.title_gradients import (
    BackwardInput,
    Pairs,
    count_distinct,
    extents,
    number_words,
    slopes_of,
    unmix,
    unpool,
)
from veilrec.models.news_model import CnnEncoder, MultiHeadPooling, NewsInput, NewsModel

_ZERO = np.float32(0.0)


class _Found(NamedTuple):
    """Gradients of every client: [clients, ...], and rows of its own words if words learn."""

    projections: Floats
    hidden: Floats
    hidden_bias: Floats
    query: Floats
    word_offsets: Offsets  # [clients + 1]
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
        """From gradients in the vectors of the pairs to those of every client in the weights; rows of own words."""
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
        _pull_back_clients(titles, given, found)
        dense = {
            PROJECTIONS: found.projections,
            HIDDEN: found.hidden,
            HIDDEN_BIAS: found.hidden_bias,
            QUERY: found.query[:, np.newaxis],
        }
        return dense, words if self.learns_words else None


@jit
def _pull_back_clients(titles: Titles, given: BackwardInput, found: _Found) -> None:
    """The gradients of all clients; `found` comes with zeros."""
    most, longest = extents(titles, given)
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
    for client in range(len(given.pair_offsets) - 1):
        first, last = given.pair_offsets[client], given.pair_offsets[client + 1]
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
                    found.hidden_bias[client, q] += to_hidden[at, q]
                    found.query[client, q] += by_logit * titles.hidden[row, q]
                at += 1
        np.dot(to_hidden[:rows].T, mixed[:rows], found.hidden[client])
        for slot in range(count):
            place[distinct[slot]] = -1
            for q in range(word_dim):
                own[slot, q] = given.table[distinct[slot], q]
        np.dot(by_word.T, own[:count], found.projections[client])
        begin, end = found.word_offsets[client], found.word_offsets[client + 1]
        if end > begin:
            found.words[begin:end] = distinct[:count]
            np.dot(by_word, given.projections, found.word_values[begin:end])


TEXTS = ("title", "abstract", "entities")  # fields of NewsInput that have a code per word
TABLE = WORDS.removesuffix(".weight")
_ATTENTION = {HIDDEN: "attention.hidden.weight", HIDDEN_BIAS: "attention.hidden.bias", QUERY: "attention.query.weight"}
_MIXED = _ATTENTION | {PROJECTIONS: "mix.projections.weight"}
_CONVOLVED = _ATTENTION | {KERNEL: "cnn.kernel.weight", KERNEL_BIAS: "cnn.kernel.bias"}


@dataclass(frozen=True)
class CompiledText:
    """An encoder of one field of the news."""

    module: str  # its name in the model
    field: str  # of NewsInput
    heads: int  # of self-attention; 0: a CNN
    weights: Mapping[str, Floats]  # its own at the start, by the names of the compiled code

    @property
    def names(self) -> dict[str, str]:
        """Names of the compiled code -> names in the model."""
        kinds = _MIXED if self.heads else _CONVOLVED
        return {name: f"{self.module}.{kind}" for name, kind in kinds.items()}

    def encode(self, weights: Mapping[str, Floats], codes: Offsets) -> EncodedMixed | EncodedTexts:
        """Texts with the weights of the model, of which those that do not learn may be missing."""
        own = {name: weights[known] for name, known in self.names.items() if known in weights}
        whole, learns_words = {**self.weights, **own}, WORDS in weights
        whole[WORDS] = weights.get(WORDS, self.weights[WORDS])
        if self.heads:
            return EncodedMixed(whole, encode_titles(whole, codes, self.heads), learns_words)
        return encode_texts(whole, codes, learns_words=learns_words)


def find_texts(model: NewsModel, one: NewsInput) -> tuple[CompiledText, ...]:
    """The encoders through which all words go in the model's news part; none where some go another way."""
    looked_up: list[tuple[Tensor, Tensor]] = []
    read: list[tuple[str, Tensor]] = []

    def note_lookup(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        looked_up.append((inputs[0], output))

    def note_text(name: str, _: nn.Module, inputs: tuple[Tensor, ...], __: Tensor) -> None:
        read.append((name, inputs[0]))

    encoders = {name: m for name, m in model.named_modules() if isinstance(m, CnnEncoder | MultiHeadPooling)}
    hooks = [m.register_forward_hook(partial(note_text, name)) for name, m in encoders.items()]
    hooks += [m.register_forward_hook(note_lookup) for name, m in model.named_modules() if name == TABLE]
    with torch.no_grad():
        model.encode_news(one)
    for hook in hooks:
        hook.remove()
    texts = []
    for name, values in read:
        codes = [codes for codes, output in looked_up if output is values]
        field = [f.name for f in fields(one) if codes and getattr(one, f.name) is codes[0]]
        if field:
            texts.append(_text(model, name, field[0]))
    distinct = {text.module for text in texts}
    return tuple(texts) if len(texts) == len(looked_up) == len(distinct) else ()


def without_words(news: NewsInput, texts: Collection[str]) -> NewsInput:
    """News of some of whose texts is left whether they have a word: all that a model asks that looks no word up."""
    left = {name: (getattr(news, name) > 0).any(1, keepdim=True).long() for name in texts}
    return replace(news, **left)


def _text(model: NewsModel, name: str, field: str) -> CompiledText:
    module = model.get_submodule(name)
    heads = module.mix.heads if isinstance(module, MultiHeadPooling) else 0
    kinds = _MIXED if heads else _CONVOLVED
    own = {known: module.get_parameter(kind).detach().numpy() for known, kind in kinds.items()}
    return CompiledText(name, field, heads, own | {WORDS: model.get_parameter(WORDS).detach().numpy()})


class NewsEncoder(nn.Module):
    """The news part of a model to which the vectors of some texts are given, as a module: `functional_call` can then
    exchange the weights.
    """

    def __init__(self, model: NewsModel, texts: tuple[CompiledText, ...]) -> None:
        super().__init__()
        self.model = model
        if texts:
            self.model = deepcopy(model)
            setattr(self.model, TABLE, nn.Identity())
        self._given = [_Given() for _ in texts]
        for text, given in zip(texts, self._given, strict=True):
            parent, _, last = text.module.rpartition(".")
            setattr(self.model.get_submodule(parent), last, given)

    @torch.no_grad()
    def is_text(self, one: NewsInput) -> bool:
        """Whether the vector of a news is that of its only text."""
        given = tuple(torch.zeros(1, self.model.dim) for _ in self._given)
        return len(given) == 1 and self(given, one) is given[0]

    def forward(self, given: tuple[Tensor, ...], news: NewsInput) -> Tensor:
        """Vectors of the news."""
        for text, vectors in zip(self._given, given, strict=True):
            text.vectors = vectors
        return self.model.encode_news(news)


class _Given(nn.Module):
    """Stands in the place of an encoder."""

    vectors: Tensor

    def forward(self, _: Tensor, __: Tensor) -> Tensor:
        """What was given."""
        return self.vectors
