"""Audit of the claims of all mechanisms and serving modes, of published claims that fail, and of planted bugs.

Seeds are fixed by default. Every case may raise a false alarm with probability ALPHA, split equally among its attacks.
A claim is refuted when a lower bound on epsilon exceeds it. A proven claim must also nearly be reached on its worst
pair: a bound below half of the claim (or of what the attack can reach) means that the pair, the score or the sampler
no longer works, and fails the audit as well. So do draws that do not follow the distribution an exact bound rests on.

Serving modes are audited at the usual sizes. Attention with padding is audited with interests so far apart, and a
history so short, that one click decides the attention: no real model comes closer to the worst case.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from veilrec.audit.claims import AttackEffort, ClaimCase, Evidence, Kind, Method, Outcome
from veilrec.audit.flawed import gradient_case, planted_cases
from veilrec.audit.strategies import attacks_on
from veilrec.client.queries import Padding, Serving, Sizes, make_mechanism
from veilrec.core.arrays import Bools, Doubles
from veilrec.core.errors import known_name
from veilrec.privacy.guarantee import Adjacency, Basis, Scope, Trust, Unit
from veilrec.privacy.mechanisms import instances
from veilrec.privacy.mechanisms.base import PUBLISHED_FLAWS, Mechanism, require_complete

ALPHA = 1e-4
FULL_EFFORT = 5  # times the draws of a quick audit
_LEAST_SHARE = 0.5  # of a proven claim, that an attack has to reach


@dataclass(frozen=True)
class AuditVerdict:
    """The audit's result for one claim."""

    name: str
    kind: Kind
    calibration: str
    unit: Unit
    adjacency: Adjacency
    scope: Scope
    trust: Trust
    basis: Basis
    claimed_epsilon: float
    delta: float
    lower_bound: float
    method: Method
    reach: float | None  # see `Evidence`; None: no limit
    verdict: Outcome
    expected: Outcome
    rotted: bool
    seconds: float
    size: str
    why: str

    @property
    def passed(self) -> bool:
        """Whether the verdict is the expected one and the attack still works."""
        return self.verdict == self.expected and not self.rotted

    def to_json(self) -> dict[str, Any]:
        """All fields, for `veilrec audit --json`."""
        bound = self.lower_bound if self.lower_bound < math.inf else None  # JSON has no infinity
        return {**vars(self), "lower_bound": bound, "passed": self.passed}


@dataclass(frozen=True)
class Audit:
    """The verdicts of all audited claims."""

    verdicts: tuple[AuditVerdict, ...]

    @property
    def passed(self) -> bool:
        """Whether every proven claim holds and every bad one is refuted."""
        return all(verdict.passed for verdict in self.verdicts)

    @property
    def false_alarm_rate(self) -> float:
        """Upper bound, over all seeds, on the probability that a sound claim is refuted."""
        return ALPHA * sum(verdict.kind == "proven" for verdict in self.verdicts)


def audit(
    cases: Sequence[ClaimCase],
    *,
    quick: bool,
    seed: int = 0,
    progress: Callable[[Iterable[ClaimCase]], Iterable[ClaimCase]] = iter,
) -> Audit:
    """Attack every case; `progress` may wrap the iteration."""
    effort = 1 if quick else FULL_EFFORT
    return Audit(tuple(judge(case, effort=effort, seed=seed) for case in progress(cases)))


def judge(case: ClaimCase, *, effort: int, seed: int) -> AuditVerdict:
    """Attack one case and compare the strongest lower bound with the claim."""
    start = time.perf_counter()
    evidence = [
        attack.run(case.key, case.delta, AttackEffort((seed, number), effort, ALPHA / len(case.attacks)))
        for number, attack in enumerate(case.attacks)
    ]
    strongest = max(evidence, key=lambda found: (found.no_epsilon, found.lower_bound))
    most = max(found.reach for found in evidence)
    refuted = any(found.no_epsilon or found.lower_bound > case.claimed_epsilon for found in evidence)
    return AuditVerdict(
        name=case.name,
        kind=case.kind,
        calibration=case.calibration,
        unit=case.unit,
        adjacency=case.adjacency,
        scope=case.scope,
        trust=case.trust,
        basis=case.basis,
        claimed_epsilon=case.claimed_epsilon,
        delta=case.delta,
        lower_bound=round(strongest.lower_bound, 6),
        method=strongest.method,
        reach=round(most, 6) if most < math.inf else None,
        verdict="refuted" if refuted else "holds",
        expected=case.expected,
        rotted=case.kind == "proven" and _too_weak(case, evidence),
        seconds=round(time.perf_counter() - start, 3),
        size=case.size,
        why=case.why,
    )


