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
| `IDLE` after the last round | asks held-out validation clients | clients, `judge_seconds` | `VALIDATED` |
| `OVER` | tells everybody that the run is over | | |

Without secure aggregation `OPENING` is left out, and nobody is waited for in `CLOSING`. No lock and no transaction is
held during any wait: `status` answers in every state, and names the helpers that are waited for. A wait that fails
(`Away`) leaves the state as it is, and it is tried again.

Deadlines count the machine's uptime, so that setting its clock moves none. A coordinator that was killed goes on in the
state on disk; a deadline then starts anew. What a full disk did not store was not acknowledged, and is tried again.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from veilrec.core.errors import BadInput
from veilrec.core.resources import peak_rss_mb
from veilrec.federation.coordinator.aggregation import (
    PAIRWISE_RPCS,
    Broadcast,
    PairwiseAggregation,
    SecureAggregation,
    TaskBoard,
)
from veilrec.federation.coordinator.registry import Registry
from veilrec.federation.federation import RPC_KINDS, Away, Federation, Receipt, joined
from veilrec.server.coordinator import Coordinator
from veilrec.server.round_store import Inbox, RoundState
from veilrec.server.secure_reports import MessageRefused, ReportRequest

_DISK_ERRORS = (sqlite3.Error, OSError)
_RETRY_SECONDS = 1.0  # before something that a disk refused is tried again
_SEEN_SECONDS = 60.0  # since a client's last poll, to count as connected


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
        board: TaskBoard | None = None,
        secure: SecureAggregation | None = None,
    ) -> None:
        self.coordinator, self.registry, self.federation = coordinator, registry, federation
        self.board, self.secure = board or TaskBoard(), secure
        self._say = say
        self._changed = threading.Condition()
        self._stopping = False
        self._enough = 0  # answers before which whoever waits for them need not look
        self._seen: dict[str, float] = {}
        self._told_over: set[str] = set()
        self._began: float | None = None  # when the current round did, in this process
        self.waiting_cpu = 0.0  # seconds of this process before its first round
        self.closing_cpu = 0.0  # seconds of this process that adding up and stepping took
        self.messages = 0  # that were taken in by this process
        self.round_seconds: deque[float] = deque(maxlen=1000)
        self._steps: Mapping[RoundState, Callable[[], None]] = {
            RoundState.IDLE: self._report_and_begin,
            RoundState.REPORTING: self._report_and_begin,
            RoundState.SUMMING_REPORTS: self._sum_reports,
            RoundState.OPENING: self._open_sum,
            RoundState.OPEN: self._collect_and_close,
            RoundState.CLOSING: self._close,
        }
        for entry in (*registry.entries("learner"), *registry.entries("judge")):
            enrol = coordinator.enrol if entry.place.role == "learner" else coordinator.enrol_judge
            if enrol(entry.place.device) != entry.place.number:
                raise BadInput(f"{registry.path} gives {entry.place.device} a place of another: bring back its own")

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
        if self.board.over:
            self._told_over.add(client)

    def enrolled(self) -> None:
        """Look again at who is enrolled."""
        with self._changed:
            self._changed.notify_all()

    def take(self, client: str, kind: str, number: int, content: bytes) -> Receipt:
        """Store the answer of an authenticated client; `MessageRefused` where it does not count."""
        receive = self._receivers.get(kind)
        if receive is None:
            raise MessageRefused("nothing is open", "nothing of this kind is asked for")
        server = self.coordinator
        if number != (server.report_number if kind == "report" else server.round_number):
            raise MessageRefused("another round", f"round {number} is not the one that is asked for")
        try:
            receipt: Receipt = receive(client, content)
        except _DISK_ERRORS as error:
            self._say(f"a message could not be kept ({error}): it is asked for again")
            raise StoreBusy from None
        self.board.note(client, kind, number)
        with self._changed:
            self.messages += receipt == "taken"
            if self.board.answers >= self._enough:
                self._changed.notify_all()
        return receipt

    @property
    def tasks_per_round(self) -> int:
        """Number of tasks that a client gets in a round."""
        return len(PAIRWISE_RPCS) + 1 if isinstance(self.secure, PairwiseAggregation) else 1

    def is_rpc(self, kind: str) -> bool:
        """Whether an answer is the reply to a secagg RPC, which is not stored."""
        return kind in RPC_KINDS

    def take_reply(self, peer: str, kind: str, number: int, content: bytes) -> Receipt:
        """Take in the reply of a helper or client to a secagg RPC; `MessageRefused` where none waits for it."""
        if self.secure is None:
            raise MessageRefused("nothing is open", "nothing of this kind is asked for")
        return self.secure.rpc.take(peer, kind, number, content)

    @property
    def _receivers(self) -> dict[str, Callable[[str, bytes], Receipt]]:
        server = self.coordinator
        return {"report": server.receive_report, "round": server.receive, "judge": server.receive_gain}

    # The state machine

    def run(self) -> bool:
        """Drive all rounds that are left, and the validation; whether the run is over."""
        self._wait_for_enrolment()
        self.waiting_cpu = _cpu()
        while self.coordinator.round_number < self.federation.rounds and not self._stopping:
            self._attempt(self._steps[self.coordinator.stage])
        if not self._stopping:
            self._attempt(self._validate)
        if not self._stopping:
            self.board.end()
        return not self._stopping

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Away as error:
            self._say(f"round {self.coordinator.round_number}: {error}")
        except _DISK_ERRORS as error:
            self._say(f"round {self.coordinator.round_number}: the disk refuses ({error}); trying again")
            self._wait(lambda: False, _RETRY_SECONDS)

    def _wait_for_enrolment(self) -> None:
        invited = sum(not entry.free for entry in self.registry.entries())
        self._say(f"waiting for {invited} devices, for {self.federation.enrol_seconds:g} s at most")
        self._wait(
            lambda: all(e.key or e.revoked or e.free for e in self.registry.entries()), self.federation.enrol_seconds
        )

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
                self._sum_reports()
                return
        server.begin_round()

    def _sum_reports(self) -> None:
        """`SUMMING_REPORTS`: open the secure sum of the masked reports that have come."""
        self.coordinator.count_reports()

    def _open_sum(self) -> None:
        """`OPENING`: begin the secure sum of the round."""
        self.coordinator.open_sum()

    def _collect_and_close(self) -> None:
        """`OPEN`: publish the model, and wait for the updates of the cohort."""
        server, board, made = self.coordinator, self.board, self.federation
        task, answered = self._broadcast(*server.open_round()), server.came("messages")
        clients, content, own, seconds = self._present(task.devices), task.content, task.own, made.round_seconds
        number, self._enough = server.round_number, min(len(clients), server.wanted)
        board.publish("round", number, clients, content=content, own=own, answered=answered, seconds=seconds)
        if not self._wait(lambda: server.is_complete or self._all_came(clients, "messages"), seconds):
            return
        board.withdraw()
        self._close()

    def _close(self) -> None:
        """`CLOSING`: open the secure sum if there is one, add the noise, step; a void round does none of it."""
        began = time.monotonic() if self._began is None else self._began
        before = _cpu()
        report = self.coordinator.close_round()
        self.closing_cpu += _cpu() - before
        self.round_seconds.append(time.monotonic() - began)
        self._began = None
        void = " (void: too few)" if report.void else ""
        rounds = self.federation.rounds
        self._say(f"round {report.number + 1}/{rounds}: {report.messages} of {report.devices} devices{void}")

    def _validate(self) -> None:
        """`IDLE` after the last round: ask held-out validation clients which model is better."""
        server, board = self.coordinator, self.board
        comparing = server.compare()
        if comparing is None:
            return
        asked = self._present(comparing.devices)
        seconds = self.federation.judge_seconds
        content = joined(comparing.start, comparing.trained)
        answered, self._enough = server.came("gains"), len(asked)
        board.publish("judge", comparing.number, asked, content=content, answered=answered, seconds=seconds)
        if not self._wait(lambda: self._all_came(asked, "gains"), seconds):
            return
        board.withdraw()
        self._say(server.close_comparison().line())

    def _broadcast(self, model: bytes, cohort: tuple[str, ...]) -> Broadcast:
        invitation = self.coordinator.invitation
        if self.secure is None or invitation is None:
            return Broadcast(cohort, model)
        return self.secure.asked(invitation, model, cohort)

    def _collect_reports(self, question: ReportRequest) -> None:
        """Publish the question until all reports have come, or enough of them by the deadline."""
        server, board = self.coordinator, self.board
        task = Broadcast(question.devices, b"")
        if self.secure is not None and question.invitation:
            task = self.secure.asked(question.invitation, b"", question.devices)
        patient = self.secure is None or self.secure.waits
        least = min(server.minimum_reports, len(question.devices))
        while not self._stopping:
            seconds, clients = self.federation.report_seconds, self._present(task.devices)
            self._enough = len(clients)
            board.publish(
                "report",
                server.report_number,
                clients,
                content=task.content,
                own=task.own,
                answered=server.came("reports"),
                period=question.period,
                seconds=seconds,
            )
            self._wait(partial(self._all_came, clients, "reports"), seconds)
            if len(server.came("reports")) >= least or not patient:
                break
            self._say(f"round {question.round_number}: too few have reported; asking again")
        board.withdraw()

    def _present(self, asked: Collection[str]) -> tuple[str, ...]:
        """Those whose places are taken; a client that enrols later is asked from the next task on."""
        absent = {entry.place.device for entry in self.registry.entries() if entry.free or entry.revoked}
        return tuple(client for client in asked if client not in absent)

    def _all_came(self, asked: Sequence[str], inbox: Inbox) -> bool:
        return set(asked) <= set(self.coordinator.came(inbox))

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
        here = {e.place.device for e in self.registry.entries() if e.key and not e.revoked}
        self._wait(lambda: here <= self._told_over, seconds)

    # For the operator

    def status(self) -> dict[str, Any]:
        """Progress of the run, without anything of any user; `waiting_for` names helpers that owe a reply."""
        server, history = self.coordinator, self.coordinator.history()
        entries = [entry for entry in self.registry.entries() if entry.place.role != "helper"]
        devices, now = {entry.place.device for entry in entries}, time.monotonic()
        return {
            "federation": self.federation.id,
            "round": server.round_number,
            "rounds": self.federation.rounds,
            "stage": "over" if self.board.over else server.stage,
            "waiting_for": list(self.board.unanswered) if self.board.kind in ("open", "sum") else [],
            "seconds_left": round(max(0.0, self.board.seconds_left), 1),
            "devices": {
                "invited": sum(not entry.free for entry in entries),
                "free": sum(entry.free for entry in entries),
                "enrolled": sum(entry.key is not None for entry in entries),
                "revoked": sum(entry.revoked for entry in entries),
                "here": sum(now - seen < _SEEN_SECONDS for who, seen in list(self._seen.items()) if who in devices),
            },
            "this_round": {"messages": len(server.came("messages")), "reports": len(server.came("reports"))},
            "void": sum(report.void for report in history),
            "messages": sum(report.messages for report in history),
            "down_bytes": sum(report.down_bytes for report in history),
            "up_bytes": sum(report.up_bytes for report in history),
            "report_bytes": sum(report.report_bytes for report in history),
            "refused": added(report.refused for report in history),
            "process": {
                "messages": self.messages,
                "cpu_seconds": round(_cpu(), 4),
                "serving_cpu_seconds": round(_cpu() - self.waiting_cpu, 4),
                "closing_cpu_seconds": round(self.closing_cpu, 4),
                "round_seconds": [round(seconds, 3) for seconds in self.round_seconds],
                "peak_rss_mb": round(peak_rss_mb(), 1),
            },
        }


def added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up counts by reason, over rounds."""
    total: dict[str, int] = {}
    for some in counts:
        for reason, count in some.items():
            total[reason] = total.get(reason, 0) + count
    return total


def _cpu() -> float:
    return time.process_time()
