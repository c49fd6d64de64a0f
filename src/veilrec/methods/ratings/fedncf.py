"""FedNCF: federated neural collaborative filtering, the deep model of the communication paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import PositiveInt

from veilrec.device import ncf
from veilrec.device.neumf_ranker import NeumfRanker
from veilrec.methods.base import EVERY_DATASET, Config, Method, Problem, Trial
from veilrec.plan import Plan
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.privacy.mechanisms.updates import InTheClear, UpdateMechanism
from veilrec.server.aggregate import Aggregation
from veilrec.server.cohorts import CohortSettings
from veilrec.server.optimise import ServerRate
from veilrec.updates import Schema

_DEVICES_AT_ONCE = 50  # below 32 MB of updates: up to that, the allocator uses the same space again


class FedNcfConfig(Config):
    """Settings of FedNCF."""

    local: ncf.NcfSettings = ncf.NcfSettings()
    cohort: CohortSettings = CohortSettings()
    aggregation: Aggregation = "row-sqrt"  # how the changes of a round are added up
    server: ServerRate = ServerRate()
    adapt_epochs: PositiveInt = 20  # local epochs with which a new user joins the finished model


def schema_of(config: FedNcfConfig, problem: Problem) -> Schema:
    """One row per item, and the network."""
    return ncf.schema(problem.n_items, config.local.shape)


def ncf_plan(config: FedNcfConfig, problem: Problem, mechanism: UpdateMechanism, **parts: Any) -> Plan:
    """Federated NCF with any protection; `parts` are further fields of a plan, or other ones."""
    local, seed = config.local, problem.public_seed
    fields: dict[str, Any] = {
        "schema": mechanism.schema,
        "start": ncf.start_weights(problem.n_items, local.shape, local.start, seed),
        "learner": ncf.NcfLearner(local),
        "mechanism": mechanism,
        "rounds": problem.rounds,
        "cohort": config.cohort,
        "aggregation": config.aggregation,
        "server": config.server,
        "ranker": NeumfRanker(replace(local, epochs=config.adapt_epochs), seed),
        "devices_at_once": _DEVICES_AT_ONCE,
    }
    return Plan(**(fields | parts))


def plan(config: FedNcfConfig, problem: Problem) -> Plan:
    """Put the parts together."""
    return ncf_plan(config, problem, InTheClear(schema_of(config, problem)))


def guarantee(config: FedNcfConfig) -> Guarantee:
    """Nothing is promised."""
    return no_guarantee(
        "The server sees which item rows a device changed, and how: it can tell which items a user has.",
        "A simulated run protects nobody.",
    )


AS_PRINTED = (
    "preset paper: the paper gives no widths of the tower; here 256-128-64-32, so that an item has the "
    "160 floats that it counts",
    "preset paper: a device sends the change that Adam made, once a round; eq. 12 to 14 speak of gradients, sent "
    "epoch by epoch, and give no rate for the server (set local.upload and server)",
)
PAPER_PRESET = {  # section 6.3 of Xue et al.; an item has 32 + 128 = 160 floats, which is what its Figure 14 counts
    "aggregation": "mean",
    "local": {
        "mlp": 128,
        "layers": (128, 64, 32),
        "start": 0.01,
        "user_rate": 0.0005,
        "item_rate": 0.0005,
        "network_rate": 0.0005,
        "decay": 0.0,
    },
    "rounds": 400,
}

# The defaults are for populations with more devices and rounds.
TRIAL = Trial(rounds=80, settings=("local.user_rate=0.01", "local.item_rate=0.01", "local.network_rate=0.001"))

METHOD = Method(
    name="fedncf",
    kind="federated",
    private_relative="dp-fedncf",
    trial=TRIAL,
    paper="Perifanis and Efraimidis, Federated Neural Collaborative Filtering, 2022; model of He et al. 2017;"
    " baseline of Xue et al. 2026 (priv-fedmf-sub)",
    model="NeuMF",
    summary="user vectors stay on devices, changes of item vectors and network are uploaded in the clear",
    datasets=EVERY_DATASET,
    config=FedNcfConfig,
    plan=plan,
    guarantee=guarantee,
    rounds=100,
    presets={
        "paper": PAPER_PRESET,
        "paper@ml-1m": {"local": {"batch": 512}, "cohort": {"size": 200}},
        "tuned@ml-1m": {"rounds": 220, "cohort": {"size": 200}},
    },
    deviations=(
        "Devices send changes in the clear; Perifanis and Efraimidis add them up by secure aggregation.",
        "Adam is lazy on item rows and starts afresh every round: devices keep only the user's vector.",
        "By default changes are divided by the square root of the number of devices, and vectors decay.",
        *AS_PRINTED,
    ),
    item_parameters=160,
    measured=("ml-100k", "ml-1m"),
)
