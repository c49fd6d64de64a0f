"""The driver of a federation: one thread that takes a coordinator from state to state until the run is over.

Durable states are those of `veilrec.server.round_store.RoundState`; enrolment before the first round and the end of the
run are states of this process. In each state the driver does one thing, and then looks at the state again:

    ENROLLING ──> IDLE ──> REPORTING ──> OPENING ──> OPEN ──> CLOSING ──> IDLE of the next round
                            │     ^         │                  ^
                            v     │         └── too few: void ─┘       after the last round: IDLE ──> OVER
                       SUMMING_REPORTS

| state | driver | waits for | next |
|---|---|---|---|
| `ENROLLING` | nothing | all invited clients, `enrol_seconds` | the state on disk |
| `IDLE`, `REPORTING` | asks for reports if due; begins the round | clients, `report_seconds` | `OPENING`, `OPEN` |
| `SUMMING_REPORTS` | opens the secure sum of masked reports | helpers or clients | `REPORTING` |
| `OPENING` | begins the secure sum of the round | helpers or clients | `OPEN`, or `CLOSING` and void |
| `OPEN` | publishes the model | clients, `round_seconds` | `CLOSING` |
| `CLOSING` | opens the secure sum if there is one; noise, server step | helpers or clients | `IDLE` |
| `IDLE` after the last round | asks held-out validation clients | clients, `validation_seconds` | `VALIDATED` |
| `SUMMING_GAINS` | opens the secure sum of masked gains | helpers or clients | `VALIDATED` |
| `OVER` | tells everybody that the run is over | | |

Without secure aggregation `OPENING` is left out, and nobody is waited for in `CLOSING`. No lock and no transaction is
held during any wait: `status` answers in every state, and names the invited that have never come,
and the helpers that are waited for. A wait that fails
(`Away`) leaves the state as it is, and it is tried again.

Deadlines count the machine's uptime, so that setting its clock moves none. A coordinator that was killed goes on in the
state on disk; a deadline then starts anew. What a full disk did not store was not acknowledged, and is tried again.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

from veilrec.core.errors import BadInput, some_of
from veilrec.core.resources import peak_rss_mb
from veilrec.federation.coordinator.aggregation import (
    PAIRWISE_RPCS,
    Broadcast,
    PairwiseAggregation,
    SecureAggregation,
    TaskQueue,
)
from veilrec.federation.coordinator.registry import Registry
from veilrec.federation.federation import DECLINED, RPC_KINDS, Away, Federation, Receipt, TaskKind
from veilrec.server.coordinator import Coordinator
from veilrec.server.round_store import Enrolled, Inbox, RoundState, totals
from veilrec.server.secure_reports import MessageRefused, ReportRequest
from veilrec.wire.messages import OtherDigest

_DISK_ERRORS = (sqlite3.Error, OSError)
_RETRY_SECONDS = 1.0  # before something that a disk refused is tried again
_SEEN_SECONDS = 60.0  # since a client's last poll, to count as connected


def told_of_declined(declined: Mapping[str, int]) -> str:
    """How many clients took no part, and why, in words."""
    return ", ".join(f"{count} declined: weights {_DECLINED.get(why, why)}" for why, count in declined.items())


_DECLINED = {
    "not finite": "that are not finite",
    "beyond the bound": "beyond their bound",
    "another digest": "of others",
    "another plan": "of another plan",
}


class StoreBusy(Exception):
    """A message could not be stored: the client has to send it again."""


class RoundDriver:
    """Drives a coordinator through all rounds, in a thread of its own; messages come in from other threads."""

    def __init__(
        self,
        coordinator: Coordinator,
        registry: Registry,
        federation: Federation,
        say: Callable[[str], None],
        *,
        queue: TaskQueue | None = None,
        secure: SecureAggregation | None = None,
    ) -> None:
        self.coordinator, self.registry, self.federation = coordinator, registry, federation
        self.queue, self.secure = queue or TaskQueue(), secure
        self._say = say
        self._changed = threading.Condition()
        self._stopping = False
        self._enough = 0  # answers before which whoever waits for them need not look
        self._seen: dict[str, float] = {}
        self._told_over: set[str] = set()
        self._enrolling = coordinator.round_number < federation.rounds or not self._validated
        self._began: float | None = None  # when the current round did, in this process
        self.waiting_cpu = 0.0  # seconds of this process before its first round
        self.closing_cpu = 0.0  # seconds of this process that adding up and stepping took
        self.messages = 0  # that were taken in by this process
        self.round_seconds: deque[float] = deque(maxlen=1000)
        self._steps: Mapping[RoundState, Callable[[], object]] = {
            RoundState.IDLE: self._report_and_begin,
            RoundState.REPORTING: self._report_and_begin,
            RoundState.SUMMING_REPORTS: coordinator.count_reports,
            RoundState.OPENING: coordinator.open_sum,
            RoundState.OPEN: self._collect_and_close,
            RoundState.CLOSING: self._close,
        }
        for entry in (*registry.entries("trainer"), *registry.entries("validator")):
            who: Enrolled = "clients" if entry.role == "trainer" else "validators"
            if coordinator.enrol(entry.client, who) != entry.number:
                raise BadInput(f"{registry.path} gives {entry.client} a place of another: bring back its own")

    # Called from any thread

    def stop(self) -> None:
        """Leave after the current step, without waiting for anybody."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self.secure is not None:
            self.secure.rpc.stop()

    def see(self, client: str) -> None:
        """Note that a client or helper has polled."""
        self._seen[client] = time.monotonic()
        if self.queue.over:
            self._told_over.add(client)

    def enrolled(self) -> None:
        """Look again at who is enrolled."""
        with self._changed:
            self._changed.notify_all()

    def take(self, client: str, kind: str, number: int, content: bytes) -> Receipt:
        """Store the answer of an authenticated client, or pass on its reply to an RPC; refuse what does not count."""
        server, refusal = self.coordinator, MessageRefused("nothing is open", "nothing of this kind is asked for")
        if kind in RPC_KINDS:  # not stored
            if self.secure is None:
                raise refusal
            return self.secure.rpc.take(client, kind, number, content)
        if kind == DECLINED:
            return self._take_declined(client, number, content)
        receivers = {"report": server.receive_report, "round": server.receive, "validator": server.receive_gain}
        if kind not in receivers:
            raise refusal
        numbers = {"report": server.report_number, "validator": server.comparison_number}
        if number != numbers.get(kind, server.round_number):
            raise MessageRefused("another round", f"round {number} is not the one that is asked for")
        try:
            receipt: Receipt = receivers[kind](client, content)
        except _DISK_ERRORS as error:
            self._say(f"a message could not be kept ({error}): it is asked for again")
            raise StoreBusy from None
        self.queue.note(client, kind, number)
        with self._changed:
            self.messages += receipt == "taken"
            if self.queue.answers >= self._enough or server.differing:
                self._changed.notify_all()
        return receipt

    def _take_declined(self, client: str, number: int, content: bytes) -> Receipt:
        """Note that a client takes no part in what is asked now; it counts as absent."""
        kind = self.queue.kind
        if kind not in ("report", "round", "validator") or self.queue.task_for(client) is None:
            raise MessageRefused("nothing is open", "nothing of this kind is asked for")
        self.coordinator.decline(client, content)
        self._say(f"{kind} {number}: {client} takes no part ({content.decode('ascii', 'replace')})")
        self.queue.note(client, kind, number)
        with self._changed:
            self._changed.notify_all()
        return "taken"

    @property
    def tasks_per_round(self) -> int:
        """Number of tasks that a client gets in a round."""
        return len(PAIRWISE_RPCS) + 1 if isinstance(self.secure, PairwiseAggregation) else 1

    # The state machine

    def run(self) -> bool:
        """Drive all rounds that are left, and the validation; whether the run is over."""
        if self._enrolling:
            self._wait_for_enrolment()
        self.waiting_cpu = time.process_time()
        while self.coordinator.round_number < self.federation.rounds and not self._stopping:
            self._attempt(self._steps[self.coordinator.stage])
        while not self._stopping and not self._validated:
            self._attempt(self._validate)
        if not self._stopping:
            self.queue.end()
        return not self._stopping

    def _attempt(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Away as error:
            self._say(f"round {self.coordinator.round_number}: {error}")
        except _DISK_ERRORS as error:
            self._say(f"round {self.coordinator.round_number}: the disk refuses ({error}); trying again")
            self._wait(lambda: False, _RETRY_SECONDS)

    def _wait_for_enrolment(self) -> None:
        seconds = self.federation.enrol_seconds
        missing = self._not_come()
        if missing:
            self._say(f"waiting for {some_of(missing)}, for {seconds:g} s at most")
        self._wait(lambda: not self._not_come(), seconds)
        self._enrolling = False

    def _not_come(self) -> list[str]:
        """Who was invited, clients and helpers, and has not enrolled yet."""
        return [e.client for e in self.registry.entries() if not (e.key or e.revoked or e.free)]

    def _waiting_for(self) -> list[str]:
        """Who is waited for by name: the invited who never came, and helpers that owe a reply."""
        if self._enrolling:
            return self._not_come()
        kind, owing = self.queue.kind, self.queue.unanswered
        if kind in ("open", "sum"):
            return list(owing)
        return [client for client in self._not_come() if kind is not None and client in owing]

    def _report_and_begin(self) -> None:
        """`IDLE` and `REPORTING`: collect the reports that are due, then fix cohort and round spec."""
        server = self.coordinator
        self._began = time.monotonic() if self._began is None else self._began
        question = server.ask()
        if question is not None and question.invitation == b"":
            return  # the secure sum of reports could not begin: the next attempt has a number of its own
        if question is not None:
            self._collect_reports(question)
            if self._stopping:
                return
            if question.invitation is not None:
                server.count_reports()
                return
        server.begin_round()

    def _collect_and_close(self) -> None:
        """`OPEN`: publish the model, and wait for the updates of the cohort."""
        server, (model, cohort) = self.coordinator, self.coordinator.open_round()
        task, invitation = Broadcast(cohort, model), server.invitation
        if self.secure is not None and invitation is not None:
            try:
                task = self.secure.asked(invitation, model, cohort)
            except OtherDigest as error:
                self._say(f"round {server.round_number} is void: {error}")
                server.void()
                return
        seconds, wanted = self.federation.round_seconds, server.wanted
        if self._ask("round", server.round_number, task, "messages", seconds, wanted=wanted):
            self.queue.withdraw()
            self._close()

    def _close(self) -> None:
        """`CLOSING`: open the secure sum if there is one, add the noise, step; a void round does none of it."""
        began = time.monotonic() if self._began is None else self._began
        before = time.process_time()
        report = self.coordinator.close_round()
        self.closing_cpu += time.process_time() - before
        self.round_seconds.append(time.monotonic() - began)
        self._began = None
        void = " (void: too few, or no sum comes of them)" if report.void else ""
        if report.differing:
            void = f" (void: {', '.join(report.differing)} acted on something else than the others)"
        if report.declined:
            void += f" ({told_of_declined(report.declined)})"
        if not report.void and not report.messages and report.clients:
            void = " (not void: that nobody came may not be told; `federate init --least` decides otherwise)"
        rounds = self.federation.rounds
        self._say(f"round {report.number + 1}/{rounds}: {report.messages} of {report.clients} clients{void}")

    def _validate(self) -> None:
        """`IDLE` after the last round: ask held-out validation clients which model is better."""
        server = self.coordinator
        if server.stage is RoundState.SUMMING_GAINS:
            if server.count_gains():
                self._say(server.close_comparison().line())
            return
        comparing = server.compare()
        if comparing is None:
            return
        if comparing.invitation == b"":
            return  # the secure sum of gains could not begin: the next attempt has a number of its own
        task = Broadcast(comparing.clients, comparing.content)
        if self.secure is not None and comparing.invitation is not None:
            task = self.secure.asked(comparing.invitation, comparing.content, comparing.clients)
        least = 0 if self.secure is None else self.federation.least_compared
        while self._ask("validator", comparing.number, task, "gains", self.federation.validation_seconds):
            if len(server.came("gains")) >= least or self.secure is None or not self.secure.waits:
                break
            self._say(f"{least} validation clients are needed, and fewer have answered; asking again")
        self.queue.withdraw()
        if self._stopping:
            return
        if comparing.invitation is not None and not server.count_gains():
            return
        self._say(server.close_comparison().line())

    @property
    def _validated(self) -> bool:
        """Whether nobody has to be asked any more which model is better."""
        server = self.coordinator
        return server.plan.model_selection is None or server.selection is not None

    def _collect_reports(self, question: ReportRequest) -> None:
        """Publish the question until all reports have come, or enough of them by the deadline."""
        server, seconds = self.coordinator, self.federation.report_seconds
        task = Broadcast(question.clients, b"")
        if self.secure is not None and question.invitation:
            task = self.secure.asked(question.invitation, b"", question.clients)
        patient = self.secure is None or self.secure.waits
        least = min(server.minimum_reports, len(question.clients))
        while not self._stopping:
            self._ask("report", server.report_number, task, "reports", seconds, period=question.period)
            if len(server.came("reports")) >= least or not patient:
                break
            self._say(f"round {question.round_number}: too few have reported; asking again")
        self.queue.withdraw()

    def _ask(
        self,
        kind: TaskKind,
        number: int,
        task: Broadcast,
        inbox: Inbox,
        seconds: float,
        *,
        wanted: int | None = None,
        period: int = 0,
    ) -> bool:
        """Publish a task, and wait for all answers, as many as are wanted, or the deadline; False if stopped."""
        server, clients = self.coordinator, self._present(task.clients)
        wanted = len(task.clients) if wanted is None else wanted
        came, self._enough = server.came(inbox), min(len(clients), wanted)
        content, own = task.content, task.own
        self.queue.publish(
            kind, number, clients, content=content, own=own, answered=came, period=period, seconds=seconds
        )

        def done() -> bool:
            senders = server.came(inbox)
            settled = {*senders, *server.declined}
            return len(senders) >= wanted or set(clients) <= settled or (kind == "round" and bool(server.differing))

        return self._wait(done, seconds)

    def _present(self, asked: Collection[str]) -> tuple[str, ...]:
        """Those whose places are taken; a client that enrols later is asked from the next task on."""
        absent = {entry.client for entry in self.registry.entries() if entry.free or entry.revoked}
        return tuple(client for client in asked if client not in absent)

    def _wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is done, or for so long; False if the driver was stopped meanwhile."""
        until = time.monotonic() + seconds
        with self._changed:
            while not self._stopping and not done():
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, 1.0))
            return not self._stopping

    def linger(self, seconds: float) -> None:
        """Wait until every enrolled client has heard that the run is over."""
        self._say(f"all rounds are over: clients are told so, for {seconds:g} s at most")
        here = {e.client for e in self.registry.entries() if e.key and not e.revoked}
        self._wait(lambda: here <= self._told_over, seconds)

    # For the operator

    def status(self) -> dict[str, Any]:
        """Progress of the run, without anything of any user."""
        server = self.coordinator
        entries = [entry for entry in self.registry.entries() if entry.role != "helper"]
        clients, now = {entry.client for entry in entries}, time.monotonic()
        return {
            "federation": self.federation.id,
            "round": server.round_number,
            "rounds": self.federation.rounds,
            "stage": "over" if self.queue.over else server.stage,
            "waiting_for": self._waiting_for(),
            "seconds_left": round(max(0.0, self.queue.seconds_left), 1),
            "clients": {
                "invited": sum(not entry.free for entry in entries),
                "free": sum(entry.free for entry in entries),
                "enrolled": sum(entry.key is not None for entry in entries),
                "revoked": sum(entry.revoked for entry in entries),
                "here": sum(now - seen < _SEEN_SECONDS for who, seen in list(self._seen.items()) if who in clients),
            },
            "this_round": {"messages": len(server.came("messages")), "reports": len(server.came("reports"))},
            "absent": {"declined": dict(server.declined), "differing": list(server.differing)},
            **totals(server.history()),
            "process": {
                "messages": self.messages,
                "cpu_seconds": round(time.process_time(), 4),
                "serving_cpu_seconds": round(time.process_time() - self.waiting_cpu, 4),
                "closing_cpu_seconds": round(self.closing_cpu, 4),
                "round_seconds": [round(seconds, 3) for seconds in self.round_seconds],
                "peak_rss_mb": round(peak_rss_mb(), 1),
            },
        }
