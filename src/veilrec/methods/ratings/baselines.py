"""Popularity and chance: what any method has to beat, and where nothing stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec._csr import Csr
from veilrec.device.rankers import Arrays, PopularityRanker, RandomRanker, Ranker
from veilrec.errors import VeilrecError
from veilrec.methods.base import EVERY_DATASET, Config, Exemption, Method, Problem, Trial
from veilrec.models.scores import Model
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.simulate.trainer import ModelParts, StepReport, Trainer


class OneStep:
    """A trainer without rounds: its first step does the whole work; further ones change nothing."""

    def __init__(self, compute: Callable[[], Arrays], ranker: Ranker, histories: Csr) -> None:
        self._compute = compute
        self._ranker = ranker
        self._histories = histories
        self._arrays: Arrays | None = None

    def step(self, number: int) -> StepReport:
        """Compute at step 0."""
        if number == 0:
            self._arrays = self._compute()
        return StepReport()

    def parts(self) -> ModelParts:
        """What was computed."""
        if self._arrays is None:
            raise VeilrecError("there is no model before step 0: train for at least 1 round")
        return ModelParts(self._ranker, self._arrays)

    def model(self) -> Model:
        """The model of what was computed."""
        return self.parts().model(self._histories)

    def state(self) -> dict[str, NDArray[Any]]:
        """What was computed; nothing before step 0."""
        return dict(self._arrays or {})

    def load_state(self, state: Arrays, steps_done: int) -> None:
        """Go on from a state."""
        self._arrays = {name: values.copy() for name, values in state.items()} if steps_done else None


class NoSettings(Config):
    """A method without settings."""


def popularity_trainer(config: NoSettings, problem: Problem) -> Trainer:
    """Count once."""

    def compute() -> Arrays:
        uses = np.bincount(problem.train.items, minlength=problem.n_items).astype(np.float32)
        return {PopularityRanker.USES: uses}

    return OneStep(compute, PopularityRanker(), problem.train)


def popularity_guarantee(config: NoSettings) -> Guarantee:
    """Nothing is promised."""
    return no_guarantee("The counts are exact and made from everybody's data in one place.")


POPULARITY = Method(
    name="popularity",
    kind="baseline",
    trial=Trial(rounds=1),
    exemptions=(
        Exemption("seed", "Nothing is drawn: items are counted."),
        Exemption("learns", "It is what the others are compared with."),
    ),
    paper="none: the baseline that every paper needs",
    model="counts",
    summary="the number of users who used an item, the same list for everybody; see private-popularity",
    private_form="private-popularity",
    datasets=EVERY_DATASET,
    config=NoSettings,
    trainer=popularity_trainer,
    guarantee=popularity_guarantee,
    rounds=1,
    measured=("ml-100k", "ml-1m"),
)


def random_trainer(config: NoSettings, problem: Problem) -> Trainer:
    """Nothing is learnt: the model is the seed."""

    def compute() -> Arrays:
        return {RandomRanker.SEED: np.array([problem.public_seed], np.int64)}

    return OneStep(compute, RandomRanker(problem.n_items), problem.train)


def random_guarantee(config: NoSettings) -> Guarantee:
    """Nothing is promised, because nothing is used."""
    return no_guarantee("No data is used, so there is nothing to protect and nothing to promise.")


RANDOM = Method(
    name="random",
    kind="baseline",
    trial=Trial(rounds=1),
    exemptions=(Exemption("learns", "It learns nothing, on purpose."),),
    paper="none: the baseline that shows chance",
    model="none",
    summary="a random score for every pair of user and item",
    datasets=EVERY_DATASET,
    config=NoSettings,
    trainer=random_trainer,
    guarantee=random_guarantee,
    rounds=1,
    measured=("ml-100k", "ml-1m"),
)
