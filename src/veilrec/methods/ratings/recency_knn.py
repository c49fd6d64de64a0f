"""Item neighbours with recency: items that the same people use, followed from the latest of a history.

Similarity is the cosine of the users of two items, whatever the order; an item of the own history counts less for each
that was used after it. With decay 1 the order is not read, and this is plain item-based filtering.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from veilrec.device.neighbour_ranker import NeighbourRanker, arrays_of
from veilrec.device.rankers import Arrays
from veilrec.methods.base import EVERY_DATASET, Config, Exemption, Method, Problem, Trial
from veilrec.methods.ratings.baselines import OneStep
from veilrec.methods.ratings.markov import MOST_NEIGHBOURS, Share
from veilrec.models.neighbours import similarities
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.simulate.trainer import Trainer


class RecencyKnnConfig(Config):
    """Settings of neighbours with recency."""

    decay: Share = 0.6  # of what an item of the history counts, for each that was used after it
    latest: PositiveInt = 50  # items of a history that count
    shrinkage: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = (
        0.0  # added below the cosine: larger ones doubt items of few users
    )
    neighbours: Annotated[int, Field(ge=1, le=MOST_NEIGHBOURS)] = 1000  # of an item, at most: the nearest


def trainer(config: RecencyKnnConfig, problem: Problem) -> Trainer:
    """Count once."""

    def compute() -> Arrays:
        return arrays_of(
            similarities(problem.train, problem.n_items, shrinkage=config.shrinkage, most=config.neighbours)
        )

    return OneStep(compute, NeighbourRanker(config.decay, config.latest), problem.train)


def guarantee(config: RecencyKnnConfig) -> Guarantee:
    """Nothing is promised."""
    return no_guarantee("Everybody's data lies in one place, and the similarities are exact.")


METHOD = Method(
    name="recency-knn",
    kind="centralised",
    private_relative="private-gram",
    trial=Trial(rounds=1, settings=("decay=1",)),
    exemptions=(Exemption("seed", "Nothing is drawn: uses are counted."),),
    paper="Sarwar et al., Item-Based Collaborative Filtering, WWW 2001; recency as in Ding and Li, Time Weight"
    " Collaborative Filtering, CIKM 2005",
    model="similarities between items",
    summary="items that the same people use, from everybody's data in one place; the latest of a history count most",
    datasets=EVERY_DATASET,
    config=RecencyKnnConfig,
    trainer=trainer,
    guarantee=guarantee,
    rounds=1,
    measured=("ml-100k", "ml-1m"),
)
