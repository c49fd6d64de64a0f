"""News models by name, and from a training problem to a news model with its text, ready to train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import nn

from veilrec.core import rng
from veilrec.core.arrays import Floats
from veilrec.core.errors import unknown_name
from veilrec.data.news_text import NewsNames, NewsText, all_words, news_text, occurring, other_news_text
from veilrec.data.population import ItemTable, Strings
from veilrec.methods.base import NewsData
from veilrec.methods.news.common import Sentences, SizeConfig, TextConfig
from veilrec.methods.news.text_vectors import SentenceAxes, TitleAxes, learnt_sentences, learnt_titles, sentence_vectors
from veilrec.models.federated_news import FedNewsRec, InterestNaml, InterestNrms, InterestPlmNr, PublicHead
from veilrec.models.news_model import NewsInput, NewsModel, NewsShape, NewsSizes, news_input, take_news
from veilrec.models.news_networks import Dan, Dfm, Dkn, Ebnr, Fm, Lstur, Naml, Npa, Nrms, PlmNr, SentenceHead
from veilrec.models.text_embeddings import WordVectors, read_word_vectors

MODELS: dict[str, Callable[[NewsSizes, NewsShape], NewsModel]] = {
    "fednewsrec": FedNewsRec,
    "fednewsrec-long": partial(FedNewsRec, interests="long"),
    "fednewsrec-short": partial(FedNewsRec, interests="short"),
    "nrms": Nrms,
    "naml": Naml,
    "lstur-ini": partial(Lstur, join="ini"),
    "lstur-con": partial(Lstur, join="con"),
    "npa": Npa,
    "ebnr": Ebnr,
    "dkn": Dkn,
    "dan": Dan,
    "fm": Fm,
    "dfm": Dfm,
    "plm-nr": PlmNr,
    "sentence-head": SentenceHead,
    "public-head": PublicHead,
    "interest-nrms": InterestNrms,
    "interest-naml": InterestNaml,
    "interest-plm-nr": InterestPlmNr,
}


def reads_words(name: str) -> bool:
    """Whether a news model has a table of words."""
    with torch.device("meta"):
        model = MODELS[name](NewsSizes(), NewsShape(1, 1, 1, 1, sentence_dim=1))
    return any(part == "words" for part, _ in model.named_children())


def make_model(name: str, sizes: NewsSizes, shape: NewsShape, generator: torch.Generator) -> NewsModel:
    """A model with starting weights drawn from the generator."""
    if name not in MODELS:
        raise unknown_name("news model", name, MODELS)
    with torch.device("meta"):  # so that torch's global generator is left alone
        model = MODELS[name](sizes, shape)
    model.to_empty(device="cpu")
    model.start(generator)
    return model


@dataclass(frozen=True)
class NewsReader:
    """Turns any catalogue into what a model reads, with the names that the model knows."""

    names: NewsNames
    sentences: Sentences
    axes: SentenceAxes | TitleAxes | None = None  # of the sentence vectors; None: all dimensions
    pad_word: int | None = None  # e0: the code that short texts are filled with; None: they stay short

    def read(self, catalogue: ItemTable) -> NewsInput:
        """What the model reads of these news."""
        sentences = None if self.sentences == "none" else _vectors_of(catalogue, self.axes)
        return _filled(_input(other_news_text(catalogue, self.names), sentences), self.pad_word)

    def pad(self) -> NewsInput | None:
        """A news of nothing but pad words, whose vector is r0 (PrivateRec, Algorithm 2, line 1); None without any."""
        if self.pad_word is None:
            return None
        nothing = Strings.of([""])
        one = self.read(ItemTable(nothing, nothing, nothing, nothing, nothing))
        return take_news(with_pad(one, self.pad_word), slice(-1, None))


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
    pad_words: bool = False,
) -> ReadNews:
    """Read the text and start the model; the same seed gives the same weights.

    The words are those of the news in the impressions or, so that they tell nothing of anybody, of all news. With
    `pad_words` there is one more, which fills short texts and learns like any other (e0 of PrivateRec, section 3.3).
    It starts at zero: most of a title are pads, and with long ones all titles would be alike.
    """
    pad_words = (pad_words or text.pad_words) and reads_words(network)
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
    vectors = None if text.words == "learned" else _word_vectors(text.words, data.catalogue, abstracts)
    if vectors is not None:
        size = size.model_copy(update={"word_dim": vectors.dim})
    n_news = len(data.catalogue.titles)
    learnt = np.ones(n_news, np.bool_) if whole_catalogue else occurring(data.impressions, n_news)
    codes = news_text(
        data.catalogue, learnt, abstracts=abstracts, known_words=None if vectors is None else vectors.words
    )
    sentences: Floats | None = None
    axes: SentenceAxes | TitleAxes | None = None
    if text.sentences != "none":
        learnt_vectors = learnt_titles if text.sentences == "titles" else learnt_sentences
        sentences, axes = learnt_vectors(data.catalogue, text.sentence_dim)
    given = codes.entity_vectors
    shape = NewsShape(
        words=len(codes.names.words) + int(pad_words),
        categories=len(codes.names.categories),
        subcategories=len(codes.names.subcategories),
        entities=len(codes.names.entities),
        entity_dim=32 if given is None else given.shape[1],
        sentence_dim=0 if sentences is None else sentences.shape[1],
    )
    generator = torch.Generator().manual_seed(
        int(np.random.SeedSequence([seed, rng.MODEL]).generate_state(1, np.uint64)[0] >> np.uint64(1))
    )
    architecture = Architecture(network, size.sizes(), shape)
    model = architecture.start(generator)
    pad_word = len(codes.names.words) if pad_words else None
    news = _filled(_input(codes, sentences), pad_word)
    frozen = _fill_in(model, codes, vectors, text, pad_word) | model.take_in(news)
    reader = NewsReader(codes.names, text.sentences, axes, pad_word)
    return ReadNews(architecture, model, news, frozen, reader)


def with_pad(news: NewsInput, pad_word: int) -> NewsInput:
    """The news, and behind them one of nothing but pad words: its vector is r0."""
    parts = {name: torch.cat([codes, torch.zeros_like(codes[:1])]) for name, codes in vars(news).items()}
    longer = NewsInput(**parts)
    longer.title[-1], longer.abstract[-1] = pad_word, pad_word
    return longer


def _filled(news: NewsInput, pad_word: int | None) -> NewsInput:
    """Short titles, and abstracts where they are read, filled up with the pad word."""
    if pad_word is None:
        return news
    title, abstract = (torch.where(codes > 0, codes, pad_word) for codes in (news.title, news.abstract))
    return replace(news, title=title, abstract=abstract)


def _vectors_of(catalogue: ItemTable, axes: SentenceAxes | TitleAxes | None) -> Floats:
    return axes.vectors(catalogue) if isinstance(axes, TitleAxes) else sentence_vectors(catalogue, axes)


def _word_vectors(source: str, catalogue: ItemTable, abstracts: bool) -> WordVectors:
    return read_word_vectors(source, all_words(catalogue, abstracts=abstracts))


def _input(codes: NewsText, sentences: Floats | None) -> NewsInput:
    return news_input(codes.titles, codes.abstracts, codes.categories, codes.subcategories, codes.entities, sentences)


def _fill_in(
    model: NewsModel, codes: NewsText, vectors: WordVectors | None, text: TextConfig, pad_word: int | None
) -> frozenset[str]:
    """Public vectors into the tables of words and entities; the names of the tables that stay frozen."""
    frozen = set()
    for name, module in model.named_modules():
        if not isinstance(module, nn.Embedding):
            continue
        weight = module.weight.data
        last = name.rpartition(".")[2]
        if last == "words" and vectors is not None:
            known = codes.names.words
            vectors.fill(known.words, weight.numpy()[len(known) - len(known.words) : len(known)])
            if text.freeze_words:
                frozen.add(f"{name}.weight")
        if last == "entities" and codes.entity_vectors is not None:
            weight.copy_(torch.from_numpy(codes.entity_vectors))
        weight[0].zero_()  # padding
        if last == "words" and pad_word is not None:
            weight[pad_word].zero_()
    return frozenset(frozen)
