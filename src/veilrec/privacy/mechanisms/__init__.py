"""Every mechanism by name; a module is imported when its mechanism is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from veilrec.core.errors import known_name

if TYPE_CHECKING:
    from veilrec.privacy.mechanisms.base import Mechanism

MECHANISMS: dict[str, str] = {
    "gaussian": "noise:Gaussian",
    "laplace": "noise:Laplace",
    "discrete-gaussian": "discrete:DiscreteGaussian",
    "discrete-laplace": "discrete:DiscreteLaplace",
    "randomised-response": "responses:RandomisedResponse",
    "unary-encoding": "responses:UnaryEncoding",
    "k-ary-response": "responses:KaryResponse",
    "subset-selection": "responses:SubsetSelection",
    "attention": "attention:PrivateAttention",
    "padded-attention": "attention:PaddedAttention",
    "interest-response": "interests:InterestResponse",
    "pooled-interest": "interests:PooledInterest",
    "embedding-noise": "interests:EmbeddingNoise",
    "label-permutation": "responses:LabelPermutation",
    "label-response": "responses:LabelResponse",
    "update-noise": "messages:UpdateNoise",
    "cohort-sum": "updates:CohortSum",
    "adaptive-sum": "adaptive:AdaptiveSum",
    "scheduled-sum": "scheduled:ScheduledSum",
    "tree-sum": "tree:TreeSum",
    "shared-sum": "shared:SharedSum",
    "item-histogram": "reports:ItemHistogram",
    "vote-reports": "votes:VoteReports",
    "gain-sum": "gains:GainSum",
    "elementwise-laplace": "messages:ElementwiseLaplace",
    "rowwise-laplace": "messages:RowwiseLaplace",
    "update-laplace": "messages:UpdateLaplace",
    "low-rank-update": "compressed:LowRank",
    "top-k-update": "compressed:LargestEntries",
    "sent-entries": "compressed:SentEntries",
    "sparse-deep-update": "compressed:SparseDeep",
}


def mechanism_class(name: str) -> type[Mechanism[Any, Any]]:
    """The class of a mechanism."""
    module, attribute = MECHANISMS[known_name("mechanism", name, MECHANISMS)].split(":")
    found: type[Mechanism[Any, Any]] = getattr(import_module(f"{__name__}.{module}"), attribute)
    return found


def instances() -> list[Mechanism[Any, Any]]:
    """Small instances of every mechanism, proven and as published, for contract tests and audits."""
    return [example for name in MECHANISMS for example in mechanism_class(name).examples()]
