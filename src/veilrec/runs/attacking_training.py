"""Attacks on what a training sends and releases, by method and calibration: who was in it, and what they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from veilrec.privacy.guarantee import Trust
from veilrec.runs.attack_subjects import Subject
from veilrec.simulate.attacks.canaries import Kind
from veilrec.simulate.attacks.inversion import Inverted, invert
from veilrec.simulate.attacks.membership import Effort, Membership, ceiling_of, find_members
from veilrec.simulate.attacks.readers import Finding
from veilrec.simulate.attacks.row_support import Place, recover_rows

_HIDDEN: dict[Trust | None, tuple[str, ...]] = {  # what nobody sees
    "server sees only noisy sums": ("update", "message", "secure sum"),
    "server sees only sums": ("update", "message"),
}


class Found(Protocol):
    """One finding of an attack."""

    def to_json(self) -> dict[str, Any]:
        """All of it."""


@dataclass(frozen=True)
class Result:
    """What one attack found in one subject."""

    attack: str
    subject: Subject
    findings: Sequence[Found]
    about: dict[str, Any] = field(default_factory=dict)  # of all findings

    def to_json(self) -> dict[str, Any]:
        """The first finding, which is the one that the method's statement is about, and all of them."""
        s = self.subject
        named = {"attack": self.attack, "method": s.method, "calibration": s.calibration, "model": s.trained}
        terms = {"claimed": s.claimed.to_json(), "data": s.data, **self.about}
        return named | self.findings[0].to_json() | terms | {"findings": [f.to_json() for f in self.findings]}


def attack_members(subject: Subject, *, effort: Effort, kinds: Sequence[Kind], seed: int = 0) -> Result:
    """Train a subject with canaries among its devices; a run is trained again, with its own settings and data."""
    plan, split = subject.plan, subject.split
    found: list[Membership] = []
    with subject.named():
        for kind in kinds:
            found += find_members(
                plan, subject.devices, split.train, split.n_items, subject.claimed, effort=effort, kind=kind, seed=seed
            )
    ceiling = asdict(ceiling_of(plan)) if subject.claimed.basis == "proven" else None
    return Result("membership", subject, found, {"rounds": plan.rounds, "ceiling": ceiling})


def place_of(subject: Subject, seed: int) -> Place:
    """Where a subject's devices are attacked."""
    split = subject.split
    return Place(subject.plan, subject.devices, split.train, subject.weights, split.n_items, seed)


def attack_rows(subject: Subject, *, uploads: int, seed: int = 0) -> Result:
    """Look for the items that a subject's devices have in the rows that they send."""
    with subject.named():
        found = recover_rows(place_of(subject, seed), uploads=uploads)
    return Result("row-support", subject, _seen_by_somebody(subject, found))


def attack_messages(subject: Subject, *, uploads: int, seed: int = 0) -> Result:
    """Work out histories from the numbers of messages, of their sums, and of what is released."""
    with subject.named():
        found = invert(place_of(subject, seed), uploads=uploads)
    return Result("inversion", subject, _seen_by_somebody(subject, found))


def _seen_by_somebody(subject: Subject, found: Sequence[Finding] | Sequence[Inverted]) -> Sequence[Found]:
    """Where messages are masked, nobody sees one by itself; where devices add the noise, nobody sees a sum without."""
    hidden = _HIDDEN.get(subject.claimed.trust, ())
    return [one for one in found if one.view not in hidden]
