"""Popularity: every user gets the items that most users used; what any method has to beat."""

from __future__ import annotations

import numpy as np

from veilrec._arrays import Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec.evaluate.scorer import Scorer
from veilrec.methods.base import EVERY_DATASET, Config, Method, Problem
from veilrec.methods.one_step import Arrays, OneStep
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.simulate.trainer import Trainer

_USES = "uses"


class PopularityConfig(Config):
    """Popularity has no settings."""


class PopularityModel:
    """score(u, i) = the number of users who used item i in training, the same for everybody."""

    def __init__(self, uses: Floats) -> None:
        self.uses = uses
        self.n_items = len(uses)

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        return np.tile(self.uses, (len(users), 1))

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C]."""
        scores: Floats = self.uses[items]
        return scores

    def fold_in(self, histories: Csr) -> Scorer:
        """New users get the same list as all others."""
        return self


def build(config: PopularityConfig, problem: Problem) -> Trainer:
    """Count once."""

    def compute() -> Arrays:
        return {_USES: np.bincount(problem.train.items, minlength=problem.n_items).astype(np.float32)}

    return OneStep(compute, lambda arrays: PopularityModel(arrays[_USES]))


def guarantee(config: PopularityConfig) -> Guarantee:
    """Nothing is promised."""
    return no_guarantee("The counts are exact and made from everybody's data in one place.")


METHOD = Method(
    name="popularity",
    kind="baseline",
    paper="none: the baseline that every paper needs",
    model="counts",
    summary="the number of users who used an item, the same list for everybody",
    datasets=EVERY_DATASET,
    config=PopularityConfig,
    build=build,
    guarantee=guarantee,
    rounds=1,
    measured=("ml-100k", "ml-1m"),
)
