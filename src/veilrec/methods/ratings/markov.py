"""A Markov chain over items: what is used next depends on what was used last; a reference that knows the order.

The chances of the next item are counted over everybody's histories in the order of time, smoothed with popularity; the
rows of the latest few items are added up, older ones for less. Items that were used in the same second stand in the
order of the file, for this method as for every other one that reads the order.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from veilrec.device.neighbour_ranker import NeighbourRanker, arrays_of
from veilrec.device.rankers import Arrays
from veilrec.methods.base import EVERY_DATASET, Config, Exemption, Method, Problem, Trial
from veilrec.methods.ratings.baselines import OneStep
from veilrec.models.neighbours import transitions
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.simulate.trainer import Trainer

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]
MOST_NEIGHBOURS = 10_000


class MarkovConfig(Config):
    """Settings of the Markov chain."""

    smoothing: Positive = 20.0  # transitions by popularity alone that every item is taken to have had
    decay: Share = 0.75  # of what a row counts, for each item that was used after it
    latest: PositiveInt = 30  # items of a history whose rows count
    reach: PositiveInt = 10  # how many items later still counts as next; 1: a chain of the first order, as published
    fade: Share = 0.85  # of what a later one counts, for each in between
    neighbours: Annotated[int, Field(ge=1, le=MOST_NEIGHBOURS)] = 1000  # of a row, at most: the likeliest


def trainer(config: MarkovConfig, problem: Problem) -> Trainer:
    """Count once."""

    def compute() -> Arrays:
        return arrays_of(
            transitions(
                problem.train,
                problem.n_items,
                reach=config.reach,
                fade=config.fade,
                smoothing=config.smoothing,
                most=config.neighbours,
            )
        )

    return OneStep(compute, NeighbourRanker(config.decay, config.latest), problem.train)


def guarantee(config: MarkovConfig) -> Guarantee:
    """Nothing is promised."""
    return no_guarantee("Everybody's data lies in one place, and the counts are exact.")


METHOD = Method(
    name="markov",
    kind="centralised",
    private_relative="private-gram",
    trial=Trial(rounds=1, settings=("reach=5", "fade=1"), times_popularity=1.4),
    exemptions=(Exemption("seed", "Nothing is drawn: transitions are counted."),),
    paper="Rendle et al., Factorizing Personalized Markov Chains, WWW 2010: the chain without its factors",
    model="transitions between items",
    summary="how often an item is used after another, from everybody's data in one place; follows the latest items",
    datasets=EVERY_DATASET,
    config=MarkovConfig,
    trainer=trainer,
    guarantee=guarantee,
    rounds=1,
    measured=("ml-100k", "ml-1m"),
)
