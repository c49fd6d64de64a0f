"""What a coordinator needs of a plan, and the interface of secure aggregation.

Who takes part in a real round: drawn from the coordinator's secret, and only as the plan's noise allows it.

Why a coordinator does not take a message in: reasons that are counted, and say nothing of anybody.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from veilrec.core.arrays import Offsets
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.plan import Plan
from veilrec.core.schema import ReportSum, RoundSpec
from veilrec.privacy.ledger import statement
from veilrec.privacy.mechanisms.clipping import BadUpdate, OutsideRound
from veilrec.privacy.mechanisms.schedules import TreeSum
from veilrec.privacy.mechanisms.sums import CohortSum
from veilrec.server.client_sampling import CohortSampler
from veilrec.server.server import WrongExamples
from veilrec.wire.messages import BadMessage, NotFinite, WrongRound
from veilrec.wire.signing import BadSignature


class SecureSum(Protocol):
    """Secure aggregation of updates, and of reports before the first round."""

    @property
    def attempts(self) -> int:
        """Largest number of secure sums of the same reports that a client takes part in."""

    @property
    def waits(self) -> bool:
        """Whether those who have not sent what a sum asks for can still do so, however late."""

    def open(self, about: RoundSpec | ReportSum, cohort: Sequence[str]) -> bytes | None:
        """Begin a sum and return its invitation; None if it cannot begin. Waits for helpers or clients."""

    def senders(self, invitation: bytes, cohort: int) -> int:
        """Number of clients of a cohort that can send a message."""

    def crossed(self, invitation: bytes, cohort: int) -> tuple[int, int]:
        """Bytes to devices and from them, beside model and messages."""

    def check(self, invitation: bytes, device: int, message: bytes) -> None:
        """Refuse bytes that are not a message of this device for this round."""

    def total(self, invitation: bytes, messages: Sequence[bytes]) -> Offsets | None:
        """Open the sum of these messages, the same whenever it is asked; None if void. Waits for helpers or clients."""


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


def run_digest(plan: Plan) -> str:
    """Digest the settings that a run cannot change on its way."""
    settings = (plan.schema, plan.aggregation, plan.server, plan.cohort, plan.rounds, plan.decay_share, plan.averaging)
    reports = None if plan.reports is None else statement(plan.reports.mechanism)
    parts = (settings, statement(plan.mechanism), reports, plan.from_reports, plan.bound_rule)
    digest = hashlib.sha256(repr(parts).encode())
    for name in sorted(plan.start):
        digest.update(np.ascontiguousarray(plan.start[name]).tobytes())
    return digest.hexdigest()


def draw_cohort(plan: Plan, round_number: int, enrolled: int, secret: bytes, over_selection: float) -> Offsets:
    """The devices of a round, out of so many that are enrolled; refused where the noise was not chosen for it."""
    # How many cannot be reached, and how many drop out, is for simulations: here it happens.
    settings = replace(plan.cohort, available=1.0, drop_out=0.0)
    if over_selection > 1.0:
        drawn = math.ceil(settings.among(enrolled) * over_selection)
        settings = replace(settings, size=min(enrolled, drawn))
    mechanism = plan.mechanism
    by_turns = isinstance(mechanism, TreeSum)
    if isinstance(mechanism, CohortSum) and (mechanism.taking_part.rate < 1.0 or by_turns):
        planned = mechanism.taking_part.population
        if enrolled < planned:
            raise BadInput(
                f"{enrolled} devices are enrolled, and the noise was chosen for cohorts out of {planned}: it would "
                "protect less; enrol more, or plan for fewer"
            )
    if isinstance(mechanism, TreeSum):  # whoever enrols later would move the turns of the others
        enrolled = mechanism.taking_part.population
    devices = CohortSampler(settings, np.arange(enrolled), 0, secret=secret).draw(round_number)
    if isinstance(mechanism, CohortSum) and len(devices) > mechanism.taking_part.population:
        raise BadInput(
            f"round {round_number} would have {len(devices)} devices, and the noise was chosen for "
            f"{mechanism.taking_part.population} at most: plan for more"
        )
    return devices


def over_selection_obstacle(plan: Plan) -> str | None:
    """Why a round may not take the first messages of more devices than it needs; None where it may."""
    if plan.mechanism.noise_on == "sum":
        return "the proof is about who was drawn, not about who was first to answer"
    if plan.cohort.sampling != "fixed":
        return f"devices take part by {plan.cohort.sampling}, which says who they are"
    return None


Reason = Literal[
    "not enrolled",
    "not in the cohort",
    "nothing is open",
    "another round",
    "second message",
    "not finite",
    "bad bytes",
    "outside of the round",
    "beyond its bound",
    "examples",
    "enough messages",
]
_REASONS: tuple[tuple[type[VeilrecError], Reason], ...] = (
    (WrongRound, "another round"),
    (NotFinite, "not finite"),
    (WrongExamples, "examples"),
    (BadMessage, "bad bytes"),
    (OutsideRound, "outside of the round"),
    (BadUpdate, "beyond its bound"),
    (BadSignature, "bad bytes"),
)


class MessageRefused(VeilrecError):
    """A message that was not taken in; it changed nothing but the count of its reason."""

    def __init__(self, reason: Reason, explanation: str) -> None:
        self.reason = reason
        super().__init__(explanation)


def reason_of(error: VeilrecError) -> Reason:
    """The reason that an error stands for; one that stands for none is raised."""
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason
    raise error
