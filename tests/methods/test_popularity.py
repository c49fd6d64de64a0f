"""Popularity against counting by hand."""

from __future__ import annotations

import numpy as np

from veilrec._csr import Csr
from veilrec.methods.base import Problem
from veilrec.methods.popularity import METHOD, PopularityConfig

TRAIN = Csr(np.array([0, 2, 5, 5]), np.array([1, 2, 2, 0, 1], np.int32))


def test_scores_are_the_counts_of_training_for_everybody() -> None:
    trainer = METHOD.build(PopularityConfig(), Problem(TRAIN, 5, seed=1))
    trainer.step(0)
    model = trainer.model()
    assert model.score_all(np.array([0, 2])).tolist() == [[1, 2, 2, 0, 0]] * 2
    assert model.score_some(np.array([1]), np.array([[4, 1, 0]], np.int32)).tolist() == [[0, 2, 1]]


def test_a_new_user_gets_the_same_list() -> None:
    trainer = METHOD.build(PopularityConfig(), Problem(TRAIN, 5, seed=1))
    trainer.step(0)
    folded = trainer.model().fold_in(Csr(np.array([0, 1]), np.array([4], np.int32)))
    assert folded.score_all(np.array([0])).tolist() == [[1, 2, 2, 0, 0]]
