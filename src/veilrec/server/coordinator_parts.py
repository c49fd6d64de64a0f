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
    """What devices are asked before a round, and how often."""

    @property
    def mechanism(self) -> ItemReports:
        """How they tell it, and what is done to the counts."""

    @property
    def who(self) -> Literal["everybody", "cohort"]:
        """Whom."""

    @property
    def fresh(self) -> bool:
        """Whether every round needs a new report."""

    @property
    def once(self) -> bool:
        """Whether one tally serves the whole run."""


class ComparisonPart(Protocol):
    """What is asked after the last round."""

    @property
    def mechanism(self) -> GainSum:
        """What bounds an answer, and protects the sum of all."""


class SecureSum(Protocol):
    """How messages, and reports before the first round, are added up where the server must not see any of them."""

    @property
    def attempts(self) -> int:
        """How often devices take part in a sum of the same reports, at most."""

    @property
    def waits(self) -> bool:
        """Whether those who have not sent what a sum asks for can still do so, however late."""

    def open(self, about: Round | ReportSum, cohort: Sequence[str]) -> bytes | None:
        """What belongs to a sum from now on; asked again, it may be another. None: it cannot begin."""

    def senders(self, invitation: bytes, cohort: int) -> int:
        """How many of a cohort of so many can send a message."""

    def crossed(self, invitation: bytes, cohort: int) -> tuple[int, int]:
        """Bytes to devices and from them, beside model and messages."""

    def check(self, invitation: bytes, device: int, message: bytes) -> None:
        """Refuse bytes that are not a message of this device for this round."""

    def total(self, invitation: bytes, messages: Sequence[bytes]) -> Offsets | None:
        """What all of these come to, the same whenever it is asked; None if it cannot be had any more."""


class CoordinatorPart(ServerPart, Protocol):
    """What a plan says to a coordinator."""

    @property
    def mechanism(self) -> UpdateMechanism:
        """What bounds messages, and protects the sum."""

    @property
    def reports(self) -> ReportingPart | None:
        """What devices are asked."""

    @property
    def comparison(self) -> ComparisonPart | None:
        """What is asked after the last round of those who only judge."""

    @property
    def rounds(self) -> int:
        """That the noise was chosen for."""

    @property
    def cohort(self) -> CohortSettings:
        """Who takes part."""

    @property
    def aggregation(self) -> Aggregation:
        """How messages are added up."""

    @property
    def server(self) -> ServerRate:
        """How the model moves."""

    @property
    def bound_rule(self) -> BoundRule | None:
        """How the clip norm moves, where it is learnt."""

    @property
    def decay_share(self) -> float:
        """Of the weights, taken off for every device of a round."""


@dataclass(frozen=True)
class ReportRequest:
    """Who has to report before a round can be opened."""

    round_number: int
    period: int
    devices: tuple[str, ...]
    invitation: bytes | None = None  # to a secure sum of reports; None: they are seen; empty: it could not begin


@dataclass(frozen=True)
class ComparisonTask:
    """What those who only judge get after the last round, as bytes of rounds, and who they are."""

    number: int
    start: bytes
    trained: bytes
    devices: tuple[str, ...]


def run_digest(plan: CoordinatorPart) -> str:
    """Of what a run cannot change on its way."""
    settings = (plan.schema, plan.aggregation, plan.server, plan.cohort, plan.rounds, plan.decay_share, plan.averaging)
    reports = None if plan.reports is None else statement(plan.reports.mechanism)
    parts = (settings, statement(plan.mechanism), reports, plan.from_reports, plan.bound_rule)
    digest = hashlib.sha256(repr(parts).encode())
    for name in sorted(plan.start):
        digest.update(np.ascontiguousarray(plan.start[name]).tobytes())
    return digest.hexdigest()
