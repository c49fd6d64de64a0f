"""Parts of a coordinator: sampling from its secret, reasons for refusals, the interface of secure aggregation, reports.

Reports that the server must not see are added up under masks, and one sum of them is opened:

1. A sum is opened: what clients get for it (the invitation) is on disk before anybody gets it.
2. Clients answer; what they send is on disk before it is acknowledged.
3. The list of those whose answers came is fixed: `RoundState.SUMMING_REPORTS`, on disk before the sum is opened,
   because whoever opens it answers one list for good. From then on no answer is taken.
4. The sum is opened, gets the noise of its period, and becomes the tally, in one transaction that forgets the answers.

Killed anywhere a coordinator goes on at the same step: with the same invitation, the same list, and so the same sum and
the same noise. A sum that cannot be had any more released nothing, and no noise was used: clients are asked anew
under another number, as often as `SecureSum.attempts` says, and the noise of a period is still used once. What a
client tells is the same, and it has paid for the one release that comes of it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from veilrec.core.arrays import Offsets
from veilrec.core.errors import VeilrecError, counted
from veilrec.core.plan import Plan
from veilrec.core.schema import ReportSum, RoundSpec
from veilrec.privacy.ledger import statement
from veilrec.privacy.mechanisms.clipping import BadUpdate, OutsideRound
from veilrec.privacy.mechanisms.reports import ItemReports
from veilrec.privacy.randomness import Source
from veilrec.server.round_specs import Tally
from veilrec.server.round_store import RoundState, RoundStore
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

    def open(self, spec: RoundSpec | ReportSum, cohort: Sequence[str]) -> bytes | None:
        """Begin a sum and return its invitation; None if it cannot begin. Waits for helpers or clients."""

    def senders(self, invitation: bytes, cohort: int) -> int:
        """Number of clients of a cohort that can send a message."""

    def crossed(self, invitation: bytes, cohort: int) -> tuple[int, int]:
        """Bytes to clients and from them, beside model and messages."""

    def check(self, invitation: bytes, client: int, message: bytes) -> None:
        """Refuse bytes that are not a message of this device for this round."""

    def total(self, invitation: bytes, messages: Sequence[bytes]) -> Offsets | None:
        """Open the sum of these messages, the same whenever it is asked; None if void. Waits for helpers or clients."""


@dataclass(frozen=True)
class ReportRequest:
    """The clients whose reports are due before a round."""

    round_number: int
    period: int
    clients: tuple[str, ...]
    invitation: bytes | None = None  # to a secure sum of reports; None: they are seen; empty: it could not begin


@dataclass(frozen=True)
class ComparisonTask:
    """The two models that held-out validation clients compare, encoded as rounds, and these clients."""

    number: int
    start: bytes
    trained: bytes
    clients: tuple[str, ...]


def run_digest(plan: Plan) -> str:
    """Digest the settings that a run cannot change on its way."""
    settings = (plan.schema, plan.aggregation, plan.server, plan.cohort, plan.rounds, plan.decay_share, plan.averaging)
    reports = None if plan.reports is None else statement(plan.reports.mechanism)
    parts = (settings, statement(plan.mechanism), reports, plan.from_reports, plan.clipping_rule)
    digest = hashlib.sha256(repr(parts).encode())
    for name in sorted(plan.start):
        digest.update(np.ascontiguousarray(plan.start[name]).tobytes())
    return digest.hexdigest()


def over_selection_obstacle(plan: Plan) -> str | None:
    """Why a round may not take the first messages of more clients than it needs; None where it may."""
    if plan.mechanism.noise_on == "sum":
        return "the proof is about who was drawn, not about who was first to answer"
    if plan.cohort.sampling != "fixed":
        return f"clients take part by {plan.cohort.sampling}, which says who they are"
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


class SecureReports:
    """The sum of a run's reports, in a coordinator's store.

    `lock` is the coordinator's; it is held for a transition, and never while others are waited for.
    """

    def __init__(self, store: RoundStore, secure: SecureSum, mechanism: ItemReports, lock: threading.RLock) -> None:
        self._store, self._secure, self._mechanism, self._lock = store, secure, mechanism, lock

    @property
    def spec(self) -> ReportSum:
        """The sum that clients are asked for."""
        return ReportSum(self._store.place.attempt)

    @property
    def invitation(self) -> bytes:
        """Invitation that clients get for the sum; empty before it is begun."""
        return self._store.invitation() or b""

    def open(self, clients: Sequence[str]) -> None:
        """Begin a sum unless one has begun; one that cannot begin leaves no invitation, and the next is another."""
        with self._lock:
            if self.invitation:
                return
            spec = self.spec
        made = self._secure.open(spec, clients)  # a network wait: nothing is held
        with self._lock:
            if made is None:
                self._give_up(clients)
                return
            with self._store.moving(self._store.place):
                self._store.set_invitation(made)

    def check(self, client: int, message: bytes) -> None:
        """Refuse what is no answer of this device; under masks no more shows."""
        self._secure.check(self.invitation, client, message)

    def fix(self) -> None:
        """No answer is taken from now on."""
        with self._store.moving(replace(self._store.place, stage=RoundState.SUMMING_REPORTS)):
            pass

    def count(self, clients: Sequence[str], noise: Source) -> bool:
        """Open the sum of those in the list and keep it with its noise; False: it cannot be had, and is begun anew."""
        with self._lock:
            invitation, messages = self.invitation, list(self._store.contents("reports"))
        total = self._secure.total(invitation, messages)  # a network wait: nothing is held
        with self._lock:
            if total is None:
                self._give_up(clients)
                return False
            length = self._mechanism.length
            if total.shape != (length,):
                raise VeilrecError(f"a sum of reports has shape {total.shape}: there are {length} items")
            reports = self._store.count("reports")
            tally = Tally(self._mechanism.opened(total, reports, noise), reports)
            self._go_on(clients, self.spec.attempt, tally)
            return True

    def _give_up(self, clients: Sequence[str]) -> None:
        attempt = self.spec.attempt + 1
        if attempt >= self._secure.attempts:
            most = counted(self._secure.attempts, "time")
            raise VeilrecError(
                f"what clients report cannot be added up, and they tell it {most} at most: make the federation anew"
            )
        self._go_on(clients, attempt)

    def _go_on(self, clients: Sequence[str], attempt: int, tally: Tally | None = None) -> None:
        """Forget the answers, with what their sum has cost the network counted, and keep what it came to, if it did."""
        store, place, (_, size) = self._store, self._store.place, self._store.amount("reports")
        told, said = self._secure.crossed(self.invitation, len(clients))
        told, said = place.told_bytes + told, place.report_bytes + size + said
        after = replace(place, stage=RoundState.REPORTING, attempt=attempt, report_bytes=said, told_bytes=told)
        with store.moving(after):
            if tally is not None:
                store.set_tally(tally.counts, tally.reports)
            store.empty("reports")
            store.set_invitation(b"")
