"""From a problem and settings to a news model with its text, ready to learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import nn

from veilrec import _draws
from veilrec._arrays import Floats
from veilrec.data.news_text import NewsNames, NewsText, all_words, news_text, occurring, other_news_text
from veilrec.data.population import Catalogue
from veilrec.methods.base import NewsData
from veilrec.methods.news.common import SizeConfig, TextConfig
from veilrec.methods.news.sentences import SentenceAxes, learnt_sentences, sentence_vectors
from veilrec.models.layers import NewsSizes
from veilrec.models.news_model import NewsInput, NewsModel, NewsShape, news_input
from veilrec.models.news_models import make_model
from veilrec.models.word_vectors import WordVectors, read_word_vectors


@dataclass(frozen=True)
class NewsReader:
    """Turns any catalogue into what a model reads, with the names that the model knows."""

    names: NewsNames
    sentences: Literal["none", "minilm"]
    axes: SentenceAxes | None = None  # of the sentence vectors; None: all dimensions

    def read(self, catalogue: Catalogue) -> NewsInput:
        """What the model reads of these news."""
        sentences = None if self.sentences == "none" else sentence_vectors(catalogue, self.axes)
        return _input(other_news_text(catalogue, self.names), sentences)


@dataclass(frozen=True)
class Architecture:
    """What a news model is before its weights."""

    network: str
    sizes: NewsSizes
    shape: NewsShape

    def start(self, generator: torch.Generator) -> NewsModel:
        """A model with starting weights."""
        return make_model(self.network, self.sizes, self.shape, generator)


@dataclass(frozen=True)
class ReadNews:
    """A model with starting weights, and the news that it reads."""

    architecture: Architecture
    model: NewsModel
    news: NewsInput
    frozen: frozenset[str]  # parameters that nobody changes
    reader: NewsReader


def prepare(
    network: str,
    size: SizeConfig,
    text: TextConfig,
    data: NewsData,
    seed: int,
    *,
    abstracts: bool = False,
    whole_catalogue: bool = False,
) -> ReadNews:
    """Read the text and start the model; the same seed gives the same weights.

    The words are those of the news in the impressions or, so that they tell nothing of anybody, of all news.
    """
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
    vectors = None if text.words == "learned" else _word_vectors(text.words, data.catalogue, abstracts)
    if vectors is not None:
        size = size.model_copy(update={"word_dim": vectors.dim})
    n_news = len(data.catalogue.titles)
    learnt = np.ones(n_news, np.bool_) if whole_catalogue else occurring(data.impressions, n_news)
    codes = news_text(
        data.catalogue, learnt, abstracts=abstracts, known_words=None if vectors is None else vectors.words
    )
    sentences, axes = None, None
    if text.sentences != "none":
        sentences, axes = learnt_sentences(data.catalogue, text.sentence_dim)
    given = codes.entity_vectors
    shape = NewsShape(
        words=len(codes.names.words),
        categories=len(codes.names.categories),
        subcategories=len(codes.names.subcategories),
        entities=len(codes.names.entities),
        entity_dim=32 if given is None else given.shape[1],
        sentence_dim=0 if sentences is None else sentences.shape[1],
    )
    generator = torch.Generator().manual_seed(
        int(np.random.SeedSequence([seed, _draws.MODEL]).generate_state(1, np.uint64)[0] >> np.uint64(1))
    )
    architecture = Architecture(network, size.sizes(), shape)
    model = architecture.start(generator)
    frozen = _fill_in(model, codes, vectors, text)
    reader = NewsReader(codes.names, text.sentences, axes)
    return ReadNews(architecture, model, _input(codes, sentences), frozen, reader)


def _word_vectors(source: str, catalogue: Catalogue, abstracts: bool) -> WordVectors:
    return read_word_vectors(source, all_words(catalogue, abstracts=abstracts))


def _input(codes: NewsText, sentences: Floats | None) -> NewsInput:
    return news_input(codes.titles, codes.abstracts, codes.categories, codes.subcategories, codes.entities, sentences)


def _fill_in(model: NewsModel, codes: NewsText, vectors: WordVectors | None, text: TextConfig) -> frozenset[str]:
    """Public vectors into the tables of words and entities; the names of the tables that stay frozen."""
    frozen = set()
    for name, module in model.named_modules():
        if not isinstance(module, nn.Embedding):
            continue
        weight = module.weight.data
        last = name.rpartition(".")[2]
        if last == "words" and vectors is not None:
            known = codes.names.words
            vectors.fill(known.words, weight.numpy()[len(known) - len(known.words) :])
            if text.freeze_words:
                frozen.add(f"{name}.weight")
        if last == "entities" and codes.entity_vectors is not None:
            weight.copy_(torch.from_numpy(codes.entity_vectors))
        weight[0].zero_()  # padding
    return frozenset(frozen)
