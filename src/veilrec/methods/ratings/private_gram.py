"""Private Gram matrix: which of the most popular items go together, released once with noise; ranked on the device.

Everybody votes for their items first (`VoteReports`, for a share of the epsilon); noisy popularity then says which K
items the matrix is of. In the only round every device sends its taste times itself, as long as the clip norm; the sum
gets Gaussian noise. The server does nothing with it: whoever ranks takes the noise off as far as its size tells
(`veilrec.models.gram`), and follows a history along what is left. Nobody tunes anything: K and the rest follow from the
number of people and from epsilon.

Taste is what a history has beside popularity, which is known already: leaving popularity out makes the rest of half of
all messages 1.2 times as strong or more beside the same noise (validation users of ML-1M, epsilon 2, 300 items: Hits@10
.147 instead of .143).
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field

from veilrec.device.gram import GRAM, GramLearner, GramRanker, gram_tensor
from veilrec.methods.base import EVERY_DATASET, Config, Method, Problem, Trial
from veilrec.methods.private import PrivacySettings, devices_with_data, noisy_sum, private_votes, proven
from veilrec.plan import Plan
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.privacy.guarantee import Guarantee
from veilrec.server.agenda import PopularityTensor
from veilrec.server.cohorts import CohortSettings
from veilrec.server.optimise import ServerRate
from veilrec.updates import Schema

TWO_SUMS = (
    "Two sums are released, of everybody's votes and of everybody's tastes; the epsilon is that of both together."
)
MOST_ITEMS = 3000  # a message is multiplied out to the square of it
_ITEMS_PER_ROOT = 8.0  # chosen on the validation users of ML-1M at epsilon 2 and 8: 7 to 11 differ by .0025
_SHARES = (0.3, 0.4, 0.5, 0.6, 0.7)  # of epsilon for the votes: .2 to .4 differ by .004 on ML-1M, where people are many
_VOTES_PER_ROOT = 6.0  # Frappe at epsilon 2: its 700 people need half of it, or popular items are not found


class PrivateGramConfig(Config):
    """Settings of the private Gram matrix."""

    privacy: PrivacySettings = PrivacySettings(epsilon=8.0, clip_norm=1.0)
    votes: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None  # popularity's share of epsilon; None: as few need it
    items: Annotated[int, Field(ge=0, le=MOST_ITEMS)] = 0  # K, the most popular ones; 0: as many as pay
    # everybody once; poisson: whoever is added or removed comes or goes with one message
    cohort: CohortSettings = CohortSettings(size=0, sampling="poisson")


def items_that_pay(privacy: PrivacySettings, people: int, n_items: int) -> int:
    """K = 8 sqrt(n mu), with noise of 1 / mu messages: more items have more noise, fewer leave more of them out."""
    size = round(_ITEMS_PER_ROOT * math.sqrt(people * mu_for(privacy.epsilon, privacy.delta)))
    return max(1, min(size, n_items, MOST_ITEMS))


def share_of_votes(privacy: PrivacySettings, people: int) -> float:
    """The least share of epsilon whose noise is sqrt(n) / 6 votes at most; with few people none may be enough."""
    needed = _VOTES_PER_ROOT / math.sqrt(people)
    fitting = (share for share in _SHARES if mu_for(share * privacy.epsilon, privacy.delta) >= needed)
    return next(fitting, _SHARES[-1])


def plan(config: PrivateGramConfig, problem: Problem) -> Plan:
    """Put the parts together."""
    privacy, n_items, devices = config.privacy, problem.n_items, devices_with_data(problem)
    people = config.cohort.among(devices) * problem.rounds
    size = min(config.items, n_items) or items_that_pay(privacy, people, n_items)
    popularity = PopularityTensor()
    schema = Schema((popularity.tensor(n_items), gram_tensor(size)))
    share = config.votes or share_of_votes(privacy, devices)
    votes = private_votes(privacy, config.cohort, n_items, share=share)
    mechanism = noisy_sum(
        privacy,
        config.cohort,
        schema,
        rounds=problem.rounds,
        devices=devices,
        keeps_state=False,
        before=votes.event,
        numbers_before=votes.numbers,
    )
    return Plan(
        schema=schema,
        start={popularity.name: np.zeros((n_items, 1), np.float32), GRAM: np.zeros((size, size), np.float32)},
        learner=GramLearner(privacy.clip_norm, votes.sigma),
        mechanism=mechanism,
        reports=votes.reports,
        from_reports=popularity,
        rounds=problem.rounds,
        cohort=config.cohort,
        aggregation="sum",
        server=ServerRate(),
        ranker=GramRanker(privacy.clip_norm, mechanism.sigma * math.sqrt(problem.rounds), votes.sigma, people),
        devices_at_once=16,  # each is multiplied out to a matrix
    )


def guarantee(config: PrivateGramConfig) -> Guarantee:
    """User-level over the whole run, votes included."""
    p = config.privacy
    return proven(p.epsilon, p.delta, config.cohort, TWO_SUMS, keeps_state=False)


METHOD = Method(
    name="private-gram",
    kind="federated",
    trial=Trial(rounds=1, settings=("privacy.epsilon=100", "cohort.size=0"), times_popularity=1.4),
    paper="ours; eigenvalues shrunk as in Gavish and Donoho, Optimal Shrinkage of Singular Values, 2017",
    model="item-item, of low rank",
    summary="which popular items go together, released once with noise; every device ranks by its own history",
    datasets=EVERY_DATASET,
    config=PrivateGramConfig,
    plan=plan,
    guarantee=guarantee,
    rounds=1,
    rounds_are_fixed=True,
    measured=("ml-1m", "frappe"),
)
