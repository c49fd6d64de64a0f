"""EASE: the linear model that few methods beat on film ratings; the reference for what privacy costs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from veilrec.device.rankers import Arrays, EaseRanker
from veilrec.errors import BadInput
from veilrec.methods.base import EVERY_DATASET, Config, Exemption, Method, Problem, Trial
from veilrec.methods.ratings.baselines import OneStep
from veilrec.models.ease import ease_weights
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.simulate.trainer import Trainer

MOST_ITEMS = 20_000  # 4.8 GB: a float64 and a float32 for every pair of items


class EaseConfig(Config):
    """Settings of EASE."""

    # lambda: what is added to the diagonal of the Gram matrix
    ridge: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 500.0  # lambda: larger ones keep weights small


def trainer(config: EaseConfig, problem: Problem) -> Trainer:
    """Solve once."""
    if problem.n_items > MOST_ITEMS:
        raise BadInput(
            f"ease keeps numbers for every pair of items, and {problem.n_items} items would take"
            f" {problem.n_items**2 * 12 / 1e9:.0f} GB: it takes at most {MOST_ITEMS} items;"
            " drop rare items, or use mf or fedmf"
        )

    def compute() -> Arrays:
        return {EaseRanker.WEIGHTS: ease_weights(problem.train, problem.n_items, config.ridge)}

    return OneStep(compute, EaseRanker(), problem.train)


def guarantee(config: EaseConfig) -> Guarantee:
    """Nothing is promised."""
    return no_guarantee("Everybody's data lies in one place, and the weights are exact functions of it.")


METHOD = Method(
    name="ease",
    kind="centralised",
    private_relative="dp-fedmf",
    trial=Trial(rounds=1),
    exemptions=(Exemption("seed", "Nothing is drawn: the weights are the solution of an equation."),),
    paper="Steck, Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019",
    model="linear item-item model",
    summary="closed-form weights between all pairs of items, learnt from everybody's data in one place",
    datasets=tuple(name for name in EVERY_DATASET if name not in ("mind", "adressa", "ebnerd")),  # too many items
    config=EaseConfig,
    trainer=trainer,
    guarantee=guarantee,
    rounds=1,
    presets={"tuned@ml-100k": {"ridge": 300.0}, "tuned@ml-1m": {"ridge": 700.0}},
    measured=("ml-100k", "ml-1m"),
)
