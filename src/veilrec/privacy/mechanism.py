"""What every mechanism has to declare before it may touch anybody's data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from veilrec.errors import BadInput
from veilrec.privacy.events import Event
from veilrec.privacy.guarantee import Adjacency, Scope, Trust, Unit
from veilrec.privacy.randomness import Source

Calibration = Literal["proven", "as-published"]
Norm = Literal["L1", "L2", "changed entries"]
Input = TypeVar("Input")
Output = TypeVar("Output")


@dataclass(frozen=True)
class Sensitivity:
    """How far two adjacent inputs can be apart, and in which norm."""

    value: float
    norm: Norm


@dataclass(frozen=True)
class Released(Generic[Output]):
    """What may leave, and what it cost."""

    value: Output
    event: Event


class Mechanism(ABC, Generic[Input, Output]):
    """A randomised function with a stated privacy; every field is part of the statement."""

    name: str
    calibration: Calibration
    unit: Unit
    adjacency: Adjacency
    scope: Scope = "per message"  # of one release on a device; what a server releases says otherwise
    trust: Trust = "nobody"
    sensitivity: Sensitivity
    claimed_epsilon: float  # what the statement (proven) or the paper (as published) says of one release
    claimed_delta: float

    @abstractmethod
    def release(self, value: Input, source: Source) -> Released[Output]:
        """Check the input, perturb it, and return it with its event; bad input raises and costs nothing."""

    @abstractmethod
    def event(self) -> Event:
        """The honest privacy event of one release, whatever is claimed."""

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """The honest privacy profile of one release: the smallest delta at this epsilon."""

    @abstractmethod
    def worst_pair(self) -> tuple[Input, Input]:
        """Two adjacent inputs that the mechanism separates best: the audit tries these."""


def require_complete(mechanism: Mechanism[Any, Any]) -> None:
    """Refuse a mechanism that leaves part of its statement out."""
    wanted = ("name", "calibration", "unit", "adjacency", "sensitivity", "claimed_epsilon", "claimed_delta")
    missing = [field for field in wanted if getattr(mechanism, field, None) is None]
    if missing:
        raise BadInput(
            f"mechanism {type(mechanism).__name__} does not state its {', '.join(missing)}:"
            " nothing may be released by it"
        )
