"""FedMF: federated matrix factorisation; the plain method that the communication paper measures everything against."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import PositiveInt

from veilrec.device import mf
from veilrec.device.rankers import MfRanker
from veilrec.methods.base import EVERY_DATASET, Config, Method, Problem
from veilrec.plan import Plan
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.privacy.mechanisms.updates import InTheClear, UpdateMechanism
from veilrec.server.aggregate import Aggregation
from veilrec.server.cohorts import CohortSettings
from veilrec.server.optimise import ServerRate
from veilrec.updates import Schema


class FedMfConfig(Config):
    """Settings of FedMF."""

    local: mf.MfSettings = mf.MfSettings()
    cohort: CohortSettings = CohortSettings()
    aggregation: Aggregation = "row-sqrt"
    server: ServerRate = ServerRate()
    adapt_epochs: PositiveInt = 20  # local epochs with which a new user joins the finished model


def schema_of(config: FedMfConfig, problem: Problem) -> Schema:
    """One row per item."""
    return mf.schema(problem.n_items, config.local.dim)


def mf_plan(config: FedMfConfig, problem: Problem, mechanism: UpdateMechanism, **parts: Any) -> Plan:
    """Federated matrix factorisation with any protection; `parts` are further fields of a plan."""
    local, seed = config.local, problem.public_seed
    return Plan(
        schema=mechanism.schema,
        start=mf.start_weights(problem.n_items, local.dim, local.start, seed),
        learner=mf.MfLearner(local),
        mechanism=mechanism,
        rounds=problem.rounds,
        cohort=config.cohort,
        aggregation=config.aggregation,
        server=config.server,
        ranker=MfRanker(replace(local, epochs=config.adapt_epochs), seed),
        **parts,
    )


def plan(config: FedMfConfig, problem: Problem) -> Plan:
    """Put the parts together."""
    return mf_plan(config, problem, InTheClear(schema_of(config, problem)))


def guarantee(config: FedMfConfig) -> Guarantee:
    """Nothing is promised."""
    return no_guarantee(
        "The server sees the change of every item row that a device touched: it can tell which items a user has.",
        "A simulated run protects nobody.",
    )


# "tuned" was chosen on the validation item of seed 1 (item rate 0.03 or 0.05, decay 0.005 to 0.03).
# "paper" is section 6.3 of the communication paper, which does not say how losses and updates are combined: we take
# the mean of the losses and the mean of the updates. It hardly leaves chance in its 400 rounds.
PRESETS: dict[str, dict[str, Any]] = {
    "tuned@ml-100k": {"rounds": 100, "local": {"item_rate": 0.05, "decay": 0.01}},
    "tuned@ml-1m": {"rounds": 300, "cohort": {"size": 200}, "local": {"item_rate": 0.03, "decay": 0.005}},
    "paper": {
        "rounds": 400,
        "local": {"batch": 256, "reduction": "mean", "user_rate": 0.001, "item_rate": 0.001, "decay": 0.0},
        "aggregation": "mean",
    },
    "paper@ml-1m": {"cohort": {"size": 200}, "local": {"batch": 512}},
    "small": {"rounds": 40, "local": {"dim": 16}},
}

METHOD = Method(
    name="fedmf",
    kind="federated",
    paper="Chai et al., Secure Federated Matrix Factorization, 2021; baseline of Xue et al. 2026 (priv-fedmf-sub)",
    model="matrix factorisation",
    summary="user vectors stay on devices, changes of item vectors are uploaded in the clear",
    datasets=EVERY_DATASET,
    config=FedMfConfig,
    plan=plan,
    guarantee=guarantee,
    rounds=200,
    presets=PRESETS,
    item_parameters=32,
    measured=("ml-100k", "ml-1m"),
)
