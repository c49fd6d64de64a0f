"""DPALS: private alternating least squares; items are solved from noisy sums over everybody, users on their clients.

Everybody votes for their items first (`VoteReports`, for a share of the epsilon). In each of a few rounds a client
solves item vectors from the noisy sums of the last round, its own vector u from these and its history, and sends
u u^T and, for each of its items, u with a weight (and u u^T with a weight, where `gramians` asks for it). All of a
message is as long as the clip norm, whose square is shared out; the sum gets Gaussian noise.

Chosen on the validation items of seed 1 of ML-1M at epsilon 1, 2 and 8, after a first look at those of ML-100K at 8.
Asking for the matrix of every item, as published, costs more noise than it tells: with 9 % of the squared message for
it, HR@10 is .611 instead of .630 at epsilon 8, .522 instead of .538 at 2 and .464 instead of .477 at 1 (16 dimensions,
one draw of the noise). Three rounds are worse than two at epsilon 1 and 2, and alike at 8; one is worse at 2 and 8, and
alike at 1. 32 dimensions are better than 16 at 8 (.633, .623), alike at 2, worse at 1 (.473, .481; means of three).

DPALS with public item features: what the sums cannot say of an item for noise, its genre and year do.

The messages, sums and noise are those of `dpals`. From the same sums a small matrix is solved that turns features into
item vectors, and every item's own vector is drawn to that instead of to nothing (`veilrec.models.private_als`).
Features are public and cost nothing; without any, vectors are drawn to the direction of popularity.

Chosen on the validation items of seed 1 of ML-1M at epsilon 1 and 8, one setting at a time: HR@10 changes by less than
.01 for weights of unobserved items of .02 to .05, a tenth of the ridge of features, and shares of votes of .15 to .3.
Starting from features instead of at random gains .008 at epsilon 1 and loses .005 at 8; it is not done.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from veilrec.client import closed_form, fcf
from veilrec.client.closed_form import PrivateAlsLocalTrainer, PrivateAlsRanker
from veilrec.core.arrays import Floats
from veilrec.core.errors import BadInput
from veilrec.core.plan import Plan
from veilrec.methods.base import EVERY_DATASET, Config, LearningTrial, Method, Problem
from veilrec.methods.private import PrivacySettings, clients_with_data, private_votes, proven_sums, sum_of_everybody
from veilrec.methods.privrec.common import WITH_FEATURES
from veilrec.models.feature_net import plain_inputs
from veilrec.models.private_als import AlsSums
from veilrec.server.aggregation import Replacing
from veilrec.server.round_specs import CohortSettings, PopularityTensor

SUMS = "Sums are released, of everybody's votes and of every round; the epsilon is that of all together."
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class AlsFields(Config):
    """What private alternating least squares has with and without features."""

    privacy: PrivacySettings = PrivacySettings(epsilon=8.0, clip_norm=1.0)
    votes: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15  # popularity's share of epsilon
    local: fcf.FcfSettings = fcf.FcfSettings(dim=32, alpha=1.0, decay=1.0)
    whole: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.01  # share of a squared message for u u^T
    unobserved: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.02  # weight of an item that is not used
    ridge: Positive = 20.0  # of the items' equations, in standard deviations of the noise
    exponent: Annotated[float, Field(ge=-1.0, le=0.0)] = -0.1  # of popularity in weights; below 0: more for rare items
    start: Positive = 0.1  # standard deviation of the starting item vectors
    # everybody in every round; poisson: whoever is added or removed comes or goes with one message a round
    cohort: CohortSettings = CohortSettings(size=0, sampling="poisson")


class DpalsConfig(AlsFields):
    """Settings of private alternating least squares."""

    gramians: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0  # share for u u^T of each item; 0: as that of everybody


def plan(config: DpalsConfig, problem: Problem) -> Plan:
    """Items are known by their ids alone."""
    if config.whole + config.gramians >= 1.0:
        raise BadInput(
            f"whole is {config.whole:g} and gramians is {config.gramians:g}: together they have to be below 1, so that"
            " something is left for the items' vectors"
        )
    return plan_with(config, problem, gramians=config.gramians)


def plan_with(config: AlsFields, problem: Problem, *, gramians: float = 0.0, features: Floats | None = None) -> Plan:
    """Put the parts together; `features` [items, k] are public."""
    privacy, n_items, clients = config.privacy, problem.n_items, clients_with_data(problem)
    popularity = PopularityTensor()
    votes = private_votes(privacy, config.cohort, n_items, share=config.votes, clients=clients)
    sums = AlsSums(
        dim=config.local.dim,
        whole=config.whole,
        gramians=gramians,
        norm=privacy.clip_norm,
        unobserved=config.unobserved,
        ridge=1.0,  # known with the noise
        exponent=config.exponent,
        floor=votes.sigma,
        people=clients,
    )
    schema = closed_form.schema_of(popularity.tensor(n_items), features, n_items, sums)
    mechanism = sum_of_everybody(config, problem, schema, votes)
    sums = replace(sums, ridge=config.ridge * mechanism.sigma / privacy.clip_norm)
    start = closed_form.start_sums(n_items, sums, config.start, problem.public_seed)
    known = {} if features is None else {closed_form.FEATURES: features}
    return Plan(
        schema=schema,
        start={popularity.name: np.zeros((n_items, 1), np.float32), **known, **start},
        trainer=PrivateAlsLocalTrainer(config.local, sums),
        mechanism=mechanism,
        reports=votes.reports,
        from_reports=popularity,
        rounds=problem.rounds,
        cohort=config.cohort,
        aggregation="sum",
        server=Replacing(),
        ranker=PrivateAlsRanker(config.local, sums),
        clients_per_batch=500,
    )


DPALS: Method[Any] = Method(
    name="dpals",
    kind="federated",
    trial=LearningTrial(rounds=3, settings=("privacy.epsilon=1000", "cohort.size=0"), times_popularity=1.4),
    paper="Chien, Jain, Krichene et al., Private Alternating Least Squares: Practical Private Matrix Completion with"
    " Tighter Rates, ICML 2021; weights as in Krichene et al., Multi-Task Differential Privacy Under Distribution"
    " Skew, ICML 2023",
    model="implicit-feedback least squares",
    summary="items are solved from noisy sums over everybody, every client solves its own vector",
    datasets=EVERY_DATASET,
    config=DpalsConfig,
    plan=plan,
    guarantee=proven_sums(SUMS),
    rounds=2,
    rounds_are_fixed=True,
    deviations=(
        "the vectors of users are made as long as the bound, not only cut to it: no message is weaker than its noise",
        "all items of a user count, with weights whose squares add up to 1 (Krichene et al. 2023), not only k of them",
        "by default an item's own matrix is not asked for, but taken from that of everybody: gramians=0.3 asks for it",
        "the ridge follows from the noise",
        "sizes and rates are ours, chosen on validation items",
    ),
    measured=("ml-100k", "ml-1m"),
)


class DpalsFeaturesConfig(AlsFields):
    """Settings of private alternating least squares with features of items."""

    votes: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2  # popularity's share of epsilon
    unobserved: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.05  # weight of an item that is not used
    ridge: Positive = 10.0  # of the items' equations, in standard deviations of the noise
    items: tuple[str, ...] | None = None  # features that are read, by name; None: all that the data has


def known_of(problem: Problem, names: tuple[str, ...] | None) -> Floats | None:
    """What is known of every item as numbers, centred; None: nothing."""
    if problem.features is None:
        return None
    side = problem.features.items
    inputs = plain_inputs(side if names is None else side.select(names)).astype(np.float64)
    centred = inputs - inputs.mean(axis=0)
    varies = np.abs(centred).max(axis=0, initial=0.0) > 0.0
    return centred[:, varies].astype(np.float32) if varies.any() else None


def dpals_features_plan(config: DpalsFeaturesConfig, problem: Problem) -> Plan:
    """The plan of DPALS with what is known of items."""
    features = known_of(problem, config.items)
    return plan_with(
        config, problem, features=np.zeros((problem.n_items, 1), np.float32) if features is None else features
    )


DPALS_FEATURES = replace(
    DPALS,
    name="dpals-features",
    paper="Curmei, Krichene et al., Private Matrix Factorization with Public Item Features, RecSys 2023,"
    " over Chien et al. 2021",
    model="implicit-feedback least squares with item features",
    summary="dpals, whose items are drawn to what their public features say of them",
    datasets=WITH_FEATURES,
    config=DpalsFeaturesConfig,
    plan=dpals_features_plan,
    deviations=(
        "item vectors are drawn to features times a matrix; the paper factorises the features along with the uses",
        "features are the data's own, such as genres and years; the paper also has similarities and public feedback",
        "all that dpals departs in",
    ),
)
