"""FedMF: federated matrix factorisation; the plain method that the communication paper measures everything against."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import PositiveInt

from veilrec.device import mf
from veilrec.device.rankers import MfRanker
from veilrec.methods.base import EVERY_DATASET, Config, Method, Problem, Trial
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
    aggregation: Aggregation = "row-sqrt"  # how the changes of a round are added up
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
# "paper" is the communication paper: squared errors, added up (eq. 9); items stand still on a device, which sends their
# gradient (Algorithm 2, client, lines 4 to 7); the server takes a step of 0.001 for every device in turn (server, lines
# 6 to 9), which is a sum; the rest is section 6.3.
PRESETS: dict[str, dict[str, Any]] = {
    "tuned@ml-100k": {"rounds": 100, "local": {"item_rate": 0.05, "decay": 0.01}},
    "tuned@ml-1m": {"rounds": 300, "cohort": {"size": 200}, "local": {"item_rate": 0.03, "decay": 0.005}},
    "paper": {
        "rounds": 400,
        "local": {
            "batch": 256,
            "loss": "squared",
            "reduction": "sum",
            "upload": "gradient",
            "user_rate": 0.001,
            "decay": 0.01,
        },
        "aggregation": "sum",
        "server": {"rate": 0.001},
    },
    "paper@ml-1m": {"cohort": {"size": 200}, "local": {"batch": 512}},
    "small": {"rounds": 40, "local": {"dim": 16}},
}

AS_PRINTED = (
    "preset paper: eq. 9 prints the error without its square, and no value of lambda and mu; here it is squared, and "
    "every example decays its two vectors by 0.01",
    "preset paper: used items have label 1, drawn ones 0; the paper does not say what becomes of the stars",
    "preset paper: the gradients of a device's local epochs are added up and sent once a round; Algorithm 2 sends them "
    "epoch by epoch",
)

METHOD = Method(
    name="fedmf",
    kind="federated",
    private_relative="dp-fedmf",
    trial=Trial(rounds=120),
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
    deviations=(
        *AS_PRINTED,
        "preset tuned: logistic loss, steps after every example, changes of the rows, divided by the square root of "
        "the number of devices that changed a row",
        "Chai et al. encrypt what is sent; here the server sees it.",
    ),
)
