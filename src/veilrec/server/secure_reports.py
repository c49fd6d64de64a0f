"""Parts of a coordinator: reasons for refusals, the interface of secure aggregation, and sums of what is told once.

Reports before the first round, and gains of held-out validation clients after the last, that the server must not see
are added up under masks, and one sum of them is opened:

1. A sum is opened: what clients get for it (the invitation) is on disk before anybody gets it.
2. Clients answer; what they send is on disk before it is acknowledged.
3. The list of those whose answers came is fixed: `RoundState.SUMMING_REPORTS` or `SUMMING_GAINS`, on disk before the
   sum is opened, because whoever opens it answers one list for good. From then on no answer is taken.
4. The sum is opened, gets the noise of its period, and becomes the tally or the outcome of the comparison, in one
   transaction that forgets the answers.

Killed anywhere a coordinator goes on at the same step: with the same invitation, the same list, and so the same sum and
the same noise. A sum that cannot be had any more released nothing, and no noise was used: clients are asked anew
under another number, as often as `SecureSum.attempts` says, and the noise of a period is still used once. What a
client tells is the same, and it has paid for the one release that comes of it.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from veilrec.core.arrays import Offsets
from veilrec.core.errors import VeilrecError, counted
from veilrec.core.plan import ModelSelection, Plan, ReportSpec
from veilrec.core.schema import ComparisonSum, ReportSum, RoundSpec
from veilrec.privacy.ledger import statement
from veilrec.privacy.mechanisms.clipping import BadUpdate, OutsideRound
from veilrec.privacy.randomness import noise_of_comparison, noise_of_histogram
from veilrec.server.round_store import RoundState, RoundStore
from veilrec.server.server import WrongExamples, decide
from veilrec.wire.messages import BadMessage, NotFinite, OtherDigest, WrongRound
from veilrec.wire.signing import BadSignature


class SecureSum(Protocol):
    """Secure aggregation of updates, of reports before the first round, and of gains after the last one."""

    @property
    def differing(self) -> Sequence[str]:
        """Clients that have entered the last sum for something else than the others."""

    @property
    def transcript(self) -> bytes:
        """What is needed to check the last sum that was opened, without anybody's vector; empty if none was."""

    @property
    def attempts(self) -> int:
        """Largest number of secure sums of the same report or gain that a client takes part in."""

    @property
    def waits(self) -> bool:
        """Whether those who have not sent what a sum asks for can still do so, however late."""

    def open(self, spec: RoundSpec | ReportSum | ComparisonSum, cohort: Sequence[str], content: bytes) -> bytes | None:
        """Begin a sum of what a cohort makes of a content, and return its invitation; None if it cannot begin.

        Waits for helpers or clients.
        """

    def senders(self, invitation: bytes, cohort: int) -> int:
        """Number of clients of a cohort that can send a message."""

    def crossed(self, invitation: bytes, cohort: int) -> tuple[int, int]:
        """Bytes to clients and from them, beside model and messages."""

    def check(self, invitation: bytes, client: int, message: bytes) -> None:
        """Refuse bytes that are not a message of this device for this round; `OtherDigest` if for another content."""

    def total(self, invitation: bytes, messages: Sequence[bytes], cohort: Sequence[str]) -> Offsets | None:
        """Open the sum of these messages, the same whenever it is asked; None if void. Waits for helpers or clients."""


@dataclass(frozen=True)
class ReportRequest:
    """The clients whose reports are due before a round."""

    round_number: int
    period: int
    clients: tuple[str, ...]
    invitation: bytes | None = None  # to a secure sum of reports; None: they are seen; empty: it could not begin


