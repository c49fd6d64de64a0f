"""What was done to somebody's privacy, as data: accounting reads it, nothing else does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True)
class GaussianEvent:
    """Gaussian noise; mu = sensitivity / standard deviation, for the adjacency that the mechanism states."""

    mu: float


@dataclass(frozen=True)
class LaplaceEvent:
    """Laplace noise in one coordinate (or the worst case over L1): epsilon = sensitivity / scale."""

    epsilon: float


@dataclass(frozen=True)
class PureEvent:
    """Any epsilon-DP mechanism; accounted as randomised response, which is the worst of them."""

    epsilon: float


@dataclass(frozen=True)
class ZcdpEvent:
    """Any rho-zCDP mechanism, such as a discrete Gaussian: Renyi divergences of at most rho alpha, at every order.

    Not a Gaussian with mu = sqrt(2 rho): the discrete one has up to 4 times the delta of that.
    """

    rho: float


@dataclass(frozen=True)
class SampledEvent:
    """A Gaussian release of which a person is part only by chance.

    fixed: a cohort of a fixed size drawn without replacement, replace-one; padding: a click is replaced by a pad with
    probability 1 - rate, replace-one; poisson: every person tosses a coin, add-remove. mu is relative to the same
    adjacency as the sampling.
    """

    mu: float
    rate: float
    sampling: Literal["fixed", "poisson", "padding"]


@dataclass(frozen=True)
class TreeEvent:
    """Tree aggregation (DP-FTRL) over `steps` rounds in which each person takes part at most once."""

    noise_multiplier: float
    steps: int


@dataclass(frozen=True)
class ComposedEvent:
    """Several events, one after another, each possibly repeated; later ones may depend on earlier outputs."""

    parts: tuple[tuple[Event, int], ...]


@dataclass(frozen=True)
class NonPrivateEvent:
    """Something left in the clear: no epsilon is finite."""


Event: TypeAlias = (
    GaussianEvent | LaplaceEvent | PureEvent | ZcdpEvent | SampledEvent | TreeEvent | ComposedEvent | NonPrivateEvent
)


def repeated(event: Event, count: int) -> ComposedEvent:
    """The same event `count` times."""
    return ComposedEvent(((event, count),))
