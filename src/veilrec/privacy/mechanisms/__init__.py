"""Every mechanism by name; a module is imported when its mechanism is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from veilrec.core.errors import known_name

if TYPE_CHECKING:
    from veilrec.privacy.mechanisms.base import Mechanism

MECHANISMS: dict[str, str] = {
    "gaussian": "base:Gaussian",
    "laplace": "base:Laplace",
    "randomised-response": "responses:RandomisedResponse",
    "k-ary-response": "responses:KaryResponse",
    "attention": "attention:PrivateAttention",
    "padded-attention": "attention:PaddedAttention",
    "interest-response": "interests:InterestResponse",
    "pooled-interest": "interests:PooledInterest",
    "embedding-noise": "interests:EmbeddingNoise",
    "label-permutation": "responses:LabelPermutation",
    "label-response": "responses:LabelResponse",
    "update-noise": "local:UpdateNoise",
    "cohort-sum": "sums:CohortSum",
    "adaptive-sum": "schedules:AdaptiveSum",
    "scheduled-sum": "schedules:ScheduledSum",
    "tree-sum": "schedules:TreeSum",
    "shared-sum": "distributed:DistributedNoiseSum",
    "item-histogram": "reports:ItemHistogram",
    "vote-reports": "reports:VoteReports",
    "gain-sum": "sums:GainSum",
    "elementwise-laplace": "local:ElementwiseLaplace",
    "rowwise-laplace": "local:RowwiseLaplace",
    "update-laplace": "local:UpdateLaplace",
    "low-rank-update": "compression:LowRank",
    "top-k-update": "compression:LargestEntries",
    "sent-entries": "compression:SentEntries",
    "sparse-deep-update": "compression:SparseDeep",
}


def mechanism_class(name: str) -> type[Mechanism[Any, Any]]:
    """The class of a mechanism."""
    module, attribute = MECHANISMS[known_name("mechanism", name, MECHANISMS)].split(":")
    found: type[Mechanism[Any, Any]] = getattr(import_module(f"{__name__}.{module}"), attribute)
    return found


def instances() -> list[Mechanism[Any, Any]]:
    """Small instances of every mechanism, proven and as published, for contract tests and audits."""
    return [example for name in MECHANISMS for example in mechanism_class(name).examples()]
