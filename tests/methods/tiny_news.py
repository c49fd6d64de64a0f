"""A small synthetic news population, and every news method built on it."""

from functools import cache

from veilrec.data.synthetic_news import generate
from veilrec.evaluation.protocols import make_split
from veilrec.methods.base import NewsData, Problem, configure, make_trainer
from veilrec.methods.registry import get

SMALL = ("size.word_dim=8", "size.heads=2", "size.head_dim=4", "size.attention=4", "size.category_dim=4")


@cache
def population():
    return generate(users=80, news=300, days=3, seed=3)


@cache
def split():
    return make_split(population(), "mind", seed=0)


def method(name):
    return get(name)


def problem(seed=1, rounds=5):
    cut, catalogue = split(), population().catalogue
    return Problem(cut.train, cut.n_items, seed, rounds, NewsData(catalogue, cut.train_impressions))


def build(name, settings=(), *, seed=1, secret=None):
    chosen = method(name)
    config, _ = configure(chosen, preset="tuned", dataset="", settings=[*SMALL, *settings])
    return make_trainer(chosen, config, problem(seed), secret=secret)
