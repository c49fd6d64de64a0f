"""A claim, and the attacks that it has to withstand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from veilrec.privacy.audit.attacks import Attack
from veilrec.privacy.guarantee import Adjacency, Basis, Scope, Trust, Unit

Kind = Literal["proven", "known-bad", "planted"]
Outcome = Literal["holds", "refuted"]


@dataclass(frozen=True)
class Case:
    """What is claimed of one release, and how it is attacked."""

    name: str
    kind: Kind
    calibration: Literal["proven", "as-published", "planted"]
    unit: Unit
    adjacency: Adjacency
    claimed_epsilon: float
    delta: float
    attacks: tuple[Attack, ...]
    scope: Scope = "per message"
    trust: Trust = "nobody"
    size: str = ""  # of the instance that is attacked
    why: str = ""  # what is wrong with a known-bad or planted one

    @property
    def key(self) -> str:
        """What tells it from all other cases."""
        claim = f"{self.claimed_epsilon} {self.delta} {self.unit} {self.adjacency}"
        return f"{self.name} {self.calibration} {self.size} {claim}"

    @property
    def basis(self) -> Basis:
        """What the claim rests on; that of a planted bug rests on nothing."""
        bases: dict[str, Basis] = {"proven": "proven", "as-published": "as published", "planted": "none"}
        return bases[self.calibration]

    @property
    def expected(self) -> Outcome:
        """What an audit that works says of it."""
        return "holds" if self.kind == "proven" else "refuted"
