"""Tiny plans of matrix factorisation whose bound is learnt, or whose noise is a tree: what no method has yet."""

from dataclasses import replace
from functools import cache

from veilrec.client import local_training, mf
from veilrec.client.local_training import OwnItems
from veilrec.client.rankers import MfRanker
from veilrec.core.csr import Csr
from veilrec.core.plan import Plan
from veilrec.data import synthetic_ratings
from veilrec.methods.private import (
    PrivacySettings,
    adaptive_sum,
    cyclic,
    noisy_sum,
    proven,
    tree_sum,
    with_learnt_bound,
)
from veilrec.methods.privrec.dp_privrec import BoundSettings, published_plan
from veilrec.server.aggregation import ServerRate
from veilrec.server.round_specs import CohortSettings

ROUNDS, ITEMS = 6, 60
# Steps so large that about half of the updates are within the first bound.
LOCAL = mf.MfSettings(dim=4, epochs=2, item_rate=0.2)
PRIVACY = PrivacySettings(epsilon=8.0, delta=1e-6, clip_norm=0.5)
PUBLISHED = BoundSettings(quantile=0.9, rate=0.1, noise_multiplier=1.0, count_share=0.7)


@cache
def people(users=60):
    used = synthetic_ratings.generate(users=users, items=ITEMS, seed=2).interactions
    return Csr(used.offsets, used.items)


def data(users=60):
    return OwnItems(people(users))


def plain_plan(cohort, users=60, rounds=ROUNDS):
    schema = mf.schema(ITEMS, LOCAL.dim)
    mechanism = noisy_sum(PRIVACY, cohort, schema, rounds=rounds, clients=users, keeps_state=True)
    return Plan(
        schema=schema,
        start=mf.start_weights(ITEMS, LOCAL.dim, LOCAL.start, 3),
        trainer=mf.MfLocalTrainer(LOCAL),
        mechanism=mechanism,
        rounds=rounds,
        cohort=cohort,
        aggregation="sum",
        server=ServerRate(rate=0.3 / (cohort.size or users)),
        ranker=MfRanker(LOCAL, 3),
    )


def adaptive_plan(sampling="poisson", size=20, *, users=60, rounds=ROUNDS, rate=0.5):
    cohort = CohortSettings(size=size, sampling=sampling)
    plain = plain_plan(cohort, users, rounds)
    mechanism = adaptive_sum(PRIVACY, cohort, plain.schema, rounds=rounds, clients=users, keeps_state=True)
    return with_learnt_bound(plain, mechanism, quantile=0.5, rate=rate)


def promise(plan):
    return proven(PRIVACY, plan.cohort)


def tree_plan(size=10, *, users=60, rounds=12):
    cohort = CohortSettings(size=size, sampling="cyclic")
    plain = plain_plan(CohortSettings(size=size, sampling="poisson"), users, rounds)
    mechanism = tree_sum(PRIVACY, cohort, plain.schema, rounds=rounds, clients=users)
    return cyclic(replace(plain, cohort=cohort), mechanism)


def published_plan_of(rate=1.0, *, size=20, users=60, rounds=ROUNDS):
    cohort = CohortSettings(size=size, sampling="fixed")
    plain = replace(
        plain_plan(cohort, users, rounds),
        aggregation="mean",
        server=ServerRate(rate=rate),
        trainer=local_training.VoteLocalTrainer(),
    )
    plain = replace(plain, schema=local_training.schema(ITEMS), start=local_training.start_weights(ITEMS))
    return published_plan(plain, PRIVACY, PUBLISHED, clients=users, keeps_state=False)
