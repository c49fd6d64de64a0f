"""From a problem and settings to a news model with its text, ready to learn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from veilrec import _draws
from veilrec._arrays import Floats
from veilrec.data.news_text import NewsNames, NewsText, news_text, occurring, other_news_text
from veilrec.data.population import Catalogue
from veilrec.methods.base import NewsData
from veilrec.methods.news_common import SizeConfig, TextConfig
from veilrec.models.news_model import NewsInput, NewsModel, NewsShape
from veilrec.models.news_registry import make_model
from veilrec.models.news_tensors import news_input
from veilrec.models.word_vectors import WordVectors, read_word_vectors


@dataclass(frozen=True)
class NewsReader:
    """Turns any catalogue into what a model reads, with the names that the model knows."""

    names: NewsNames
    text: TextConfig
    learnt: Catalogue  # that of the training: its sentence vectors give the axes of all others

    def read(self, catalogue: Catalogue) -> NewsInput:
        """What the model reads of these news."""
        return _input(other_news_text(catalogue, self.names), _sentences(self.text, catalogue, self.learnt))


@dataclass(frozen=True)
class Prepared:
    """A model with starting weights, and the news that it reads."""

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
) -> Prepared:
    """Read the text and start the model; the same seed gives the same weights.

    The words are those of the news in the impressions or, so that they tell nothing of anybody, of all news.
    """
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
    vectors = None if text.words == "learned" else read_word_vectors(text.words)
    if vectors is not None:
        size = size.model_copy(update={"word_dim": vectors.dim})
    n_news = len(data.catalogue.titles)
    learnt = np.ones(n_news, np.bool_) if whole_catalogue else occurring(data.impressions, n_news)
    codes = news_text(
        data.catalogue, learnt, abstracts=abstracts, known_words=None if vectors is None else vectors.words
    )
    sentences = _sentences(text, data.catalogue, data.catalogue)
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
    model = make_model(network, size.sizes(), shape, generator)
    frozen = _fill_in(model, codes, vectors, text)
    return Prepared(model, _input(codes, sentences), frozen, NewsReader(codes.names, text, data.catalogue))


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


def _sentences(text: TextConfig, catalogue: Catalogue, learnt: Catalogue) -> Floats | None:
    if text.sentences == "none":
        return None
    from veilrec.methods.sentences import sentence_vectors

    return sentence_vectors(catalogue, text.sentence_dim, learnt)
