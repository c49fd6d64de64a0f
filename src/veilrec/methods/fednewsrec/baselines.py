"""Baselines of FedNewsRec: thirteen news models trained centrally with Adam; a round is an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from veilrec.methods.base import Method, Problem, read_presets, unprotected
from veilrec.methods.news.common import DATASETS, NewsConfig, PlmConfig, news_of, news_ready
from veilrec.simulation.simulation import Trainer


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


_OF_FEDNEWSREC = "Sizes and data of --preset paper are those of FedNewsRec's comparison; its rates are printed nowhere."


PAPERS = TypeAdapter(dict[str, NewsPaper]).validate_python(
    yaml.safe_load(Path(__file__).with_name("baselines.yaml").read_text("utf-8"))
)


def trainer(settings: NewsConfig, problem: Problem, *, name: str) -> Trainer:
    """Make the centralised trainer of one baseline."""
    from veilrec.methods.fednewsrec.trainer import NewsTrainer

    row = PAPERS[name]
    return NewsTrainer(row.network or name, settings, problem, news_of(problem, name), abstracts=row.abstracts)


def _method(name: str, row: NewsPaper) -> Method[Any]:
    of_words = "_words-learnt" if row.word_vectors else "_no-word-vectors"
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
        guarantee=unprotected("Everybody's clicks and what they were shown lie in one place."),
        ready=news_ready,
        rounds=5 if row.sentences else 8,
        presets=read_presets("_sentences" if row.sentences else of_words),
        deviations=(*row.deviations, _OF_FEDNEWSREC),
        measured=("mind", "synthetic-news"),
    )


METHODS = {name: _method(name, row) for name, row in PAPERS.items()}
