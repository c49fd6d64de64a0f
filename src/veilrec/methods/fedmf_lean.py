"""FedMF-Lean: FedMF with far fewer bytes, not private: small integers on the wire, and a part of the items a round.

A public seed names the rows of every round. Devices learn on those alone, so negatives are shared and few rows
are touched; rows travel as small integers with one scale each, both ways.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from veilrec.device import mf
from veilrec.device.protection import Unprotected
from veilrec.methods.base import Method, Problem
from veilrec.methods.fedmf import PRESETS as FEDMF_PRESETS
from veilrec.methods.fedmf import FedMfConfig, guarantee, make_simulation
from veilrec.methods.private import merged
from veilrec.simulate.choosers import SeededParts
from veilrec.simulate.trainer import Trainer
from veilrec.wire.values import ValueCoding


class FedMfLeanConfig(FedMfConfig):
    """Settings of FedMF-Lean."""

    values: ValueCoding = "int8"  # how numbers travel, both ways
    row_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.4  # of the items that a round is about


def build(config: FedMfLeanConfig, problem: Problem) -> Trainer:
    """Put the parts together."""
    schema = mf.schema(problem.n_items, config.local.dim)
    chooser = SeededParts(schema, problem.seed, row_share=config.row_share)
    return make_simulation(config, problem, Unprotected(), chooser=chooser, values=config.values)


METHOD = Method(
    name="fedmf-lean",
    kind="federated",
    paper="ours",
    model="matrix factorisation",
    summary="fedmf with small integers on the wire and a part of the items a round: a tenth of the bytes",
    datasets=("ml-100k", "ml-1m", "frappe", "csv", "synthetic-ratings"),
    config=FedMfLeanConfig,
    build=build,
    guarantee=guarantee,
    rounds=200,
    presets=merged({name: FEDMF_PRESETS[name] for name in ("tuned@ml-100k", "tuned@ml-1m")}),
    item_parameters=32,
)
