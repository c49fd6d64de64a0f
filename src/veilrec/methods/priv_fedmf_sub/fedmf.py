"""Federated matrix factorisation: FedMF, DP-FedMF and FedMF-Lean.

FedMF: no noise; the baseline of the communication paper (Xue et al. 2026).

DP-FedMF, as published (eq. 10): every row of a client update is clipped to C (`privacy.clip_norm`) and gets Laplace
noise of scale Delta_f / epsilon on the client; what Delta_f is, and how often a client uploads, are `published`.
proven: the whole update of a user is clipped, and the sum of a round gets Gaussian noise.

FedMF-Lean (ours, not private): rows travel as 4-bit integers with one scale each, both ways. That costs no accuracy:
a client trains on the rounded table and sends rounded updates, and the server adds them to an unrounded table, so
errors average out. Server momentum and an averaged table for ranking save a third of the rounds. A round may cover a
part of the items, named by a public seed; on ml-1m that saves less than it slows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from veilrec.client import mf
from veilrec.client.rankers import MfRanker
from veilrec.core.plan import Aggregation, Plan
from veilrec.core.schema import Schema, ValueCoding
from veilrec.methods.base import EVERY_DATASET, Config, Method, Problem, described, unprotected
from veilrec.methods.priv_fedmf_sub.common import DATASETS, Family
from veilrec.methods.private import PRIVATE_TRIAL, PrivateFields
from veilrec.privacy.mechanisms.local import RowwiseLaplace, SensitivityTaken
from veilrec.privacy.mechanisms.sums import NoNoise, UpdateMechanism
from veilrec.server.aggregation import ServerRate
from veilrec.server.round_specs import CohortSettings, SeededParts


class FedMfConfig(Config):
    """Settings of FedMF."""

    local: mf.MfSettings = mf.MfSettings()
    cohort: CohortSettings = CohortSettings()
    aggregation: Aggregation = "row-sqrt"  # how the changes of a round are added up
    server: ServerRate = ServerRate()
    adapt_epochs: PositiveInt = 20  # local epochs with which a new user joins the finished model


def schema_of(config: FedMfConfig, problem: Problem) -> Schema:
    """Schema of the model: one row per item."""
    return mf.schema(problem.n_items, config.local.dim)


def mf_plan(config: FedMfConfig, problem: Problem, mechanism: UpdateMechanism, **parts: Any) -> Plan:
    """Federated matrix factorisation with any protection; `parts` are further fields of a plan."""
    local, seed = config.local, problem.public_seed
    fields: dict[str, Any] = {
        "schema": mechanism.schema,
        "start": mf.start_weights(problem.n_items, local.dim, local.start, seed),
        "trainer": mf.MfLocalTrainer(local),
        "mechanism": mechanism,
        "rounds": problem.rounds,
        "cohort": config.cohort,
        "aggregation": config.aggregation,
        "server": config.server,
        "ranker": MfRanker(replace(local, epochs=config.adapt_epochs), seed),
    }
    return Plan(**(fields | parts))


def plan(config: FedMfConfig, problem: Problem) -> Plan:
    """Assemble FedMF, without noise."""
    return mf_plan(config, problem, NoNoise(schema_of(config, problem)))


FEDMF: Method[Any] = Method(
    **described("fedmf"),
    datasets=EVERY_DATASET,
    config=FedMfConfig,
    plan=plan,
    guarantee=unprotected(
        "In plaintext, the server sees the change of every item row that a client touched, and so a user's items."
    ),
)


@dataclass(frozen=True, kw_only=True)
class RowNoise:
    """How eq. 10 and Algorithm 2 are read, as published."""

    sensitivity: SensitivityTaken = "2C"  # Delta_f, which the paper does not print
    uploads: Literal["round", "epoch"] = "round"  # epoch: each local epoch's gradient is clipped, at epsilon / e


class DpFedMfConfig(PrivateFields, FedMfConfig):
    """Settings of DP-FedMF."""

    published: RowNoise = RowNoise()


class MfFamily(Family[DpFedMfConfig]):
    """Matrix factorisation, and Laplace noise on every row of a message."""

    flaw = (
        "The claim does not hold: the rows are clipped in L2 but Laplace noise needs the L1 norm, every row of "
        "the message is charged as if it were the only one, and rounds do not add up."
    )
    half_flaw = " The sensitivity is taken to be C: two clipped rows are twice the clip norm apart."
    honest_note = "of one message, rows times sqrt(dim) times the claim"
    pure = True

    def schema(self, config: DpFedMfConfig, problem: Problem) -> Schema:
        """One row per item."""
        return schema_of(config, problem)

    def noisy(self, config: DpFedMfConfig, schema: Schema) -> RowwiseLaplace:
        """Laplace(Delta_f / epsilon) on every row (eq. 10), for every upload of a round."""
        privacy = config.privacy
        return RowwiseLaplace(
            schema=schema,
            clip_norm=privacy.clip_norm,
            epsilon=privacy.epsilon,
            calibration="as-published",
            taken=config.published.sensitivity,
            uploads=config.local.epochs if config.published.uploads == "epoch" else 1,
        )

    def plan(self, config: DpFedMfConfig, problem: Problem, mechanism: UpdateMechanism, **parts: Any) -> Plan:
        """Matrix factorisation with any protection."""
        if config.calibration == "as-published" and config.published.uploads == "epoch":
            parts["trainer"] = mf.MfLocalTrainer(config.local, clip_epochs=config.privacy.clip_norm)
        return mf_plan(config, problem, mechanism, **parts)

    def note(self, config: DpFedMfConfig) -> str:
        """What the honest epsilon is of, and what the sensitivity makes of it."""
        return self.honest_note + (
            ", and twice that for a sensitivity of C" if config.published.sensitivity == "C" else ""
        )

    def flaws(self, config: DpFedMfConfig) -> str:
        """Why the claim does not hold, and what the sensitivity adds."""
        return self.flaw + (self.half_flaw if config.published.sensitivity == "C" else "")


FAMILY = MfFamily()


DP_FEDMF: Method[Any] = Method(
    **described("dp-fedmf"),
    trial=PRIVATE_TRIAL,
    datasets=DATASETS,
    config=DpFedMfConfig,
    plan=FAMILY.build,
    guarantee=FAMILY.guarantee,
    guarantee_of_run=FAMILY.guarantee_of_run,
)


class FedMfLeanConfig(FedMfConfig):
    """Settings of FedMF-Lean."""

    values: ValueCoding = "int4"  # how numbers travel, both ways
    row_share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # of the items that a round is about
    averaging: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95  # of the table that ranks, over the last rounds


def fedmf_lean_plan(config: FedMfLeanConfig, problem: Problem) -> Plan:
    """Assemble FedMF-Lean."""
    schema = schema_of(config, problem).coded(config.values)
    round_planner = SeededParts(schema=schema, public_seed=problem.public_seed, row_share=config.row_share)
    return mf_plan(config, problem, NoNoise(schema), round_planner=round_planner, averaging=config.averaging)


FEDMF_LEAN = replace(FEDMF, **described("fedmf-lean"), config=FedMfLeanConfig, plan=fedmf_lean_plan)
