"""A coordinator at work: what to ask next, until when to wait, and what to do with what comes.

Time is the machine's uptime and never its clock: a clock that is set back or forward moves no deadline. A coordinator
that was killed goes on where its folder says; a deadline then starts anew, because nobody knows how long it was away.
A full disk stops nothing but itself: what could not be written was not acknowledged, and is tried again.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from veilrec._memory import peak_rss_mb
from veilrec.errors import BadInput
from veilrec.federate.coordinator.board import Asked, Board
from veilrec.federate.coordinator.helped import HelpedRounds
from veilrec.federate.coordinator.paired import PAIRED_TRIPS, PairedRounds
from veilrec.federate.coordinator.registry import Registry
from veilrec.federate.federation import Federation
from veilrec.federate.tasks import TRIPS, Away, Receipt, joined
from veilrec.server.coordinator import Coordinator
from veilrec.server.coordinator_parts import Question
from veilrec.server.refusals import Refused
from veilrec.server.round_store import Inbox

_TROUBLE = (sqlite3.Error, OSError)
_PAUSE_SECONDS = 1.0  # before something that a disk refused is tried again
_SEEN_SECONDS = 60.0  # since a device asked, to count as here


SecureRounds: TypeAlias = HelpedRounds | PairedRounds


class Busy(Exception):
    """Something could not be written down: it is to be sent again."""


class Conductor:
    """Drives a coordinator through all rounds, in a thread of its own."""

    def __init__(
        self,
        coordinator: Coordinator,
        registry: Registry,
        federation: Federation,
        say: Callable[[str], None],
        *,
        board: Board | None = None,
        secure: SecureRounds | None = None,
    ) -> None:
        self.coordinator, self.registry, self.federation = coordinator, registry, federation
        self.board, self.secure = board or Board(), secure
        self._say = say
        self._changed = threading.Condition()
        self._stopping = False
        self._enough = 0  # answers before which whoever waits for them need not look
        self._seen: dict[str, float] = {}
        self._told_over: set[str] = set()
        self.waiting_cpu = 0.0  # seconds of this process before its first round
        self.closing_cpu = 0.0  # seconds of this process that adding up and stepping took
        self.messages = 0  # that were taken in by this process
        self.round_seconds: deque[float] = deque(maxlen=1000)
        for entry in (*registry.entries("learner"), *registry.entries("judge")):
            enrol = coordinator.enrol if entry.place.role == "learner" else coordinator.enrol_judge
            if enrol(entry.place.device) != entry.place.number:
                raise BadInput(f"{registry.path} gives {entry.place.device} a place of another: bring back its own")

    # What comes from outside, in any thread

    def stop(self) -> None:
        """Leave as soon as nothing is half done."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self.secure is not None:
            self.secure.trips.stop()

    def see(self, device: str) -> None:
        """A device has asked."""
        self._seen[device] = time.monotonic()
        if self.board.over:
            self._told_over.add(device)

    def enrolled(self) -> None:
        """Somebody has come."""
        with self._changed:
            self._changed.notify_all()

    def take(self, device: str, kind: str, number: int, content: bytes) -> Receipt:
        """An answer of a device that is who it says; `Refused` where it is not to be counted."""
        receive = self._receivers.get(kind)
        if receive is None:
            raise Refused("nothing is open", "nothing of this kind is asked for")
        server = self.coordinator
        if number != (server.report_number if kind == "report" else server.round_number):
            raise Refused("another round", f"round {number} is not the one that is asked for")
        try:
            receipt: Receipt = receive(device, content)
        except _TROUBLE as error:
            self._say(f"a message could not be kept ({error}): it is asked for again")
            raise Busy from None
        self.board.note(device, kind, number)
        with self._changed:
            self.messages += receipt == "taken"
            if self.board.answers >= self._enough:
                self._changed.notify_all()
        return receipt

    @property
    def trips_a_round(self) -> int:
        """How often a device is asked in a round."""
        return len(PAIRED_TRIPS) + 1 if isinstance(self.secure, PairedRounds) else 1

    def is_trip(self, kind: str) -> bool:
        """Whether it is about one of the small trips of a secure sum: these are taken in while a round waits."""
        return kind in TRIPS

    def take_on_trip(self, device: str, kind: str, number: int, content: bytes) -> Receipt:
        """What a helper or a device says on a trip; it is worth something while somebody waits for it."""
        if self.secure is None:
            raise Refused("nothing is open", "nothing of this kind is asked for")
        return self.secure.trips.take(device, kind, number, content)

    @property
    def _receivers(self) -> dict[str, Callable[[str, bytes], Receipt]]:
        server = self.coordinator
        return {"report": server.receive_report, "round": server.receive, "judge": server.receive_gain}

    # The run

    def run(self) -> bool:
        """All rounds that are left, and the judges; whether the run is over."""
        self._wait_for_devices()
        self.waiting_cpu = _cpu()
        while self.coordinator.round_number < self.federation.rounds and not self._stopping:
            self._attempt(self._round)
        if not self._stopping:
            self._attempt(self._judging)
        if not self._stopping:
            self.board.end()
        return not self._stopping

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Away as error:
            self._say(f"round {self.coordinator.round_number}: {error}")
        except _TROUBLE as error:
            self._say(f"round {self.coordinator.round_number}: the disk refuses ({error}); trying again")
            self._wait(lambda: False, _PAUSE_SECONDS)

    def _wait_for_devices(self) -> None:
        invited = sum(not entry.free for entry in self.registry.entries())
        self._say(f"waiting for {invited} devices, for {self.federation.enrol_seconds:g} s at most")
        self._wait(
            lambda: all(e.key or e.revoked or e.free for e in self.registry.entries()), self.federation.enrol_seconds
        )

    def _there(self, asked: Collection[str]) -> tuple[str, ...]:
        """Those whose places somebody has: whoever comes later is asked from the next time on."""
        nobody = {entry.place.device for entry in self.registry.entries() if entry.free or entry.revoked}
        return tuple(device for device in asked if device not in nobody)

    def _all_came(self, asked: Sequence[str], inbox: Inbox) -> bool:
        return set(asked) <= set(self.coordinator.came(inbox))

    def _wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Until something is done, or so long; whether to go on: somebody may have said stop."""
        until = time.monotonic() + seconds
        with self._changed:
            while not self._stopping and not done():
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, 1.0))
            return not self._stopping

    def _round(self) -> None:
        began = time.monotonic()
        server, board, made = self.coordinator, self.board, self.federation
        if server.stage in ("between rounds", "asking", "counting"):
            self._reports()
        if self._stopping:
            return
        if server.stage != "closing":
            opened = server.open_round()
        if server.stage == "open":
            asked, answered = self._asked(*opened), server.came("messages")
            devices, content, own, seconds = self._there(asked.devices), asked.content, asked.own, made.round_seconds
            number, self._enough = server.round_number, min(len(devices), server.wanted)
            board.publish("round", number, devices, content=content, own=own, answered=answered, seconds=seconds)
            if not self._wait(lambda: server.is_complete or self._all_came(devices, "messages"), seconds):
                return
            board.withdraw()
        before = _cpu()
        report = server.close_round()
        self.closing_cpu += _cpu() - before
        self.round_seconds.append(time.monotonic() - began)
        void = " (void: too few)" if report.void else ""
        self._say(f"round {report.number + 1}/{made.rounds}: {report.messages} of {report.devices} devices{void}")

    def _asked(self, broadcast: bytes, cohort: tuple[str, ...]) -> Asked:
        invitation = self.coordinator.invitation
        if self.secure is None or invitation is None:
            return Asked(cohort, broadcast)
        return self.secure.asked(invitation, broadcast, cohort)

    def _reports(self) -> None:
        """Until what devices report is known; what is added up under masks may have to be asked for anew."""
        server = self.coordinator
        while not self._stopping:
            if server.stage != "counting":
                question = server.ask()
                if question is None:
                    return
                if question.invitation == b"":
                    continue  # the secure sum could not begin
                self._gather(question)
                if question.invitation is None or self._stopping:
                    return
            server.count_reports()

    def _gather(self, question: Question) -> None:
        """Reports, until all or enough have come."""
        server, board = self.coordinator, self.board
        asked = Asked(question.devices, b"")
        if self.secure is not None and question.invitation:
            asked = self.secure.asked(question.invitation, b"", question.devices)
        patient = self.secure is None or self.secure.waits
        least = min(server.minimum_reports, len(question.devices))
        while not self._stopping:
            seconds, devices = self.federation.report_seconds, self._there(asked.devices)
            self._enough = len(devices)
            board.publish(
                "report",
                server.report_number,
                devices,
                content=asked.content,
                own=asked.own,
                answered=server.came("reports"),
                period=question.period,
                seconds=seconds,
            )
            self._wait(partial(self._all_came, devices, "reports"), seconds)
            if len(server.came("reports")) >= least or not patient:
                break
            self._say(f"round {question.round_number}: too few have reported; asking again")
        board.withdraw()

    def _judging(self) -> None:
        server, board = self.coordinator, self.board
        comparing = server.compare()
        if comparing is None:
            return
        asked = self._there(comparing.devices)
        seconds = self.federation.judge_seconds
        content = joined(comparing.start, comparing.trained)
        answered, self._enough = server.came("gains"), len(asked)
        board.publish("judge", comparing.number, asked, content=content, answered=answered, seconds=seconds)
        if not self._wait(lambda: self._all_came(asked, "gains"), seconds):
            return
        board.withdraw()
        self._say(server.close_comparison().line())

    def linger(self, seconds: float) -> None:
        """Let devices know that it is over."""
        here = {e.place.device for e in self.registry.entries() if e.key and not e.revoked}
        self._wait(lambda: here <= self._told_over, seconds)

    # For whoever runs it

    def status(self) -> dict[str, Any]:
        """How far the run has come; nothing of any user."""
        server, history = self.coordinator, self.coordinator.history()
        entries = [entry for entry in self.registry.entries() if entry.place.role != "helper"]
        devices, now = {entry.place.device for entry in entries}, time.monotonic()
        return {
            "federation": self.federation.id,
            "round": server.round_number,
            "rounds": self.federation.rounds,
            "stage": "over" if self.board.over else server.stage,
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
    """Counts by reason, of all rounds together."""
    total: dict[str, int] = {}
    for some in counts:
        for reason, count in some.items():
            total[reason] = total.get(reason, 0) + count
    return total


def _cpu() -> float:
    return time.process_time()
