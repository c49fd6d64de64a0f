"""The part of an audit that is about the last comparison: who judges, how far one of them moves it, and its noise."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from veilrec._arrays import Doubles, Floats, Offsets
from veilrec._csr import Csr
from veilrec.device.judging import Judge
from veilrec.device.learner import LocalData
from veilrec.plan import Plan
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.privacy.guarantee import Guarantee
from veilrec.privacy.mechanisms.gains import STANDARD_ERRORS
from veilrec.server.verdict import Verdict
from veilrec.simulate.checks import Check, at_least, at_most, is_equal, is_gaussian, spread_at_least
from veilrec.simulate.simulation import Seeds, Simulation

_DRAWS = 600  # of the noise, by the run itself
_SLACK = 0.002  # of the noise, as for sums
_FAR = 8.0  # standard deviations that no noise reaches
_A_LITTLE = 1e-6


@dataclass(frozen=True)
class _Says:
    """Judges who all say the same, whatever they see."""

    judge: Judge[Any]
    gain: float

    def devices(self, data: LocalData) -> Offsets:
        return self.judge.devices(data)

    def gains(self, data: LocalData, start: Mapping[str, Floats], trained: Mapping[str, Floats]) -> Doubles:
        return np.full(len(data.rows), self.gain)


def comparison_checks(plan: Plan, data: LocalData, histories: Csr, guarantee: Guarantee, seed: int) -> Iterator[Check]:
    """What the statement needs of the comparison, against what a run of it does with judges that we control."""
    comparison = plan.comparison
    if comparison is None or guarantee.epsilon is None or guarantee.delta is None:
        return
    mechanism, judges = comparison.mechanism, comparison.judge.devices(data)
    both = np.intersect1d(judges, np.flatnonzero(data.rows.lengths() > 0))
    yield is_equal("devices that learn and judge", len(both), 0, f"{len(judges)} judge")
    moved = mechanism.clip * (1.0 if guarantee.adjacency == "add-remove" else 2.0)
    needed = moved / mu_for(guarantee.epsilon, guarantee.delta) * (1.0 - _SLACK)
    yield is_equal("adjacency of the comparison", mechanism.adjacency, str(guarantee.adjacency))
    yield at_least("how far one judge moves the sum, as accounted for", mechanism.sensitivity.value, moved)
    if not len(judges):
        return
    run = _Run(plan, data, histories, seed, len(judges))
    for way, secret in (("secret", True), ("seeded", False)):
        noise = np.array([run.verdict(0.0, number, secret=secret).gain for number in range(_DRAWS)]) * len(judges)
        yield spread_at_least("standard deviation of the noise on the judges' sum", noise, needed, way)
        yield is_gaussian("distance of that noise from a Gaussian", noise, way)
    limit = len(judges) * mechanism.clip + _FAR * mechanism.sigma
    for gain in (1e6, -1e6, math.inf, math.nan):
        said = abs(run.verdict(gain, 0, secret=True).gain) * len(judges)
        yield at_most(f"sum of judges who all say {gain:g}", said, limit)
    yield from _decisions(run, mechanism.clip, mechanism.sigma)


class _Run:
    """A plan's own comparison, made again and again."""

    def __init__(self, plan: Plan, data: LocalData, histories: Csr, seed: int, judges: int) -> None:
        self._simulation = Simulation(plan, data, histories, Seeds.all_from(seed))
        self._comparison: Any = plan.comparison
        self._seed = seed
        self.judges = judges

    def verdict(self, gain: float, number: int, *, secret: bool) -> Verdict:
        """With judges who all say the same."""
        made = self._simulation
        key = hashlib.sha256(f"comparison {self._seed} {number}".encode()).digest() if secret else None
        made.seeds = Seeds.all_from(self._seed + number, key)
        made.plan = replace(made.plan, comparison=replace(self._comparison, judge=_Says(self._comparison.judge, gain)))
        made.compare()
        if made.verdict is None:
            raise ValueError("a plan with a comparison came to no verdict")
        return made.verdict


def _decisions(run: _Run, clip: float, sigma: float) -> Iterator[Check]:
    """Training is kept where the noisy mean gain exceeds what was promised, and only there."""
    threshold = STANDARD_ERRORS * math.sqrt(run.judges * clip**2 + sigma**2) / run.judges
    gains = (-clip, 0.0, 0.5 * threshold, threshold, 1.5 * threshold, 2.0 * threshold, clip)
    found = [run.verdict(gain, number, secret=True) for number, gain in enumerate(gains)]
    wrong = sum((one.kept == "trained") != (one.gain > threshold * (1.0 + _A_LITTLE)) for one in found)
    yield is_equal("comparisons that keep a model against their own threshold", wrong, 0)
