"""Parts that the news methods share: settings, preparation of text, and construction of models by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn

from veilrec.core import rng
from veilrec.core.arrays import Floats
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput, counted, unknown_name
from veilrec.data.news_text import NewsNames, NewsText, all_words, news_text, occurring, other_news_text
from veilrec.data.population import ItemTable
from veilrec.evaluation.impressions import judged
from veilrec.methods.base import Config, NewsData, Problem
from veilrec.methods.news.text_vectors import SentenceAxes, TitleAxes, learnt_sentences, learnt_titles, sentence_vectors
from veilrec.models.fednewsrec import FedNewsRec
from veilrec.models.interests import InterestNaml, InterestNrms, InterestPlmNr
from veilrec.models.layers import NewsSizes
from veilrec.models.news_model import NewsInput, NewsModel, NewsShape, news_input
from veilrec.models.news_networks import Dan, Dfm, Dkn, Ebnr, Fm, Lstur, Naml, Npa, Nrms, PlmNr, SentenceHead
from veilrec.models.public_head import PublicHead
from veilrec.models.word_vectors import WordVectors, read_word_vectors

if TYPE_CHECKING:
    from veilrec.models.layers import NewsSizes


DATASETS = ("mind", "synthetic-news", "adressa", "ebnerd", "impressions")
FEDNEWSREC = "Qi et al., Privacy-Preserving News Recommendation Model Learning, Findings of EMNLP 2020"

Count = Annotated[int, Field(ge=1)]
Short = Annotated[int, Field(ge=1, le=10_000)]  # a list that every click or user has a place for in memory
Width = Annotated[int, Field(ge=1, le=4096)]  # of a layer: wider ones would not fit into memory
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]


class SizeConfig(Config):
    """How large the model is."""

    word_dim: Width = 50  # length of a word vector
    heads: Width = 4  # of the attention
    head_dim: Width = 16  # news and user vectors have heads * head_dim entries
    attention: Width = 32  # width of additive attention
    window: Literal[1, 3, 5, 7] = 3  # words that the CNN sees at once
    category_dim: Width = 16  # length of the vector of a category
    recent: Short = 20  # the latest clicks that short-term models look at
    taste: Width = 100  # of the public head: principal components that everybody's taste is learnt in
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1  # in centralised training only

    def sizes(self) -> NewsSizes:
        """For the models."""
        from veilrec.models.layers import NewsSizes

        return NewsSizes(**self.model_dump())


# FedNewsRec, section 4.1: 300-dimensional GloVe, 20 heads of 20, and so a GRU of 400, H = 4, half of the users learn.
# The widths of attention and of categories are not printed: 200 is that of the authors' code, 100 that of NAML.
PAPER_SIZES: Mapping[str, Any] = {"word_dim": 300, "heads": 20, "head_dim": 20, "attention": 200, "category_dim": 100}
PAPER_SETTINGS: Mapping[str, Any] = {"size": PAPER_SIZES, "negatives": 4, "train_share": 0.5}
PAPER_WORDS: Mapping[str, Any] = {"text": {"words": "glove"}}


Sentences = Literal["none", "minilm", "titles"]


class TextConfig(Config):
    """Where the meaning of words comes from."""

    words: str = "learned"  # "learned", "glove" (of the package), or the path of a GloVe text file
    freeze_words: bool = False  # public word vectors stay as they are
    # vectors of title and abstract, which are never changed: none; of a language model; of the catalogue's own words
    sentences: Sentences = "none"
    sentence_dim: Annotated[int, Field(ge=2, le=384)] = 384  # fewer: their principal components


class JudgeConfig(Config):
    """Held-out validation clients: they never train, and decide whether training is kept; proven methods only."""

    share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.2  # of the devices, drawn by the seed; 0: no comparison
    clip: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1  # the most AUC that one judge's word counts


class NewsConfig(Config):
    """Settings of centralised training."""

    size: SizeConfig = SizeConfig()
    text: TextConfig = TextConfig()
    negatives: Short = 4  # K: news of the same impression that were not clicked, per click
    history: Short = 50  # the latest clicks that a user is known by
    train_share: Share = 1.0  # of the users, drawn by the seed: only they are learnt from
    batch: Count = 1024  # clicks per step of Adam
    rate: Positive = 0.005  # learning rate
    decay: NotNegative = 0.0  # weight decay, as in AdamW


class PlmConfig(NewsConfig):
    """Settings of a model over frozen sentence vectors."""

    text: TextConfig = TextConfig(sentences="minilm")
    size: SizeConfig = SizeConfig(attention=8)
    batch: Count = 512
    rate: Positive = 0.001  # learning rate


def news_of(problem: Problem, method: str) -> NewsData:
    """News data of a problem; raise BadInput without any."""
    if problem.news is None:
        raise BadInput(
            f"{method} needs news with titles and train impressions, which this data or protocol does not have:"
            " use mind, ebnerd, impressions or synthetic-news with --protocol mind,"
            " or adressa with --protocol last-day-20"
        )
    if len(problem.news.catalogue.titles.data) == 0:
        raise BadInput(
            f"{method} reads titles, and no news of this data has one: bring the file with the news, or use a method"
            " that knows items by their ids, such as fcf"
        )
    if not judged(problem.news.impressions).any():
        raise BadInput(
            f"{method} has nothing to learn from: no train impression has both a click and an item without one;"
            " bring impressions with both"
        )
    return problem.news


def taking_part(logs: Csr, users: int, seed: int) -> Csr:
    """Keep the logs of a number of users and empty the others; smaller numbers give subsets of larger ones."""
    eligible = np.flatnonzero(logs.lengths() > 0)
    if users > len(eligible):
        raise BadInput(
            f"train_users is {users}, but {counted(len(eligible), 'user')} can learn:"
            f" choose from 1 to {len(eligible)}, or leave it out to take all"
        )
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, rng.PARTICIPANTS])))
    chosen = np.zeros(len(logs), np.bool_)
    chosen[generator.permutation(eligible)[:users]] = True
    offsets = np.concatenate([[0], np.cumsum(np.where(chosen, logs.lengths(), 0))]).astype(np.int64)
    return Csr(offsets, logs.items[np.repeat(chosen, logs.lengths())])


def share_taking_part(logs: Csr, share: float, seed: int) -> Csr:
    """Keep the logs of a share of the users who can train."""
    return logs if share == 1.0 else taking_part(logs, share_of(share, int((logs.lengths() > 0).sum())), seed)


def share_of(share: float, count: int) -> int:
    """Number that a share comes to; at least one if there is any."""
    return min(count, max(1, round(share * count)))


def vectors_ready(size: SizeConfig, text: TextConfig) -> tuple[str, ...]:
    """Check that public vectors are installed; return a note where word vectors have another width."""
    if text.sentences == "minilm":
        from veilrec.models.minilm import model_folder

        model_folder()
    if text.words == "learned":
        return ()
    from veilrec.models.word_vectors import dimensions

    found = dimensions(text.words)
    if found == size.word_dim:
        return ()
    wider = (
        f": for {size.word_dim}, name a file of such vectors, --set text.words=FILE" if found < size.word_dim else ""
    )
    return (f"word vectors have the {found} dimensions of {text.words}, not size.word_dim {size.word_dim}{wider}",)


def news_ready(config: NewsConfig) -> tuple[str, ...]:
    """Check that the public vectors of a centralised method are installed."""
    return vectors_ready(config.size, config.text)


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
    pad_word: int | None = None  # the code that short texts are filled with; None: they stay short

    def read(self, catalogue: ItemTable) -> NewsInput:
        """What the model reads of these news."""
        sentences = None if self.sentences == "none" else _vectors_of(catalogue, self.axes)
        return _filled(_input(other_news_text(catalogue, self.names), sentences), self.pad_word)


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
    frozen = _fill_in(model, codes, vectors, text) | model.take_in(news)
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
            vectors.fill(known.words, weight.numpy()[len(known) - len(known.words) : len(known)])
            if text.freeze_words:
                frozen.add(f"{name}.weight")
        if last == "entities" and codes.entity_vectors is not None:
            weight.copy_(torch.from_numpy(codes.entity_vectors))
        weight[0].zero_()  # padding
    return frozenset(frozen)
