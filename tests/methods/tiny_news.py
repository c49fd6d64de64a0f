"""A small synthetic news population, and every news method built on it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from veilrec.data.population import Population
from veilrec.data.synthetic_news import generate
from veilrec.evaluation.protocols import make_split
from veilrec.evaluation.split import Split
from veilrec.methods.base import Method, NewsData, Problem, configure, make_trainer
from veilrec.methods.registry import get
from veilrec.simulation.simulation import Trainer

WITHOUT_SENTENCES = ("nrms", "naml", "lstur", "lstur-con", "npa", "ebnr", "dkn", "dan", "fm", "dfm", "cennewsrec")
SMALL = ("size.word_dim=8", "size.heads=2", "size.head_dim=4", "size.attention=4", "size.category_dim=4")


@cache
def population() -> Population:
    return generate(users=80, news=300, days=3, seed=3)


@cache
def split() -> Split:
    return make_split(population(), "mind", seed=0)


def method(name: str) -> Method[Any]:
    return get(name)


def problem(seed: int = 1, rounds: int = 5) -> Problem:
    cut, catalogue = split(), population().catalogue
    assert catalogue is not None
    assert cut.train_impressions is not None
    return Problem(cut.train, cut.n_items, seed, rounds, NewsData(catalogue, cut.train_impressions))


def build(name: str, settings: Sequence[str] = (), *, seed: int = 1, secret: bytes | None = None) -> Trainer:
    chosen = method(name)
    config, _ = configure(chosen, preset="tuned", dataset="", settings=[*SMALL, *settings])
    return make_trainer(chosen, config, problem(seed), secret=secret)
