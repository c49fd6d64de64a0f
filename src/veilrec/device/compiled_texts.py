"""The encoders of texts inside a model that compiled code can do, and the model without them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from veilrec._arrays import Floats, Offsets
from veilrec.device.convolved_text import encode_texts
from veilrec.device.mixed_text import EncodedMixed
from veilrec.device.title_encoder import (
    HIDDEN,
    HIDDEN_BIAS,
    KERNEL,
    KERNEL_BIAS,
    PROJECTIONS,
    QUERY,
    WORDS,
    encode_titles,
)
from veilrec.device.title_gradients import Pairs
from veilrec.models.layers import CnnEncoder, MultiHeadPooling
from veilrec.models.news_model import NewsInput, NewsModel
from veilrec.updates import Rows

TEXTS = ("title", "abstract", "entities")  # fields of NewsInput that have a code per word
TABLE = WORDS.removesuffix(".weight")
_ATTENTION = {HIDDEN: "attention.hidden.weight", HIDDEN_BIAS: "attention.hidden.bias", QUERY: "attention.query.weight"}
_MIXED = _ATTENTION | {PROJECTIONS: "mix.projections.weight"}
_CONVOLVED = _ATTENTION | {KERNEL: "cnn.kernel.weight", KERNEL_BIAS: "cnn.kernel.bias"}


class EncodedText(Protocol):
    """Texts that were encoded with some weights."""

    @property
    def vectors(self) -> Floats:
        """Of every text: [texts, dim]."""

    def pull_back(self, pairs: Pairs, gradients: Floats) -> tuple[dict[str, Floats], Rows | None]:
        """From gradients in the vectors of the pairs to those of every device in the weights; words by row."""


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

    def encode(self, weights: Mapping[str, Floats], codes: Offsets) -> EncodedText:
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
        given = tuple(torch.empty(1, self.model.dim) for _ in self._given)
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
