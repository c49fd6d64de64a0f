"""Private popularity: how much everybody uses each item, released once with noise.

Every device sends a one for each of its items; all ones of a device together are cut to one L2 norm, so that somebody
with n items gives each of them 1 / sqrt(n). The sum gets Gaussian noise before anything is done with it, and that is
the model: the same list for everybody.

Chosen on the validation items of seed 1 of ML-100K and ML-1M at epsilon 0.1 to 8: cutting the norm to 1, 3 or 5 ranks
alike, and better than to 7 or more, than a random choice of 10, 50 or 100 items a user (with Gaussian noise), and than
one of 1, 3, 10 or 50 with Laplace noise, whose sensitivity grows with the number and not with its root. On ML-1M at
epsilon 0.25, nDCG@10 is 0.242, 0.226 with 100 items and Gaussian noise, and 0.148 with one item and Laplace noise;
exact counts give 0.249. From epsilon 1 on, cut votes rank above exact counts: long histories count for less.
"""

from __future__ import annotations

from veilrec.device import votes
from veilrec.device.rankers import PopularityRanker
from veilrec.methods.base import EVERY_DATASET, Config, Exemption, Method, Problem, Trial
from veilrec.methods.private import PrivacySettings, devices_with_data, noisy_sum, proven
from veilrec.plan import Plan
from veilrec.privacy.guarantee import Guarantee
from veilrec.server.cohorts import CohortSettings
from veilrec.server.optimise import ServerRate

ONE_LIST = "Only the sum of everybody's cut votes is released; the list is the same for everybody."


class PrivatePopularityConfig(Config):
    """Settings of private popularity."""

    privacy: PrivacySettings = PrivacySettings(epsilon=1.0, clip_norm=1.0)
    # everybody once; poisson: whoever is added or removed comes or goes with one vote
    cohort: CohortSettings = CohortSettings(size=0, sampling="poisson")


def plan(config: PrivatePopularityConfig, problem: Problem) -> Plan:
    """Put the parts together."""
    schema = votes.schema(problem.n_items)
    mechanism = noisy_sum(
        config.privacy,
        config.cohort,
        schema,
        rounds=problem.rounds,
        devices=devices_with_data(problem),
        keeps_state=False,
    )
    return Plan(
        schema=schema,
        start=votes.start_weights(problem.n_items),
        learner=votes.VoteLearner(),
        mechanism=mechanism,
        rounds=problem.rounds,
        cohort=config.cohort,
        aggregation="sum",
        server=ServerRate(),
        ranker=PopularityRanker(votes.ITEMS),
        devices_at_once=1000,
    )


def guarantee(config: PrivatePopularityConfig) -> Guarantee:
    """User-level over the whole run."""
    p = config.privacy
    return proven(p.epsilon, p.delta, config.cohort, ONE_LIST, keeps_state=False)


METHOD = Method(
    name="private-popularity",
    kind="federated",
    trial=Trial(rounds=1, settings=("privacy.epsilon=100", "cohort.size=0")),
    exemptions=(Exemption("learns", "It has one list for everybody: what the others are compared with, with noise."),),
    paper="ours; Gaussian noise as in Balle and Wang, Improving the Gaussian Mechanism, 2018",
    model="counts",
    summary="popularity, released once with noise: the same list for everybody at a small epsilon",
    datasets=EVERY_DATASET,
    config=PrivatePopularityConfig,
    plan=plan,
    guarantee=guarantee,
    rounds=1,
    rounds_are_fixed=True,
    measured=("ml-100k", "ml-1m"),
)
