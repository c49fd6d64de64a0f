"""PrivRec-CEN: the same network and the same adaptation with everybody's data in one place (PrivRec, section 4.1).

Every user is a task, and a step takes the next M of them in a random order that is gone through again and again: what
PrivRec would be if no device had to be drawn, reached or heard.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec import _draws
from veilrec.device.feature_learner import MetaLearner
from veilrec.device.learner import Cohort
from veilrec.methods.base import Method, Problem, Trial
from veilrec.methods.meta import common
from veilrec.methods.meta.common import WITH_FEATURES, MetaConfig
from veilrec.methods.meta.privrec import PRESETS, READINGS
from veilrec.models.feature_inputs import POPULARITY
from veilrec.models.scores import Model
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.privacy.mechanisms.votes import VotesInTheClear
from veilrec.simulate.trainer import ModelParts, StepReport
from veilrec.updates import Round


class CentralReptile:
    """Reptile over tasks that all lie in one place."""

    def __init__(self, config: MetaConfig, problem: Problem) -> None:
        made = common.parts(config, problem, common.chosen_features(problem, config.features))
        self.config, self.problem, self.ranker = config, problem, made.ranker
        self.data = common.devices(config, problem)
        self.weights = {name: values.copy() for name, values in made.start.items()}
        self.names = tuple(made.net.tensors)
        self.learner = MetaLearner(made.adapter)
        everybody = np.flatnonzero(problem.train.lengths() > 0)
        order = np.random.default_rng([problem.public_seed, _draws.COHORT]).permutation(len(everybody))
        self.tasks = everybody[order].astype(np.int64)
        self.at_once = config.cohort.among(len(self.tasks))
        if config.model.popularity:
            mechanism = VotesInTheClear(length=problem.n_items)
            votes = mechanism.count(problem.train, np.arange(len(problem.train)), seed=0, period=0) * mechanism.step
            self.weights[POPULARITY][...] = votes.reshape(-1, 1)

    def step(self, number: int) -> StepReport:
        """One update from M tasks."""
        chosen = np.sort(self.tasks[(number * self.at_once + np.arange(self.at_once)) % len(self.tasks)])
        cohort = Cohort(chosen, self.data.take(chosen), {}, self.problem.public_seed)
        learned = self.learner.learn(cohort, self.weights, Round(number))
        rate = np.float32(self.config.server.rate)
        for name in self.names:
            self.weights[name] += rate * learned.uploads.dense[name].mean(axis=0, dtype=np.float64).astype(np.float32)
        return StepReport(loss=float(learned.loss.mean()))

    def parts(self) -> ModelParts:
        """The network, and what is known of the users."""
        return ModelParts(self.ranker, self.weights, self.data.kept)

    def model(self) -> Model:
        """The model as it stands."""
        return self.parts().model(self.problem.train)

    def state(self) -> dict[str, NDArray[Any]]:
        """All weights."""
        return dict(self.weights)

    def load_state(self, state: Mapping[str, NDArray[Any]], steps_done: int) -> None:
        """Go on from a state."""
        for name, values in self.weights.items():
            values[...] = state[name]


def guarantee(config: MetaConfig) -> Guarantee:
    """Nothing is promised."""
    return no_guarantee("Everybody's data lies in one place.")


METHOD = Method(
    name="privrec-cen",
    kind="centralised",
    private_relative="dp-privrec",
    trial=Trial(rounds=10),
    paper="Wang et al., Fast-adapting and Privacy-preserving Federated Recommender System, VLDB Journal 2021",
    model="network over features",
    summary="privrec with everybody's data in one place",
    datasets=WITH_FEATURES,
    config=MetaConfig,
    trainer=CentralReptile,
    guarantee=guarantee,
    rounds=40,
    evaluations=4,
    presets=PRESETS,
    deviations=READINGS,
    measured=("ml-1m", "frappe"),
)