_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class ComparisonTask:
    """The two models that held-out validation clients compare, encoded as rounds, and these clients."""

    number: int
    start: bytes
    trained: bytes
    clients: tuple[str, ...]
    invitation: bytes | None = None  # to a secure sum of gains; None: they are seen; empty: it could not begin

    @property
    def content(self) -> bytes:
        """Both models, as clients get them."""
        return _LENGTH.pack(len(self.start)) + self.start + self.trained


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
    "another digest",
]
_REASONS: tuple[tuple[type[VeilrecError], Reason], ...] = (
    (WrongRound, "another round"),
    (NotFinite, "not finite"),
    (OtherDigest, "another digest"),
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


@dataclass(frozen=True)
class Asked:
    """What clients tell once in a run: where it is kept, and what becomes of its sum."""

    what: str  # in words
    length: int  # numbers in its sum
    inbox: Literal["reports", "gains"]
    collecting: RoundState  # answers are taken
    fixed: RoundState  # their list is fixed
    settled: RoundState  # their sum is kept
    spec: Callable[[int], ReportSum | ComparisonSum]  # by the attempt
    settle: Callable[[Offsets, int], object]  # keeps the sum over so many clients, in the transaction that is open


def asked_reports(store: RoundStore, secret: bytes, reports: ReportSpec) -> Asked:
    """What everybody reports before the first round: its sum, with its noise, becomes the tally.

    The tally is said to be of all who are enrolled: how many of them have reported is covered by no noise.
    """
    mechanism = reports.mechanism

    def settle(total: Offsets, clients: int) -> None:
        store.set_tally(mechanism.opened(total, clients, noise_of_histogram(secret, 0)), len(store.everybody()))

    stages = (RoundState.REPORTING, RoundState.SUMMING_REPORTS, RoundState.REPORTING)
    return Asked("what clients report", mechanism.masked_length, "reports", *stages, ReportSum, settle)


def asked_gains(store: RoundStore, secret: bytes, selection: ModelSelection) -> Asked:
    """What validation clients gain after the last round: its sum, with its noise, decides which model is kept."""
    mechanism = selection.mechanism

    def settle(total: Offsets, clients: int) -> None:
        noisy = mechanism.opened(total, clients, noise_of_comparison(secret))
        store.set_selection(decide(float(noisy[0]), selection).state())

    stages = (RoundState.IDLE, RoundState.SUMMING_GAINS, RoundState.VALIDATED)
    return Asked("what validation clients gain", mechanism.masked_length, "gains", *stages, ComparisonSum, settle)


class SecureOnce:
    """The secure sum of what clients tell once, in a coordinator's store.

    `lock` is the coordinator's; it is held for a transition, and never while others are waited for.
    """

    def __init__(self, store: RoundStore, secure: SecureSum, asked: Asked, lock: threading.RLock) -> None:
        self._store, self._secure, self._asked, self._lock = store, secure, asked, lock

    @property
    def spec(self) -> ReportSum | ComparisonSum:
        """The sum that clients are asked for."""
        return self._asked.spec(self._store.place.attempt)

    @property
    def invitation(self) -> bytes:
        """Invitation that clients get for the sum; empty before it is begun."""
        return self._store.invitation() or b""

    def open(self, clients: Sequence[str], content: bytes) -> None:
        """Begin a sum unless one has begun; one that cannot begin leaves no invitation, and the next is another."""
        with self._lock:
            if self.invitation:
                return
            spec = self.spec
        made = self._secure.open(spec, clients, content)  # a network wait: nothing is held
        with self._lock:
            if made is None:
                self._give_up(clients)
                return
            with self._store.moving(self._store.place):
                self._store.set_invitation(made)

    def check(self, client: int, message: bytes) -> None:
        """Refuse what is no answer of this device; under masks no more shows."""
        self._secure.check(self.invitation, client, message)

    def count(self, clients: Sequence[str]) -> bool:
        """Fix the list, open its sum and keep it with its noise; False: it cannot be had, and is begun anew."""
        store, asked = self._store, self._asked
        with self._lock:
            if store.place.stage is asked.collecting:
                with store.moving(replace(store.place, stage=asked.fixed)):  # no answer is taken from now on
                    pass
            invitation, messages = self.invitation, list(store.contents(asked.inbox))
        total = self._secure.total(invitation, messages, clients)  # a network wait: nothing is held
        with self._lock:
            if total is None:
                self._give_up(clients)
                return False
            if total.shape != (asked.length,):
                raise VeilrecError(f"a sum of {asked.inbox} has shape {total.shape}: there are {asked.length} numbers")
            self._go_on(clients, self.spec.attempt, total)
            return True

    def _give_up(self, clients: Sequence[str]) -> None:
        attempt = self.spec.attempt + 1
        if attempt >= self._secure.attempts:
            most = counted(self._secure.attempts, "time")
            raise VeilrecError(
                f"{self._asked.what} cannot be added up, and clients tell it {most} at most: make the federation anew"
            )
        self._go_on(clients, attempt)

    def _go_on(self, clients: Sequence[str], attempt: int, total: Offsets | None = None) -> None:
        """Forget the answers, with what their sum has cost the network counted, and keep what it came to, if it did."""
        store, asked, place = self._store, self._asked, self._store.place
        count, size = store.amount(asked.inbox)
        told, said = self._secure.crossed(self.invitation, len(clients))
        told, said = place.told_bytes + told, place.report_bytes + size + said
        stage = asked.collecting if total is None else asked.settled
        after = replace(place, stage=stage, attempt=attempt, report_bytes=said, told_bytes=told)
        with store.moving(after):
            if total is not None:
                store.add_transcript(self.spec.number, self._secure.transcript)
                asked.settle(total, count)
            store.empty(asked.inbox)
            store.set_invitation(b"")
