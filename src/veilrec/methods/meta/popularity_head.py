"""Private popularity with a head that devices learn by themselves: no rounds of training at all.

Everybody votes once for what they use (one vote a person, shared among the items), and the votes are released with
noise. A device then learns a linear head over the public features of the items, from zero, with the logarithm of the
votes as an offset. Nothing personal ever leaves it, so that the votes are all that the budget pays for.
"""

from __future__ import annotations

import numpy as np

from veilrec.device.feature_learner import MetaSettings
from veilrec.device.feature_ranker import FeatureRanker
from veilrec.device.votes import VoteLearner
from veilrec.errors import BadInput
from veilrec.features import Side
from veilrec.methods.base import Config, Method, Problem, Trial
from veilrec.methods.meta.common import WITH_FEATURES, FeatureChoice, chosen_features
from veilrec.methods.meta.dp_privrec import LISTS_ARE_PUBLIC
from veilrec.methods.private import PrivacySettings, devices_with_data, noisy_sum, proven
from veilrec.models.feature_inputs import POPULARITY, Inputs
from veilrec.plan import Plan
from veilrec.privacy.guarantee import Guarantee
from veilrec.server.cohorts import CohortSettings
from veilrec.server.optimise import ServerRate
from veilrec.updates import Schema, Tensor

ON_THE_DEVICE = "Only the sum of everybody's votes is released; the head that ranks for a user never leaves the device."
# Chosen on the validation users of ML-1M, seed 0, and checked on those of Frappe, seeds 0 to 2.
HEAD = MetaSettings(
    loss="softmax", steps=40, batch=0, negatives=1024, rate=0.3, needed=40.0, proximal=0.03, proximal_term="squared"
)


class PopularityHeadConfig(Config):
    """Settings of private popularity with a head."""

    features: FeatureChoice = FeatureChoice()
    local: MetaSettings = HEAD  # how a device learns its head
    privacy: PrivacySettings = PrivacySettings(epsilon=1.0, clip_norm=1.0)
    cohort: CohortSettings = CohortSettings(size=0, sampling="poisson")


def plan(config: PopularityHeadConfig, problem: Problem) -> Plan:
    """Put the parts together."""
    if config.local.loss == "rating":
        raise BadInput("popularity-head knows what was used, and no ratings: leave local.loss at softmax, or logistic")
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
        devices=devices_with_data(problem),
        keeps_state=False,
    )
    return Plan(
        schema=whole,
        start={tensor.name: np.zeros(tensor.shape, np.float32) for tensor in whole.tensors},
        learner=VoteLearner(POPULARITY),
        mechanism=mechanism,
        rounds=problem.rounds,
        cohort=config.cohort,
        aggregation="sum",
        server=ServerRate(),
        ranker=FeatureRanker(inputs, (), "relu", config.local, problem.public_seed),
        devices_at_once=1000,
    )


def guarantee(config: PopularityHeadConfig) -> Guarantee:
    """User-level over the whole run."""
    p = config.privacy
    return proven(p.epsilon, p.delta, config.cohort, ON_THE_DEVICE, LISTS_ARE_PUBLIC, keeps_state=False)


METHOD = Method(
    name="popularity-head",
    kind="federated",
    trial=Trial(rounds=1, settings=("privacy.epsilon=100", "cohort.size=0"), times_popularity=1.4),
    paper="ours; the head as in PrivRec, without its rounds",
    model="votes, and a linear head over features",
    summary="everybody's votes with noise, once; each device learns its own head over public features",
    datasets=WITH_FEATURES,
    config=PopularityHeadConfig,
    plan=plan,
    guarantee=guarantee,
    rounds=1,
    rounds_are_fixed=True,
    measured=("ml-1m", "frappe"),
)
