"""What a coordinator needs of a plan, and of whoever adds up what it must not see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from veilrec._arrays import Offsets
from veilrec.privacy.mechanisms.gains import GainSum
from veilrec.privacy.mechanisms.reports import ItemReports
from veilrec.privacy.mechanisms.updates import UpdateMechanism
from veilrec.server.aggregate import Aggregation
from veilrec.server.bound import BoundRule
from veilrec.server.cohorts import CohortSettings
from veilrec.server.optimise import ServerRate
from veilrec.server.standing import ServerPart
from veilrec.updates import Round


class Questions(Protocol):
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


class Compared(Protocol):
    """What is asked after the last round."""

    @property
    def mechanism(self) -> GainSum:
        """What bounds an answer, and protects the sum of all."""


class SecureSum(Protocol):
    """How messages are added up where the server must not see any of them."""

    @property
    def masks_reports(self) -> bool:
        """Whether what devices report is added up so as well."""

    def open_reports(self) -> bytes:
        """What devices get that are asked for reports; asked again, it may be another."""

    def count(self, invitation: bytes, reports: Sequence[bytes]) -> Offsets:
        """What all reports come to, the same whenever it is asked; raises where that cannot be had yet."""

    def open(self, about: Round) -> bytes:
        """What devices of a round get beside the model; asked again, it may be another."""

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
    def reports(self) -> Questions | None:
        """What devices are asked."""

    @property
    def comparison(self) -> Compared | None:
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
