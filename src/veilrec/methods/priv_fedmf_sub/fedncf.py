"""Federated neural collaborative filtering: FedNCF, DP-FedNCF and DP-FedNCF-DGC.

FedNCF: no noise; the deep model of the communication paper (Xue et al. 2026).

DP-FedNCF, as published: the whole client update is clipped to C (`privacy.clip_norm`) and gets Gaussian noise on the
client (eq. 14). The paper does not tie sigma to its epsilon; here it is the textbook formula. proven: noise on the sum.

DP-FedNCF-DGC: deep gradient compression (Lin et al. 2018). As published, the largest accumulated entries are clipped
and get Gaussian noise, which reveals where they lie: no epsilon is finite. proven: a public seed names the entries of
the network and the item rows anew every round, the rest accumulates on the client; one clip, and noise on the sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import PositiveInt

from veilrec.client import ncf
from veilrec.client.ncf import DgcLocalTrainer, DgcSettings, NcfLocalTrainer, NeumfRanker
from veilrec.core.plan import Aggregation, Plan
from veilrec.core.schema import Schema
from veilrec.methods.base import EVERY_DATASET, Config, LearningTrial, Method, Problem, read_presets, unprotected
from veilrec.methods.priv_fedmf_sub.common import DATASETS, Family
from veilrec.methods.private import LARGEST_ENTRIES, PRIVATE_TRIAL, PrivateFields, tells_largest
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.compression import SentEntries
from veilrec.privacy.mechanisms.local import UpdateNoise
from veilrec.privacy.mechanisms.sums import NoNoise, UpdateMechanism
from veilrec.server.aggregation import ServerRate
from veilrec.server.round_specs import CohortSettings, SeededParts

_CLIENTS_PER_BATCH = 50  # below 32 MB of updates: up to that, the allocator uses the same space again


class FedNcfConfig(Config):
    """Settings of FedNCF."""

    local: ncf.NcfSettings = ncf.NcfSettings()
    cohort: CohortSettings = CohortSettings()
    aggregation: Aggregation = "row-sqrt"  # how the changes of a round are added up
    server: ServerRate = ServerRate()
    adapt_epochs: PositiveInt = 20  # local epochs with which a new user joins the finished model


def schema_of(config: FedNcfConfig, problem: Problem) -> Schema:
    """Schema of the model: one row per item, and the network."""
    return ncf.schema(problem.n_items, config.local.shape)


def ncf_plan(config: FedNcfConfig, problem: Problem, mechanism: UpdateMechanism, **parts: Any) -> Plan:
    """Federated NCF with any protection; `parts` are further fields of a plan, or other ones."""
    local, seed = config.local, problem.public_seed
    fields: dict[str, Any] = {
        "schema": mechanism.schema,
        "start": ncf.start_weights(problem.n_items, local.shape, local.start, seed),
        "trainer": ncf.NcfLocalTrainer(local),
        "mechanism": mechanism,
        "rounds": problem.rounds,
        "cohort": config.cohort,
        "aggregation": config.aggregation,
        "server": config.server,
        "ranker": NeumfRanker(replace(local, epochs=config.adapt_epochs), seed),
        "clients_per_batch": _CLIENTS_PER_BATCH,
    }
    return Plan(**(fields | parts))


def plan(config: FedNcfConfig, problem: Problem) -> Plan:
    """Assemble FedNCF, without noise."""
    return ncf_plan(config, problem, NoNoise(schema_of(config, problem)))


AS_PRINTED = (
    "preset paper: the paper gives no widths of the tower; here 256-128-64-32, so that an item has the "
    "160 floats that it counts",
    "preset paper: a client sends the change that Adam made, once a round; eq. 12 to 14 speak of gradients, sent "
    "epoch by epoch, and give no rate for the server (set local.update and server)",
)

# The defaults are for populations with more clients and rounds.
TRIAL = LearningTrial(rounds=80, settings=("local.user_rate=0.01", "local.item_rate=0.01", "local.network_rate=0.001"))

FEDNCF = Method(
    name="fedncf",
    kind="federated",
    private_relative="dp-fedncf",
    trial=TRIAL,
    paper="Perifanis and Efraimidis, Federated Neural Collaborative Filtering, 2022; model of He et al. 2017;"
    " baseline of Xue et al. 2026 (priv-fedmf-sub)",
    model="NeuMF",
    summary="user vectors stay on clients, changes of item vectors and network are uploaded in plaintext",
    datasets=EVERY_DATASET,
    config=FedNcfConfig,
    plan=plan,
    guarantee=unprotected(
        "The server sees which item rows a client changed, and how: it can tell which items a user has."
    ),
    rounds=100,
    presets=read_presets("fedncf"),
    deviations=(
        "Clients send changes in plaintext; Perifanis and Efraimidis add them up by secure aggregation.",
        "Adam is lazy on item rows and starts afresh every round: clients keep only the user's vector.",
        "By default changes are divided by the square root of the number of clients, and vectors decay.",
        *AS_PRINTED,
    ),
    item_parameters=160,
    measured=("ml-100k", "ml-1m"),
)


PAPER = {  # Figure 14
    "ml-100k": {"paper_params": 10771.2e6},
    "ml-1m": {"paper_params": 47436.8e6},
}


class DpFedNcfConfig(PrivateFields, FedNcfConfig):
    """Settings of DP-FedNCF."""


class NcfFamily(Family[DpFedNcfConfig]):
    """NeuMF, and Gaussian noise on every number of a message."""

    flaw = (
        "The claim does not hold: Gaussian noise never gives a pure epsilon, the formula is proved for epsilon below "
        "1, two updates differ by twice the clip norm, and rounds do not add up."
    )
    honest_note = "of one message"
    pure = False

    def schema(self, config: DpFedNcfConfig, problem: Problem) -> Schema:
        """One row per item, and the network."""
        return schema_of(config, problem)

    def noisy(self, config: DpFedNcfConfig, schema: Schema) -> UpdateNoise:
        """N(0, sigma^2 C^2) on every entry (eq. 14), sigma by the textbook formula with sensitivity C.

        One clip holds for all of a message, however many rows there are.
        """
        p = config.privacy
        return UpdateNoise(
            schema=schema, clip_norm=p.clip_norm, epsilon=p.epsilon, delta=p.delta, calibration="as-published"
        )

    def plan(self, config: DpFedNcfConfig, problem: Problem, mechanism: UpdateMechanism, **parts: Any) -> Plan:
        """NeuMF with any protection."""
        return ncf_plan(config, problem, mechanism, **parts)


FAMILY = NcfFamily()

SIGMA = "as published: sigma by the textbook formula at epsilon 2 and delta 1e-5; the paper gives none"

PRIVATE_NCF_TRIAL = replace(PRIVATE_TRIAL, settings=TRIAL.settings + PRIVATE_TRIAL.settings)

DP_FEDNCF: Method[Any] = Method(
    name="dp-fedncf",
    kind="federated",
    trial=PRIVATE_NCF_TRIAL,
    published=PAPER,
    paper="baseline of Xue et al. 2026 (priv-fedmf-sub), after Gao et al., DPLCF, SIGIR 2020; proven form ours",
    model="NeuMF",
    summary="fedncf whose users are covered by differential privacy",
    datasets=DATASETS,
    config=DpFedNcfConfig,
    plan=FAMILY.build,
    guarantee=FAMILY.guarantee,
    guarantee_of_run=FAMILY.guarantee_of_run,
    rounds=20,
    presets=read_presets("dp-fedncf"),
    rounds_are_fixed=True,
    item_parameters=160,
    measured=("ml-100k", "ml-1m"),
    deviations=(*AS_PRINTED, SIGMA),
)


class DpFedNcfDgcConfig(DpFedNcfConfig):
    """Settings of DP-FedNCF-DGC."""

    dgc: DgcSettings = DgcSettings()


def dp_fedncf_dgc_plan(config: DpFedNcfDgcConfig, problem: Problem) -> Plan:
    """Assemble DP-FedNCF-DGC."""
    schema, share = FAMILY.schema(config, problem), config.dgc.share
    trainer = DgcLocalTrainer(NcfLocalTrainer(config.local), config.dgc, schema)
    if config.calibration == "as-published":
        sent = SentEntries(FAMILY.noisy(config, schema), share=share)
        return FAMILY.plan(config, problem, sent, trainer=trainer)
    round_planner = SeededParts(
        schema=schema,
        public_seed=problem.public_seed,
        row_share=share,
        entry_share=share,
        names=tuple(tensor.name for tensor in schema.dense),
    )
    return FAMILY.proven(config, problem, round_planner=round_planner, trainer=trainer)


def dp_fedncf_dgc_guarantee(config: DpFedNcfDgcConfig) -> Guarantee:
    """Guarantee of DP-FedNCF-DGC; as published, no epsilon is finite."""
    if config.calibration == "as-published":
        return tells_largest(config.privacy, "entries")
    return FAMILY.guarantee(config, "The parts of a round come from a public seed.")


DP_FEDNCF_DGC = replace(
    DP_FEDNCF,
    name="dp-fedncf-dgc",
    published={},  # Figures 12 to 14 draw it, the text gives no number
    exemptions=LARGEST_ENTRIES,
    paper="baseline of Xue et al. 2026 (priv-fedmf-sub), after Lin et al., Deep Gradient Compression, 2018; proven form"
    " ours",
    summary="dp-fedncf that sends a part now and keeps the rest for later",
    config=DpFedNcfDgcConfig,
    plan=dp_fedncf_dgc_plan,
    guarantee=dp_fedncf_dgc_guarantee,
    presets=read_presets("dp-fedncf-dgc"),
    deviations=(
        *AS_PRINTED,
        SIGMA,
        "The paper gives neither sparsity nor momentum; here 0.1 and 0.5.",
        "Item rows are cut but not accumulated: a client touches other rows in every round.",
        "No warm-up of the sparsity: a client takes part too seldom for it.",
    ),
    guarantee_of_run=None,
)
