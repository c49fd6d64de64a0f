"""Everything that an audit covers: all mechanisms, the published claims that fail, the planted bugs."""

from __future__ import annotations

from typing import Any

from veilrec.errors import unknown_name
from veilrec.privacy.audit.case import Case
from veilrec.privacy.audit.known_bad import FLAWS, gradient_case
from veilrec.privacy.audit.plan import attacks_on
from veilrec.privacy.audit.planted import planted_cases
from veilrec.privacy.mechanism import Mechanism, require_complete
from veilrec.privacy.mechanisms import instances


def all_cases() -> tuple[Case, ...]:
    """Proven ones first, then known-bad ones, then planted bugs."""
    of_mechanisms = [case_of(mechanism) for mechanism in instances()]
    proven = [case for case in of_mechanisms if case.kind == "proven"]
    bad = [case for case in of_mechanisms if case.kind == "known-bad"]
    return (*proven, *bad, gradient_case(), *planted_cases())


def case_of(mechanism: Mechanism[Any, Any]) -> Case:
    """The claim of a mechanism; one as published whose own honest profile exceeds its claim is known to be bad."""
    require_complete(mechanism)
    exceeds = mechanism.delta(mechanism.claimed_epsilon) > mechanism.claimed_delta * (1.0 + 1e-6)
    bad = mechanism.calibration == "as-published" and exceeds
    return Case(
        name=mechanism.name,
        kind="known-bad" if bad else "proven",
        calibration=mechanism.calibration,
        unit=mechanism.unit,
        adjacency=mechanism.adjacency,
        scope=mechanism.scope,
        trust=mechanism.trust,
        claimed_epsilon=mechanism.claimed_epsilon,
        delta=mechanism.claimed_delta,
        attacks=attacks_on(mechanism),
        size=_size(mechanism),
        why=FLAWS[mechanism.name] if bad else "",
    )


def _size(mechanism: Mechanism[Any, Any]) -> str:
    sizes = ("dimension", "length", "categories", "items", "rows")
    return next((f"{size} {getattr(mechanism, size)}" for size in sizes if hasattr(mechanism, size)), "")


def select(name: str) -> tuple[Case, ...]:
    """All cases, or those of one name."""
    cases = all_cases()
    chosen = tuple(case for case in cases if name in ("all", case.name))
    if not chosen:
        raise unknown_name("mechanism", name, {"all", *(case.name for case in cases)})
    return chosen
