"""Popularity and chance: what any method has to beat, and where nothing stands.

Private popularity: how much everybody uses each item, released once with noise.

Every client sends a one for each of its items; all ones of a client together are cut to one L2 norm, so that somebody
with n items gives each of them 1 / sqrt(n). The sum gets Gaussian noise before anything is done with it, and that is
the model: the same list for everybody.

Chosen on the validation items of seed 1 of ML-100K and ML-1M at epsilon 0.1 to 8: cutting the norm to 1, 3 or 5 ranks
alike, and better than to 7 or more, than a random choice of 10, 50 or 100 items a user (with Gaussian noise), and than
one of 1, 3, 10 or 50 with Laplace noise, whose sensitivity grows with the number and not with its root. On ML-1M at
epsilon 0.25, nDCG@10 is 0.242, 0.226 with 100 items and Gaussian noise, and 0.148 with one item and Laplace noise;
exact counts give 0.249. From epsilon 1 on, cut votes rank above exact counts: long histories count for less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec.client import local_training
from veilrec.client.rankers import Arrays, ModelParts, OwnHistoryRanker, PopularityRanker, RandomRanker, Ranker
from veilrec.core.csr import Csr
from veilrec.core.errors import VeilrecError
from veilrec.core.plan import Plan
from veilrec.methods.base import EVERY_DATASET, Config, Method, Problem, described, unprotected
from veilrec.methods.private import PrivacySettings, proven_sums, sum_of_everybody
from veilrec.models.scores import Model
from veilrec.server.aggregation import ServerRate
from veilrec.server.round_specs import CohortSettings
from veilrec.simulation.simulation import StepReport, Trainer


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

    uses = np.bincount(problem.train.items, minlength=problem.n_items).astype(np.float32)
    return OneStep(lambda: {PopularityRanker.USES: uses}, PopularityRanker(), problem.train)


POPULARITY = Method(
    **described("popularity"),
    datasets=EVERY_DATASET,
    config=NoSettings,
    trainer=popularity_trainer,
    guarantee=unprotected("The counts are exact and made from everybody's data in one place."),
)


def own_history_trainer(config: NoSettings, problem: Problem) -> Trainer:
    """Count once; everybody's own uses come first."""

    uses = np.bincount(problem.train.items, minlength=problem.n_items).astype(np.float32)
    return OneStep(lambda: {PopularityRanker.USES: uses}, OwnHistoryRanker(), problem.train)


OWN_HISTORY = Method(
    **described("own-history"),
    datasets=EVERY_DATASET,
    config=NoSettings,
    trainer=own_history_trainer,
    guarantee=unprotected("The counts are exact and made from everybody's data in one place."),
)


def random_trainer(config: NoSettings, problem: Problem) -> Trainer:
    """Nothing is learnt: the model is the seed."""

    seed = np.array([problem.public_seed], np.int64)
    return OneStep(lambda: {RandomRanker.SEED: seed}, RandomRanker(problem.n_items), problem.train)


RANDOM = Method(
    **described("random"),
    datasets=EVERY_DATASET,
    config=NoSettings,
    trainer=random_trainer,
    guarantee=unprotected("No data is used, so there is nothing to protect and nothing to promise."),
)


ONE_LIST = "Only the sum of everybody's cut votes is released; the list is the same for everybody."


class PrivatePopularityConfig(Config):
    """Settings of private popularity."""

    privacy: PrivacySettings = PrivacySettings(epsilon=1.0, clip_norm=1.0)
    # everybody once; poisson: whoever is added or removed comes or goes with one vote
    cohort: CohortSettings = CohortSettings(size=0, sampling="poisson")


def plan(config: PrivatePopularityConfig, problem: Problem) -> Plan:
    """Put the parts together."""
    schema = local_training.schema(problem.n_items)
    return Plan(
        schema=schema,
        start=local_training.start_weights(problem.n_items),
        trainer=local_training.VoteLocalTrainer(),
        mechanism=sum_of_everybody(config, problem, schema),
        rounds=problem.rounds,
        cohort=config.cohort,
        aggregation="sum",
        server=ServerRate(),
        ranker=PopularityRanker(local_training.ITEMS),
        clients_per_batch=1000,
    )


guarantee = proven_sums(ONE_LIST)

METHOD = Method(
    **described("private-popularity"),
    datasets=EVERY_DATASET,
    config=PrivatePopularityConfig,
    plan=plan,
    guarantee=guarantee,
)
