"""FCF: federated collaborative filtering, implicit-feedback least squares with users' vectors on clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from veilrec.client import fcf
from veilrec.client.rankers import FcfRanker
from veilrec.core.plan import Plan
from veilrec.methods.base import EVERY_DATASET, Config, Method, Problem, described, unprotected
from veilrec.methods.private import clients_with_data
from veilrec.privacy.mechanisms.sums import NoNoise
from veilrec.server.aggregation import ServerRate
from veilrec.server.round_specs import CohortSettings


@dataclass(frozen=True)
class FcfRate(ServerRate):
    """Adam is the paper's choice; its rates here are ours, chosen on validation items."""

    optimiser: Literal["sgd", "adam", "yogi"] = "adam"  # what turns the sum of a round into a step
    rate: float = 0.02
    momentum: float = 0.9


class FcfConfig(Config):
    """Settings of FCF."""

    local: fcf.FcfSettings = fcf.FcfSettings()
    start: fcf.Positive = 0.1  # standard deviation of the starting item vectors
    cohort: CohortSettings = CohortSettings()
    server: FcfRate = FcfRate()


def plan(config: FcfConfig, problem: Problem) -> Plan:
    """Put the parts together.

    The server adds what needs no client: the gradient of the items' own regularisation. The loss sums over all n
    clients, so the mean of a cohort's f(u, i) stands for 1/n of its gradient, and the regularisation takes the same
    share.
    """
    local = config.local
    schema = fcf.schema(problem.n_items, local.dim)
    return Plan(
        schema=schema,
        start=fcf.start_weights(problem.n_items, local.dim, config.start, problem.public_seed),
        trainer=fcf.FcfLocalTrainer(local),
        mechanism=NoNoise(schema),
        rounds=problem.rounds,
        cohort=config.cohort,
        aggregation="mean",
        server=config.server,
        decay_share=local.decay / max(1, clients_with_data(problem)),
        ranker=FcfRanker(local),
    )


METHOD = Method(
    **described("fcf"),
    datasets=EVERY_DATASET,
    config=FcfConfig,
    plan=plan,
    guarantee=unprotected(
        "In plaintext, the server sees a client's gradient of every item, and can compute from it exactly which items"
        " the user has."
    ),
)
