"""What a run, a release or a query promises, with everything that an epsilon means nothing without."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

Unit = Literal["click", "history", "user"]
Adjacency = Literal["replace-one", "add-remove"]
Scope = Literal["per message", "per round", "whole run", "lifetime"]
Trust = Literal["nobody", "server sees only sums", "server"]
Basis = Literal["proven", "as published", "none"]


@dataclass(frozen=True)
class Guarantee:
    """One statement; epsilon is None where nothing is promised (basis "none")."""

    basis: Basis
    unit: Unit | None = None
    adjacency: Adjacency | None = None
    epsilon: float | None = None
    delta: float | None = None
    scope: Scope | None = None
    trust: Trust | None = None
    caveats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        fields = (self.unit, self.adjacency, self.epsilon, self.delta, self.scope, self.trust)
        if self.basis == "none" and any(field is not None for field in fields):
            raise ValueError("a guarantee with basis 'none' promises nothing: leave the other fields out")
        if self.basis != "none" and any(field is None for field in fields):
            raise ValueError("an epsilon needs its unit, adjacency, delta, scope and trust")
        if self.epsilon is not None and not 0.0 <= self.epsilon < math.inf:
            raise ValueError(f"epsilon is {self.epsilon}: it is finite and not negative")
        if self.delta is not None and not 0.0 <= self.delta < 1.0:
            raise ValueError(f"delta is {self.delta}: it lies from 0 to below 1")

    def to_json(self) -> dict[str, Any]:
        """All fields, for result files."""
        return asdict(self) | {"caveats": list(self.caveats)}

    def line(self) -> str:
        """One line for tables and logs; an epsilon is never printed without its unit and the rest."""
        if self.basis == "none":
            return "no privacy guarantee"
        return (
            f"({self.epsilon:g}, {self.delta:g})-DP per {self.unit} ({self.adjacency}), {self.scope}, "
            f"trusting: {self.trust}, {self.basis}"
        )


def no_guarantee(*caveats: str) -> Guarantee:
    """The statement of a method whose messages are not private."""
    return Guarantee(basis="none", caveats=caveats)
