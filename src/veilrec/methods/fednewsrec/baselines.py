"""Baselines of FedNewsRec: thirteen news models trained centrally with Adam; a round is an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from veilrec.methods.base import Config, Method, Problem
from veilrec.methods.news.common import (
    DATASETS,
    FEDNEWSREC,
    PAPER_SETTINGS,
    PAPER_WORDS,
    NewsConfig,
    PlmConfig,
    news_of,
    news_ready,
)
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.simulation.simulation import Trainer

# Made-up news have few words, whose meanings are learnt fast and then by heart.
_MADE_UP: Mapping[str, Any] = {"rate": 0.01, "size": {"dropout": 0.2}, "rounds": 5}


@dataclass(frozen=True, kw_only=True)
class NewsPaper:
    """What distinguishes one baseline: citation, network, inputs, deviations."""

    paper: str
    model: str
    summary: str
    network: str | None = None  # in models/; None: of the method's own name
    abstracts: bool = False  # whether it reads more than titles
    sentences: bool = False  # whether it learns over frozen sentence vectors
    word_vectors: bool = True  # whether it has a vector of every word, which public ones can start
    deviations: tuple[str, ...] = ()


_LSTUR = "An et al., Neural News Recommendation with Long- and Short-term User Representations, ACL 2019"
_OF_FEDNEWSREC = "Sizes and data of --preset paper are those of FedNewsRec's comparison; its rates are printed nowhere."
_NO_USER_IDS = "No user ids: the long-term vector is attention over the whole history, not a vector per user."

PAPERS = {
    "nrms": NewsPaper(
        paper="Wu et al., Neural News Recommendation with Multi-Head Self-Attention, EMNLP 2019",
        model="self-attention over words, self-attention over clicks",
        summary="titles by self-attention, users by self-attention over their clicks",
    ),
    "naml": NewsPaper(
        paper="Wu et al., Neural News Recommendation with Attentive Multi-View Learning, IJCAI 2019",
        model="CNN over title and abstract, categories, attention over views",
        summary="title, abstract and categories as views that attention joins",
        abstracts=True,
        deviations=(
            "The abstract, its first 40 words, takes the place of the body, which the data sets do not have.",
            "An empty view, such as that of a news without abstract, is left out of the attention.",
        ),
    ),
    "lstur": NewsPaper(
        paper=_LSTUR,
        model="CNN over words, categories; attention and GRU over clicks",
        summary="long-term interests start a GRU over recent clicks",
        network="lstur-ini",
        deviations=(_NO_USER_IDS,),
    ),
    "lstur-con": NewsPaper(
        paper=_LSTUR,
        model="CNN over words, categories; attention beside a GRU over clicks",
        summary="long-term interests beside a GRU over recent clicks",
        deviations=(_NO_USER_IDS,),
    ),
    "npa": NewsPaper(
        paper="Wu et al., NPA: Neural News Recommendation with Personalized Attention, KDD 2019",
        model="CNN over words, personal attention over words and clicks",
        summary="which words and clicks matter differs from user to user",
        deviations=("No user ids: the query is made from the mean of the clicked news, not from a vector per user.",),
    ),
    "ebnr": NewsPaper(
        paper="Okura et al., Embedding-based News Recommendation for Millions of Users, KDD 2017",
        model="mean word vector, GRU over clicks",
        summary="titles as bags of words, users by a GRU",
        deviations=(
            "The news part learns from clicks; it is not trained beforehand as a denoising autoencoder.",
            "It reads titles, where the paper's reads whole articles.",
        ),
    ),
    "dkn": NewsPaper(
        paper="Wang et al., DKN: Deep Knowledge-Aware Network for News Recommendation, WWW 2018",
        model="CNN over words and entities, candidate-aware attention",
        summary="words with their entities, attention over clicks by the candidate",
        deviations=(
            "The CNN has filters of one width (size.window), where the paper has several.",
            "Entity vectors are learnt where the data set brings none; vectors of their neighbours are not used.",
            "The last network also sees the product of user and candidate, without which it hardly learns likeness.",
        ),
    ),
    "dan": NewsPaper(
        paper="Zhu et al., DAN: Deep Attention Neural Network for News Recommendation, AAAI 2019",
        model="CNNs over title and entities, attention and GRU over clicks",
        summary="interests and their sequence, attended to by the candidate",
        deviations=(
            "A GRU in place of the LSTM.",
            "A scaled dot product in place of the cosine, which hardly learns, and of the networks that weigh clicks.",
            "The CNNs have filters of one width (size.window); the types of entities are left out.",
        ),
    ),
    "fm": NewsPaper(
        paper="Rendle, Factorization Machines with libFM, TIST 2012",
        model="factorisation machine",
        summary="pairs of features of candidate and clicks",
        word_vectors=False,
        deviations=(
            "Trained with the same softmax loss as the other models.",
            "Features are words of titles and categories, of the candidate and of the clicks; ids are left out.",
        ),
    ),
    "dfm": NewsPaper(
        paper="Lian et al., Towards Better Representation Learning for Personalized News Recommendation, IJCAI 2018",
        model="towers of three depths over words and categories",
        summary="networks of different depth over the same features",
        deviations=(
            "Features are words and categories; ids, URLs and entities are left out.",
            "Every network also sees the product of user and candidate.",
        ),
    ),
    "cennewsrec": NewsPaper(
        paper=FEDNEWSREC,
        model="CNN and self-attention over words; self-attention and GRU over clicks",
        summary="the model of FedNewsRec, learnt from everybody's impressions in one place",
        network="fednewsrec",
    ),
    "plm-nr": NewsPaper(
        paper="Wu et al., Empowering News Recommendation with Pre-trained Language Models, SIGIR 2021",
        model="MiniLM sentence vectors (frozen), self-attention over clicks",
        summary="titles by a public language model, users by self-attention over their clicks",
        sentences=True,
        deviations=(
            "The language model is MiniLM, and frozen: its sentence vectors are computed once.",
            "Sentences are title and abstract.",
        ),
    ),
    "sentence-head": NewsPaper(
        paper="ours; a baseline of what training adds to public sentence vectors",
        model="MiniLM sentence vectors (frozen), one linear map, attention over clicks",
        summary="starts as the cosine of sentence vectors, learns a map and which clicks matter",
        sentences=True,
    ),
}


def trainer(settings: NewsConfig, problem: Problem, *, name: str) -> Trainer:
    """Make the centralised trainer of one baseline."""
    from veilrec.methods.fednewsrec.trainer import NewsTrainer

    row = PAPERS[name]
    return NewsTrainer(row.network or name, settings, problem, news_of(problem, name), abstracts=row.abstracts)


def guarantee(config: Config) -> Guarantee:
    """No guarantee: all data lies in one place."""
    return no_guarantee("Everybody's clicks and what they were shown lie in one place.")


def _method(name: str, row: NewsPaper) -> Method[Any]:
    tuned = {} if row.sentences else {"tuned@synthetic-news": _MADE_UP}
    words = {} if row.sentences or not row.word_vectors else PAPER_WORDS
    return Method(
        name=name,
        kind="centralised",
        private_relative="fednewsrec-head" if row.sentences else "fednewsrec",
        paper=row.paper,
        model=row.model,
        summary=row.summary,
        datasets=DATASETS,
        config=PlmConfig if row.sentences else NewsConfig,
        trainer=partial(trainer, name=name),
        guarantee=guarantee,
        ready=news_ready,
        rounds=5 if row.sentences else 8,
        presets={"paper": {**PAPER_SETTINGS, **words}, **tuned},
        deviations=(*row.deviations, _OF_FEDNEWSREC),
        measured=("mind", "synthetic-news"),
    )


METHODS = {name: _method(name, row) for name, row in PAPERS.items()}
