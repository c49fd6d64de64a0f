"""What every mechanism has to declare before it may touch anybody's data, and what all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np

from veilrec.core.errors import BadInput, unknown_name
from veilrec.privacy.accounting.accountant import delta_of
from veilrec.privacy.events import Event, repeated
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
    """A randomised function with a stated privacy; every field is part of the statement.

    Leading dimensions of an input are devices with an event each, unless a mechanism says that it takes one person
    at a time.
    """

    name: str
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven", "as-published")
    calibration: Calibration
    unit: Unit
    adjacency: Adjacency
    scope: Scope = "per message"  # of one release on a device; what a server releases says otherwise
    trust: Trust = "nobody"
    sensitivity: Sensitivity
    claimed_epsilon: float  # what the statement (proven) or the paper (as published) says of one release
    claimed_delta: float

    def release(self, value: Input, source: Source) -> Released[Output]:
        """Check the input, perturb it, and return it with its event; bad input raises and costs nothing."""
        require_complete(self)
        return Released(self._perturb(value, source), self.event())

    def release_many(self, value: Input, count: int, source: Source) -> Released[Output]:
        """So many independent releases of one input, along a new leading dimension, and what they cost together."""
        require_complete(self)
        return Released(self._perturb_many(value, count, source), repeated(self.event(), count))

    @abstractmethod
    def _perturb(self, value: Input, source: Source) -> Output:
        """Check the input before anything is drawn, then perturb it."""

    def _perturb_many(self, value: Any, count: int, source: Source) -> Output:
        """The same many times: as many devices with the same input, where a mechanism takes several."""
        one = np.asarray(value)
        same: Any = np.broadcast_to(one, (count, *one.shape))
        return self._perturb(same, source)

    @abstractmethod
    def event(self) -> Event:
        """The honest privacy event of one release, whatever is claimed."""

    def delta(self, epsilon: float) -> float:
        """The honest privacy profile of one release: the smallest delta known to hold at this epsilon."""
        return delta_of(self.event(), epsilon)

    @abstractmethod
    def worst_pair(self) -> tuple[Input, Input]:
        """Two adjacent inputs that the mechanism separates best: the audit tries these."""

    @classmethod
    @abstractmethod
    def examples(cls) -> tuple[Self, ...]:
        """Small instances, one or more per calibration, for contract tests and audits."""

    def _set_calibration(self, calibration: Calibration) -> None:
        if calibration not in self.calibrations:
            raise unknown_name(f"calibration of {self.name}", calibration, self.calibrations)
        self.calibration = calibration


def require_complete(mechanism: Mechanism[Any, Any]) -> None:
    """Refuse a mechanism that leaves part of its statement out."""
    wanted = ("name", "calibration", "unit", "adjacency", "sensitivity", "claimed_epsilon", "claimed_delta")
    missing = [field for field in wanted if getattr(mechanism, field, None) is None]
    if missing:
        raise BadInput(
            f"mechanism {type(mechanism).__name__} does not state its {', '.join(missing)}:"
            " nothing may be released by it"
        )
