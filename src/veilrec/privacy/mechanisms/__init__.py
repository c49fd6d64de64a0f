"""Every mechanism by name; a module is imported when its mechanism is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from veilrec.errors import unknown_name

if TYPE_CHECKING:
    from veilrec.privacy.mechanisms._accounted import Accounted

MECHANISMS: dict[str, str] = {
    "gaussian": "gaussian:Gaussian",
    "laplace": "laplace:Laplace",
    "discrete-gaussian": "discrete:DiscreteGaussian",
    "discrete-laplace": "discrete:DiscreteLaplace",
    "randomised-response": "bits:RandomisedResponse",
    "unary-encoding": "bits:UnaryEncoding",
    "k-ary-response": "categories:KaryResponse",
    "subset-selection": "categories:SubsetSelection",
    "attention": "attention:PrivateAttention",
    "padded-attention": "attention:PaddedAttention",
    "interest-response": "interests:InterestResponse",
    "pooled-interest": "interests:PooledInterest",
    "embedding-noise": "interests:EmbeddingNoise",
    "label-permutation": "labels:LabelPermutation",
    "label-response": "labels:LabelResponse",
    "update-noise": "updates:UpdateNoise",
    "cohort-sum": "updates:CohortSum",
    "adaptive-sum": "adaptive:AdaptiveSum",
    "elementwise-laplace": "updates:ElementwiseLaplace",
    "rowwise-laplace": "updates:RowwiseLaplace",
    "masked-update": "sparsify:MaskedUpdate",
    "top-k-update": "sparsify:TopKUpdate",
}


def mechanism_class(name: str) -> type[Accounted[Any, Any]]:
    """The class of a mechanism."""
    if name not in MECHANISMS:
        raise unknown_name("mechanism", name, MECHANISMS)
    module, attribute = MECHANISMS[name].split(":")
    found: type[Accounted[Any, Any]] = getattr(import_module(f"{__name__}.{module}"), attribute)
    return found


def instances() -> list[Accounted[Any, Any]]:
    """Small instances of every mechanism, proven and as published, for contract tests and audits."""
    return [example for name in MECHANISMS for example in mechanism_class(name).examples()]
