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
from collections.abc import Callable
from typing import Any

from veilrec._memory import peak_rss_mb
from veilrec.errors import BadInput
from veilrec.federate.coordinator.board import Board
from veilrec.federate.coordinator.helped import HelpedRounds
from veilrec.federate.coordinator.registry import Registry
from veilrec.federate.federation import Federation
from veilrec.federate.tasks import Away, Receipt, joined
from veilrec.server.coordinator import Coordinator, Refused

_TROUBLE = (sqlite3.Error, OSError)
_PAUSE_SECONDS = 1.0  # before something that a disk refused is tried again
_SEEN_SECONDS = 60.0  # since a device asked, to count as here


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
        secure: HelpedRounds | None = None,
    ) -> None:
        self.coordinator, self.registry, self.federation = coordinator, registry, federation
        self.board, self.secure = board or Board(), secure
        self._say = say
        self._changed = threading.Condition()
        self._stopping = False
        self._seen: dict[str, float] = {}
        self._told_over: set[str] = set()
        self.waiting_cpu = 0.0  # seconds of this process before its first round
        self.closing_cpu = 0.0  # seconds of this process that adding up and stepping took
        self.messages = 0  # that were taken in by this process
        self.round_seconds: deque[float] = deque(maxlen=1000)
        self._helpers = {entry.place.device for entry in registry.entries("helper")}
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
            self.secure.stop()

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
        if number != self.coordinator.round_number:
            raise Refused("another round", f"round {number} is not the one that is asked for")
        try:
            receipt: Receipt = receive(device, content)
        except _TROUBLE as error:
            self._say(f"a message could not be kept ({error}): it is asked for again")
            raise Busy from None
        self.board.note(device)
        with self._changed:
            self.messages += receipt == "taken"
            self._changed.notify_all()
        return receipt

    def is_helper(self, device: str) -> bool:
        """Whether it is one of those who help to add up."""
        return device in self._helpers

    def take_from_helper(self, device: str, kind: str, number: int, content: bytes) -> Receipt:
        """What a helper says; it is worth something while somebody waits for it, and is kept nowhere."""
        if self.secure is None or number != self.coordinator.round_number:
            raise Refused("another round", "this is not what helpers are asked for")
        self.secure.take(device, kind, content)
        self.board.note(device)
        return "taken"

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
        entries = self.registry.entries()
        self._say(f"waiting for {len(entries)} devices, for {self.federation.enrol_seconds:g} s at most")
        self._wait(lambda: all(e.key or e.revoked for e in self.registry.entries()), self.federation.enrol_seconds)

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
        if server.stage in ("between rounds", "asking"):
            self._reports()
        if self._stopping:
            return
        if server.stage != "closing":
            broadcast, cohort = server.open_round()
            seconds = made.round_seconds
            content = broadcast if server.invitation is None else joined(server.invitation, broadcast)
            board.publish(
                "round", server.round_number, cohort, content=content, answered=server.came("messages"), seconds=seconds
            )
            if not self._wait(lambda: server.is_complete, seconds):
                return
            board.withdraw()
        before = _cpu()
        report = server.close_round()
        self.closing_cpu += _cpu() - before
        self.round_seconds.append(time.monotonic() - began)
        void = " (void: too few)" if report.void else ""
        self._say(f"round {report.number + 1}/{made.rounds}: {report.messages} of {report.devices} devices{void}")

    def _reports(self) -> None:
        server, board = self.coordinator, self.board
        question = server.ask()
        if question is None or question.closed:
            return
        least = min(server.minimum_reports, len(question.devices))
        masked = self.secure is not None and self.secure.masks_reports
        invitation = (server.invitation if masked else None) or b""
        while not self._stopping:
            seconds = self.federation.report_seconds
            board.publish(
                "report",
                question.round_number,
                question.devices,
                content=invitation,
                answered=server.came("reports"),
                period=question.period,
                seconds=seconds,
            )
            self._wait(lambda: len(server.came("reports")) >= len(question.devices), seconds)
            if len(server.came("reports")) >= least:
                break
            self._say(f"round {question.round_number}: too few have reported; asking again")
        board.withdraw()

    def _judging(self) -> None:
        server, board = self.coordinator, self.board
        asked = server.compare()
        if asked is None:
            return
        seconds = self.federation.judge_seconds
        content = joined(asked.start, asked.trained)
        answered = server.came("gains")
        board.publish("judge", asked.number, asked.devices, content=content, answered=answered, seconds=seconds)
        if not self._wait(lambda: len(server.came("gains")) >= len(asked.devices), seconds):
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
        server, history, entries = self.coordinator, self.coordinator.history(), self.registry.entries()
        now = time.monotonic()
        return {
            "federation": self.federation.id,
            "round": server.round_number,
            "rounds": self.federation.rounds,
            "stage": "over" if self.board.over else server.stage,
            "seconds_left": round(max(0.0, self.board.seconds_left), 1),
            "devices": {
                "invited": len(entries),
                "enrolled": sum(entry.key is not None for entry in entries),
                "revoked": sum(entry.revoked for entry in entries),
                "here": sum(now - seen < _SEEN_SECONDS for seen in list(self._seen.values())),
            },
            "this_round": {"messages": len(server.came("messages")), "reports": len(server.came("reports"))},
            "void": sum(report.void for report in history),
            "messages": sum(report.messages for report in history),
            "down_bytes": sum(report.down_bytes for report in history),
            "up_bytes": sum(report.up_bytes for report in history),
            "report_bytes": sum(report.report_bytes for report in history),
            "refused": _added(report.refused for report in history),
            "process": {
                "messages": self.messages,
                "cpu_seconds": round(_cpu(), 4),
                "serving_cpu_seconds": round(_cpu() - self.waiting_cpu, 4),
                "closing_cpu_seconds": round(self.closing_cpu, 4),
                "round_seconds": [round(seconds, 3) for seconds in self.round_seconds],
                "peak_rss_mb": round(peak_rss_mb(), 1),
            },
        }


def _added(counts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for some in counts:
        for reason, count in some.items():
            total[reason] = total.get(reason, 0) + count
    return total


def _cpu() -> float:
    return time.process_time()
