"""Random: a score for every pair of user and item that depends on nothing else; where chance stands."""

from __future__ import annotations

import numpy as np
from numba import uint64

from veilrec import _draws
from veilrec._arrays import Floats, Indices, Offsets
from veilrec._csr import Csr
from veilrec._jit import jit
from veilrec.evaluate.scorer import Scorer
from veilrec.methods.base import EVERY_DATASET, Config, Method, Problem
from veilrec.methods.one_step import Arrays, OneStep
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.simulate.trainer import Trainer

_SEED = "seed"


class RandomConfig(Config):
    """Random has no settings."""


class RandomModel:
    """score(u, i) in [0, 1), keyed by (seed, user, item): computed when asked for, never kept."""

    def __init__(self, seed: int, n_items: int) -> None:
        self.seed = seed
        self.n_items = n_items

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        items = np.arange(self.n_items, dtype=np.int32)
        return self.score_some(users, np.tile(items, (len(users), 1)))

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C]."""
        out = np.empty(items.shape, np.float32)
        _score(self.seed, np.ascontiguousarray(users, np.int64), np.ascontiguousarray(items), out)
        return out

    def fold_in(self, histories: Csr) -> Scorer:
        """New users are numbered like the others."""
        return self


@jit
def _score(seed: int, users: Offsets, items: Indices, out: Floats) -> None:
    for case in range(items.shape[0]):
        start = _draws.stream(seed, _draws.MODEL, 0, users[case])
        for j in range(items.shape[1]):
            # 24 bits are all that a float32 below 1 can hold.
            out[case, j] = np.float32(_draws.word(start, items[case, j]) >> uint64(40)) * np.float32(2.0**-24)


def build(config: RandomConfig, problem: Problem) -> Trainer:
    """Nothing is learnt: the model is the seed."""

    def compute() -> Arrays:
        return {_SEED: np.array([problem.seed], np.int64)}

    return OneStep(compute, lambda arrays: RandomModel(int(arrays[_SEED][0]), problem.n_items))


def guarantee(config: RandomConfig) -> Guarantee:
    """Nothing is promised, because nothing is used."""
    return no_guarantee("No data is used, so there is nothing to protect and nothing to promise.")


METHOD = Method(
    name="random",
    kind="baseline",
    paper="none: the baseline that shows chance",
    model="none",
    summary="a random score for every pair of user and item",
    datasets=EVERY_DATASET,
    config=RandomConfig,
    build=build,
    guarantee=guarantee,
    rounds=1,
    measured=("ml-100k", "ml-1m"),
)
