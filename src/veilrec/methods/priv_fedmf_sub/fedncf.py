"""Federated neural collaborative filtering: FedNCF, DP-FedNCF and DP-FedNCF-DGC.

FedNCF: no noise; the deep model of the communication paper (Xue et al. 2026).

DP-FedNCF, as published: the whole client update is clipped to C (`privacy.clip_norm`) and gets Gaussian noise on the
client (eq. 14). The paper does not tie sigma to its epsilon; here it is the textbook formula, whose sensitivity is
`published.sensitivity`. proven: noise on the sum.

DP-FedNCF-DGC: deep gradient compression (Lin et al. 2018). As published, the largest accumulated entries are clipped
and get Gaussian noise, which reveals where they lie: no epsilon is finite. proven: a public seed names the entries of
the network and the item rows anew every round, the rest accumulates on the client; one clip, and noise on the sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import PositiveInt

from veilrec.client import ncf
from veilrec.client.ncf import DgcLocalTrainer, DgcSettings, NcfLocalTrainer, NeumfRanker
from veilrec.core.plan import Aggregation, Plan
from veilrec.core.schema import Schema
from veilrec.methods.base import EVERY_DATASET, Config, Method, Problem, described, unprotected
from veilrec.methods.priv_fedmf_sub.common import DATASETS, Family
from veilrec.methods.private import LARGEST_ENTRIES, PrivateFields, tells_largest
from veilrec.models.scores import NeumfShape
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.compression import SentEntries
from veilrec.privacy.mechanisms.local import SensitivityTaken, UpdateNoise
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


FEDNCF = Method(
    **described("fedncf"),
    datasets=EVERY_DATASET,
    config=FedNcfConfig,
    plan=plan,
    guarantee=unprotected(
        "In plaintext, the server sees which item rows a client changed, and how: it can tell which items a user has."
    ),
)


@dataclass(frozen=True, kw_only=True)
class UpdateClip:
    """How eq. 14 and Algorithm 3 are read, as published."""

    sensitivity: SensitivityTaken = "C"  # that the noise of the textbook formula is for
    clips: Literal["whole", "parts"] = "whole"  # parts: the deep layers by themselves (Algorithm 3, lines 5 and 6)


class DpFedNcfConfig(PrivateFields, FedNcfConfig):
    """Settings of DP-FedNCF."""

    published: UpdateClip = UpdateClip()


SHALLOW_LAYERS = 2  # section 5.2.1: the embedding and the one or two layers that follow


def deep_tensors(shape: NeumfShape) -> tuple[str, ...]:
    """Everything behind the shallow layers, the output layer included."""
    shallow = tuple(f"layer{number}." for number in range(1, SHALLOW_LAYERS + 1))
    return tuple(name for name in shape.network() if not name.startswith(shallow))


class NcfFamily(Family[DpFedNcfConfig]):
    """NeuMF, and Gaussian noise on every number of a message."""

    flaw = (
        "The claim does not hold: Gaussian noise never gives a pure epsilon, the formula is proved for epsilon below "
        "1, and rounds do not add up."
    )
    half_flaw = " The sensitivity is taken to be C: two clipped updates are twice the clip norm apart."
    parts_flaw = " Two parts are clipped, each to C, and the noise is that of one."
    honest_note = "of one message"
    pure = False

    def schema(self, config: DpFedNcfConfig, problem: Problem) -> Schema:
        """One row per item, and the network."""
        return schema_of(config, problem)

    def noisy(self, config: DpFedNcfConfig, schema: Schema) -> UpdateNoise:
        """N(0, sigma^2 C^2) on every entry (eq. 14), sigma by the textbook formula.

        A clip holds for all of a message or of a part, however many rows there are.
        """
        p = config.privacy
        return UpdateNoise(
            schema=schema,
            clip_norm=p.clip_norm,
            epsilon=p.epsilon,
            delta=p.delta,
            calibration="as-published",
            taken=config.published.sensitivity,
            deep=deep_tensors(config.local.shape) if config.published.clips == "parts" else (),
        )

    def flaws(self, config: DpFedNcfConfig) -> str:
        """Why the claim does not hold, and what the sensitivity and the clips add."""
        half = self.half_flaw if config.published.sensitivity == "C" else ""
        return self.flaw + half + (self.parts_flaw if config.published.clips == "parts" else "")

    def plan(self, config: DpFedNcfConfig, problem: Problem, mechanism: UpdateMechanism, **parts: Any) -> Plan:
        """NeuMF with any protection."""
        return ncf_plan(config, problem, mechanism, **parts)


FAMILY = NcfFamily()


DP_FEDNCF: Method[Any] = Method(
    **described("dp-fedncf"),
    datasets=DATASETS,
    config=DpFedNcfConfig,
    plan=FAMILY.build,
    guarantee=FAMILY.guarantee,
    guarantee_of_run=FAMILY.guarantee_of_run,
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
    **described("dp-fedncf-dgc"),
    exemptions=LARGEST_ENTRIES,
    config=DpFedNcfDgcConfig,
    plan=dp_fedncf_dgc_plan,
    guarantee=dp_fedncf_dgc_guarantee,
    guarantee_of_run=None,
)