def _too_weak(case: ClaimCase, evidence: Sequence[Evidence]) -> bool:
    """Whether no attack came near the claim although one could have, or an attack's assumption failed."""
    reachable = min(case.claimed_epsilon, max(found.reach for found in evidence))
    strongest = max(found.lower_bound for found in evidence)
    return strongest < _LEAST_SHARE * reachable or any(found.broken for found in evidence)


def all_cases() -> tuple[ClaimCase, ...]:
    """All claims: proven ones first, then known-bad ones, then planted bugs."""
    of_mechanisms = [case_of(mechanism) for mechanism in instances()]
    proven = [case for case in of_mechanisms if case.kind == "proven"]
    bad = [case for case in of_mechanisms if case.kind == "known-bad"]
    return (*proven, *bad, gradient_case(), *planted_cases())


def case_of(mechanism: Mechanism[Any, Any]) -> ClaimCase:
    """Build the case of a mechanism; one as published whose own accounting exceeds its claim is known-bad."""
    require_complete(mechanism)
    exceeds = mechanism.delta(mechanism.claimed_epsilon) > mechanism.claimed_delta * (1.0 + 1e-6)
    bad = mechanism.calibration == "as-published" and exceeds
    return ClaimCase(
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
        why=PUBLISHED_FLAWS[mechanism.name] if bad else "",
    )


def _size(mechanism: Mechanism[Any, Any]) -> str:
    sizes = ("dimension", "length", "categories", "items", "rows")
    return next((f"{size} {getattr(mechanism, size)}" for size in sizes if hasattr(mechanism, size)), "")


def select(name: str) -> tuple[ClaimCase, ...]:
    """Select all cases, or those with one name."""
    cases = all_cases()
    name = known_name("mechanism", name, {"all", *(case.name for case in cases)})
    return tuple(case for case in cases if name in ("all", case.name))


PREFIX = "serving-"
ALL = "serving"  # all of them together
_FAR = 20.0 * np.eye(5)  # scores 400 / sqrt(5) apart
AUDITED = (
    Serving(mode="attention", epsilon=5.0, delta=1e-6),
    Serving(mode="attention", epsilon=1.0),
    Serving(mode="attention", epsilon=1.0, padding=0.5),
    Serving(mode="attention", epsilon=1.0, delta=1e-6, padding=0.5),
    Serving(mode="pooled", epsilon=5.0, delta=1e-6),
    Serving(mode="pooled", epsilon=1.0, delta=1e-6),
    Serving(mode="interest", epsilon=1.0),
    Serving(mode="interest", epsilon=5.0),
    Serving(mode="vector", epsilon=5.0, delta=1e-6),
    Serving(mode="vector", epsilon=1.0),
    Serving(mode="attention", epsilon=1.0, calibration="as-published"),
    Serving(mode="attention", epsilon=10.0, delta=1e-3, calibration="as-published"),
    Serving(mode="attention", epsilon=1.0, padding=0.5, calibration="as-published"),
    Serving(mode="vector", epsilon=1.0, calibration="as-published"),
)
"""What is attacked: every mode with every noise, at an epsilon that attacks can reach, proven and as published."""


def _first(clicks: Doubles, taken: Bools) -> Doubles:
    only: Doubles = clicks[:, 0]
    return only


def sizes_of(serving: Serving) -> Sizes:
    """Model sizes that a serving mode is audited with: the usual ones, or those of the padding worst case."""
    if serving.padding:
        return Sizes(slots=1, padding=Padding(_first, _FAR, _FAR[4]))
    return Sizes()


def serving_cases(name: str = ALL) -> tuple[ClaimCase, ...]:
    """The claims of all serving modes, or of one, named `serving-MODE`."""
    cases = [(how, case_of(make_mechanism(how, sizes_of(how)))) for how in AUDITED]
    named = [replace(case, name=PREFIX + how.mode) for how, case in cases]
    return tuple(case for case in named if name in (ALL, case.name))


def serving_names() -> set[str]:
    """Names that `serving_cases` accepts."""
    return {ALL, *(PREFIX + how.mode for how in AUDITED)}
