"""Baselines of PrivRec, and popularity-head.

FOFL-SELF (Jalalirad et al. 2019): Reptile over item ids, without side information and proximal term.

NN-SELF (Chen et al. 2018, eq. 4 and 5 of PrivRec): MAML with second-order gradients; SELF means that a new user adapts
to the own support set alone.

    theta <- theta_0 - alpha_1 grad L(theta_0, support)                       on the client (alpha_1: `local.rate`)
    theta_0 <- theta_0 - alpha_2 sum over clients of grad_theta_0 L(theta, query)           (alpha_2: `server.rate`)

PrivRec-CEN (section 4.1): PrivRec's network and adaptation with all data in one place. Every user is a task; a step
takes the next M of them in a random order that repeats.

popularity-head (ours): votes, one per person and shared among the items, are released once with noise. Each client
then trains a linear head over public item features, from zero, with log-votes as offset. The votes are all that the
budget pays for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec.client.local_training import Cohort, VoteLocalTrainer
from veilrec.client.rankers import ModelParts
from veilrec.client.reptile import FeatureRanker, MetaLocalTrainer, MetaSettings
from veilrec.core import rng
from veilrec.core.errors import BadInput
from veilrec.core.features import Side
from veilrec.core.plan import Plan
from veilrec.core.schema import RoundSpec, Schema, Tensor
from veilrec.methods.base import Config, Method, Problem, described, own_items, unprotected
from veilrec.methods.private import PrivacySettings, clients_with_data, noisy_sum, proven
from veilrec.methods.privrec import common
from veilrec.methods.privrec.common import WITH_FEATURES, WITH_ITEMS, FeatureChoice, MetaConfig, chosen_features
from veilrec.methods.privrec.dp_privrec import LISTS_ARE_PUBLIC
from veilrec.methods.privrec.privrec import METHOD as PRIVREC
from veilrec.models.feature_net import POPULARITY, Inputs
from veilrec.models.scores import Model
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.reports import PlainVotes
from veilrec.server.aggregation import ServerRate
from veilrec.server.round_specs import CohortSettings
from veilrec.simulation.simulation import StepReport


def fofl_self_plan(config: MetaConfig, problem: Problem) -> Plan:
    """Assemble FOFL-SELF."""
    made = common.parts(config, problem, common.item_ids(problem))
    return common.build(config, problem, made, **common.plaintext_votes(config, problem))


FOFL_SELF = replace(
    PRIVREC, **described("fofl-self"), datasets=WITH_ITEMS, plan=fofl_self_plan, clients=common.clients_with_ids
)


def nn_self_plan(config: MetaConfig, problem: Problem) -> Plan:
    """Assemble NN-SELF."""
    if config.local.reads_ratings or config.local.batch != 0 or config.local.proximal:
        raise BadInput(
            "nn-self adapts to whole support sets, without ratings and proximal term: leave local.batch and"
            " local.proximal at 0, local.positives at used, and local.loss at logistic or softmax"
        )
    from veilrec.client.maml import MamlLocalTrainer  # torch: a list of methods needs none

    made = common.parts(config, problem, common.chosen_features(problem, config.features))
    trainer = MamlLocalTrainer(made.adapter)
    return common.build(config, problem, made, trainer=trainer, **common.plaintext_votes(config, problem))


NN_SELF = replace(PRIVREC, **described("nn-self"), plan=nn_self_plan)


class CentralReptile:
    """Centralised Reptile over the users as tasks."""

    def __init__(self, config: MetaConfig, problem: Problem) -> None:
        made = common.parts(config, problem, common.chosen_features(problem, config.features))
        self.config, self.problem, self.ranker = config, problem, made.ranker
        self.data = common.clients(config, problem)
        self.weights = {name: values.copy() for name, values in made.start.items()}
        self.names = tuple(made.net.tensors)
        self.trainer = MetaLocalTrainer(made.adapter)
        everybody = np.flatnonzero(problem.train.lengths() > 0)
        order = np.random.default_rng([problem.public_seed, rng.COHORT]).permutation(len(everybody))
        self.tasks = everybody[order].astype(np.int64)
        self.at_once = config.cohort.among(len(self.tasks))
        if config.model.popularity:
            mechanism = PlainVotes(length=problem.n_items)
            votes = mechanism.count(problem.train, np.arange(len(problem.train)), seed=0, period=0) * mechanism.step
            self.weights[POPULARITY][...] = votes.reshape(-1, 1)

    def step(self, number: int) -> StepReport:
        """Make one update from M tasks."""
        chosen = np.sort(self.tasks[(number * self.at_once + np.arange(self.at_once)) % len(self.tasks)])
        cohort = Cohort(chosen, self.data.take(chosen), {}, self.problem.public_seed)
        learned = self.trainer.learn(cohort, self.weights, RoundSpec(number))
        rate = np.float32(self.config.server.rate)
        for name in self.names:
            self.weights[name] += rate * learned.updates.dense[name].mean(axis=0, dtype=np.float64).astype(np.float32)
        return StepReport(loss=float(learned.loss.mean()))

    def parts(self) -> ModelParts:
        """The network, and what is known of the users."""
        return ModelParts(self.ranker, self.weights, self.data.kept)

    def model(self) -> Model:
        """Model with the current weights."""
        return self.parts().model(self.problem.train)

    def state(self) -> dict[str, NDArray[Any]]:
        """All weights."""
        return dict(self.weights)

    def load_state(self, state: Mapping[str, NDArray[Any]], steps_done: int) -> None:
        """Resume from a saved state."""
        for name, values in self.weights.items():
            values[...] = state[name]


PRIVREC_CEN = replace(
    PRIVREC,
    **described("privrec-cen"),
    trainer=CentralReptile,
    guarantee=unprotected("Everybody's data lies in one place."),
    plan=None,
    clients=own_items,
)


ON_THE_CLIENT = "Only the sum of everybody's votes is released; the head that ranks for a user is made on the client."
# Chosen on the validation users of ML-1M, seed 0, and checked on those of Frappe, seeds 0 to 2.
HEAD = MetaSettings(
    loss="softmax", steps=40, batch=0, negatives=1024, rate=0.3, needed=40.0, proximal=0.03, proximal_term="squared"
)


class PopularityHeadConfig(Config):
    """Settings of private popularity with a head."""

    features: FeatureChoice = FeatureChoice()
    local: MetaSettings = HEAD  # how a client learns its head
    privacy: PrivacySettings = PrivacySettings(epsilon=1.0, clip_norm=1.0)
    cohort: CohortSettings = CohortSettings(size=0, sampling="poisson")


def popularity_head_plan(config: PopularityHeadConfig, problem: Problem) -> Plan:
    """Assemble popularity-head: one round of noisy votes."""
    if config.local.reads_ratings:
        raise BadInput(
            "popularity-head knows what was used, and no ratings: leave local.loss at softmax, or logistic, and"
            " local.positives at used"
        )
    items = chosen_features(problem, config.features).items
    nobody = Side((), np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32))
    inputs = Inputs(nobody, items, embedding=0, popularity=True)
    net = inputs.net(())
    votes = Schema((Tensor(POPULARITY, (problem.n_items, 1), by_row=True),))
    head = tuple(Tensor(name, shape, by_row=False, learnt=False) for name, shape in net.tensors.items())
    whole = Schema((*votes.tensors, *head))
    mechanism = noisy_sum(
        config.privacy,
        config.cohort,
        whole,
        rounds=problem.rounds,
        clients=clients_with_data(problem),
        keeps_state=False,
    )
    return Plan(
        schema=whole,
        start={tensor.name: np.zeros(tensor.shape, np.float32) for tensor in whole.tensors},
        trainer=VoteLocalTrainer(POPULARITY),
        mechanism=mechanism,
        rounds=problem.rounds,
        cohort=config.cohort,
        aggregation="sum",
        server=ServerRate(),
        ranker=FeatureRanker(inputs, (), "relu", config.local, problem.public_seed),
        clients_per_batch=1000,
    )


def popularity_head_guarantee(config: PopularityHeadConfig) -> Guarantee:
    """Guarantee of the votes: per user, over the whole run."""
    return proven(config.privacy, config.cohort, ON_THE_CLIENT, LISTS_ARE_PUBLIC, keeps_state=False)


POPULARITY_HEAD = Method(
    **described("popularity-head"),
    datasets=WITH_FEATURES,
    config=PopularityHeadConfig,
    plan=popularity_head_plan,
    guarantee=popularity_head_guarantee,
)
