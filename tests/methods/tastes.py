"""A made-up population with plain tastes, and every method trained on it once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from veilrec.data.population import Interactions, Population, Strings
from veilrec.evaluate.evaluator import evaluate
from veilrec.evaluate.protocols import make_split
from veilrec.evaluate.split import Split
from veilrec.methods.base import Problem, configure, make_trainer
from veilrec.methods.registry import METHODS, get
from veilrec.simulate.trainer import Trainer

ON_RATINGS = [name for name in METHODS if "synthetic-ratings" in get(name).datasets]  # the others need news
USERS, ITEMS, TASTES, SEED = 500, 300, 15, 5
COHORT = 50
# Enough to see that a method learns the made-up population, not to reach its best.
ROUNDS = {"fedmf": 120, "fedncf": 80, "fcf": 60, "mf": 20, "ncf": 25, "popularity": 1, "random": 1, "ease": 1}
OTHER_ROUNDS = 100
# FedNCF's defaults are for populations with more devices and rounds.
_NCF = ("local.user_rate=0.01", "local.item_rate=0.01", "local.network_rate=0.001")
# With 500 users an epsilon that protects leaves nothing to learn: these show that the parts work together.
_PRIVATE = ("privacy.epsilon=1000", "privacy.clip_norm=4", "server.rate=0.15")
_PRIVATE_NCF = (*_NCF, *_PRIVATE)
SETTINGS = {
    "fedncf": _NCF,
    "fedmf-lean": ("row_share=0.8",),
    "dp-fedmf": _PRIVATE,
    "dp-fedmf-svd": _PRIVATE,
    "dp-fedmf-topk": _PRIVATE,
    "priv-fedmf-sub": _PRIVATE,
    "dp-fedncf": _PRIVATE_NCF,
    "dp-fedncf-dgc": _PRIVATE_NCF,
    "priv-fedncf-sub": _PRIVATE_NCF,
    "priv-fedncf-sub-compress": _PRIVATE_NCF,
}


@cache
def population() -> Population:
    """Users of 3 of 15 tastes: 9 of 10 uses come from them, the rest from anywhere; popular items more often.

    The generator of `synthetic-ratings` is truer to life, but needs thousands of users to beat popularity.
    """
    generator = np.random.default_rng(SEED)
    taste_of = generator.permutation(np.arange(ITEMS) % TASTES)
    popularity = 1.0 / (generator.permutation(ITEMS) + 20.0)
    rows = []
    for _ in range(USERS):
        liked = np.isin(taste_of, generator.choice(TASTES, 3, replace=False))
        chances = popularity * np.where(liked, 9.0 / (popularity @ liked), 1.0 / popularity.sum())
        rows.append(generator.choice(ITEMS, generator.integers(12, 36), replace=False, p=chances / chances.sum()))
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    interactions = Interactions(offsets, np.concatenate(rows).astype(np.int32))
    names = [Strings.of(f"{kind}{n}" for n in range(count)) for kind, count in (("u", USERS), ("i", ITEMS))]
    return Population("tastes", *names, interactions)


@cache
def split(protocol: str) -> Split:
    return make_split(population(), protocol, seed=SEED)


def small_problem(users: int = 60, seed: int = SEED) -> Problem:
    """A few devices, so that a handful of rounds visits most of them more than once."""
    train = split("loo-99").train
    return Problem(train.take(np.arange(users)), ITEMS, seed, rounds=5)


def build(name: str, problem: Problem, settings: Sequence[str] = (), *, secret: bytes | None = None) -> Trainer:
    """Of a method, or of `method:calibration`."""
    name, _, calibration = name.partition(":")
    method = get(name)
    if calibration:
        settings = [*settings, f"calibration={calibration}"]
    small = [f"cohort.size={COHORT}"] if method.kind == "federated" else []
    config, _ = configure(method, preset="tuned", dataset="", settings=[*small, *settings])
    return make_trainer(method, config, problem, secret=secret)


@cache
def trained(name: str, protocol: str) -> Trainer:
    cut = split(protocol)
    rounds = ROUNDS.get(name, OTHER_ROUNDS)
    trainer = build(name, Problem(cut.train, cut.n_items, SEED, rounds), SETTINGS.get(name, ()))
    for number in range(rounds):
        trainer.step(number)
    return trainer


@cache
def measured(name: str, protocol: str) -> dict[str, float]:
    cut = split(protocol)
    return evaluate(cut.test, cut.train, trained(name, protocol).model())


def saved_state(trainer: Trainer) -> dict[str, Any]:
    """A copy that later steps do not change."""
    return {name: values.copy() for name, values in trainer.state().items()}


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Bit for bit."""
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and np.array_equal(left[name], right[name]) for name in left
    )
