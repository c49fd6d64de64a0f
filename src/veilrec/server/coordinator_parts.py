"""What a coordinator needs of a plan, and the interface of secure aggregation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from veilrec._arrays import Offsets
from veilrec.privacy.ledger import statement
from veilrec.privacy.mechanisms.gains import GainSum
from veilrec.privacy.mechanisms.reports import ItemReports
from veilrec.privacy.mechanisms.updates import UpdateMechanism
from veilrec.server.aggregate import Aggregation
from veilrec.server.bound import BoundRule
from veilrec.server.cohorts import CohortSettings
from veilrec.server.optimise import ServerRate
from veilrec.server.standing import ServerPart
from veilrec.updates import ReportSum, Round


class ReportingPart(Protocol):
    """Reports that clients send before rounds, and how often."""

    @property
    def mechanism(self) -> ItemReports:
        """Mechanism of a report, and of the counts."""

    @property
    def who(self) -> Literal["everybody", "cohort"]:
        """The clients that report."""

    @property
    def fresh(self) -> bool:
        """Whether every round needs a new report."""

    @property
    def once(self) -> bool:
        """Whether one tally serves the whole run."""


class ComparisonPart(Protocol):
    """Comparison by held-out validation clients after the last round."""

    @property
    def mechanism(self) -> GainSum:
        """Mechanism that bounds a gain and protects the sum of all."""


class SecureSum(Protocol):
    """Secure aggregation of updates, and of reports before the first round."""

    @property
    def attempts(self) -> int:
        """Largest number of secure sums of the same reports that a client takes part in."""

    @property
    def waits(self) -> bool:
        """Whether those who have not sent what a sum asks for can still do so, however late."""

    def open(self, about: Round | ReportSum, cohort: Sequence[str]) -> bytes | None:
        """Begin a sum and return its invitation; None if it cannot begin. Waits for helpers or clients."""

    def senders(self, invitation: bytes, cohort: int) -> int:
        """Number of clients of a cohort that can send a message."""

    def crossed(self, invitation: bytes, cohort: int) -> tuple[int, int]:
        """Bytes to devices and from them, beside model and messages."""

    def check(self, invitation: bytes, device: int, message: bytes) -> None:
        """Refuse bytes that are not a message of this device for this round."""

    def total(self, invitation: bytes, messages: Sequence[bytes]) -> Offsets | None:
        """Open the sum of these messages, the same whenever it is asked; None if void. Waits for helpers or clients."""


class CoordinatorPart(ServerPart, Protocol):
    """The parts of a plan that a coordinator needs."""

    @property
    def mechanism(self) -> UpdateMechanism:
        """Mechanism that bounds messages and protects their sum."""

    @property
    def reports(self) -> ReportingPart | None:
        """Reports before rounds; None if there are none."""

    @property
    def comparison(self) -> ComparisonPart | None:
        """Comparison after the last round; None if there is none."""

    @property
    def rounds(self) -> int:
        """Number of rounds that the noise was chosen for."""

    @property
    def cohort(self) -> CohortSettings:
        """Client sampling."""

    @property
    def aggregation(self) -> Aggregation:
        """Aggregation rule."""

    @property
    def server(self) -> ServerRate:
        """Server optimiser."""

    @property
    def bound_rule(self) -> BoundRule | None:
        """Adaptive clipping; None if the clip norm is fixed."""

    @property
    def decay_share(self) -> float:
        """Weight decay for every client of a round."""


@dataclass(frozen=True)
class ReportRequest:
    """The clients whose reports are due before a round."""

    round_number: int
    period: int
    devices: tuple[str, ...]
    invitation: bytes | None = None  # to a secure sum of reports; None: they are seen; empty: it could not begin


@dataclass(frozen=True)
class ComparisonTask:
    """The two models that held-out validation clients compare, encoded as rounds, and these clients."""

    number: int
    start: bytes
    trained: bytes
    devices: tuple[str, ...]


def run_digest(plan: CoordinatorPart) -> str:
    """Digest the settings that a run cannot change on its way."""
    settings = (plan.schema, plan.aggregation, plan.server, plan.cohort, plan.rounds, plan.decay_share, plan.averaging)
    reports = None if plan.reports is None else statement(plan.reports.mechanism)
    parts = (settings, statement(plan.mechanism), reports, plan.from_reports, plan.bound_rule)
    digest = hashlib.sha256(repr(parts).encode())
    for name in sorted(plan.start):
        digest.update(np.ascontiguousarray(plan.start[name]).tobytes())
    return digest.hexdigest()
