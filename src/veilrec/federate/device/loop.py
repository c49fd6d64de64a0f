"""A device's life: ask what there is to do, do it, send it, and never twice in two ways.

What is sent was charged for and written down before, in one transaction (`veilrec.device.device`): whoever kills this
process at any point finds after the next start the same message, or none. Nothing of an error leaves the device: a
task that it cannot or must not do is left unanswered.
"""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, Protocol

from veilrec.device.device import Device
from veilrec.errors import VeilrecError
from veilrec.federate.tasks import Away, BadTask, DeviceLink, Task, TurnedAway, parted

_POLL_SECONDS = 20.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 30.0  # seconds between attempts that fail
_DECLINED_PAUSE = 5.0  # before a device that does not answer a task asks what else there is
_jitter = random.SystemRandom()


class Answers(Protocol):
    """What answers tasks: a device, or whatever stands for one."""

    def answer(self, task: Task, content: bytes) -> bytes:
        """The bytes that may leave; they are paid for."""


class OfDevice:
    """A device that answers tasks."""

    def __init__(self, device: Device[Any]) -> None:
        self.device = device

    def answer(self, task: Task, content: bytes) -> bytes:
        """Learn, report or judge."""
        if task.kind == "round":
            return self.device.take_part(content, task.number)
        if task.kind == "report":
            return self.device.report(task.number, task.period)
        if task.kind == "judge":
            start, trained = parted(content)
            return self.device.judge(start, trained, task.number)
        raise BadTask(f"a device does not do this: {task.kind}")


class Pause:
    """Longer and longer between attempts that fail, never as long as the others': they must not come all at once."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop, self._next = stop, _FIRST_PAUSE

    def wait(self) -> None:
        """Before the next attempt."""
        self._stop.wait(_jitter.uniform(0.0, self._next))
        self._next = min(2.0 * self._next, _LONGEST_PAUSE)

    def reset(self) -> None:
        """An attempt did not fail."""
        self._next = _FIRST_PAUSE


def live(
    link: DeviceLink, answers: Answers, say: Callable[[str], None], stop: threading.Event, enrol: Callable[[], object]
) -> bool:
    """Until the federation is over (True), or somebody stops this device (False)."""
    pause, is_enrolled = Pause(stop), False
    while not stop.is_set():
        try:
            if not is_enrolled:
                enrol()
                is_enrolled = True
            task = link.poll(_POLL_SECONDS)
            pause.reset()
            if task is None:
                continue
            if task.kind == "over":
                say("the federation is over")
                return True
            _serve(link, answers, task, say, stop)
        except (Away, BadTask) as error:
            say(str(error))
            pause.wait()
    return False


def _serve(link: DeviceLink, answers: Answers, task: Task, say: Callable[[str], None], stop: threading.Event) -> None:
    try:
        content = link.fetch(task)
        answer = answers.answer(task, content)
        receipt = link.send(task, answer)
    except TurnedAway as error:
        if error.status in (401, 403, 404) or not error.status:
            raise
        say(f"{task.kind} {task.number}: {error}")  # it came too late, or has come before
        stop.wait(_jitter.uniform(0.0, 1.0))
    except Away:
        raise
    except (VeilrecError, OSError, sqlite3.Error) as error:
        say(f"{task.kind} {task.number} is not answered: {error}")
        stop.wait(_jitter.uniform(0.5, 1.0) * _DECLINED_PAUSE)
    else:
        say(f"{task.kind} {task.number}: {receipt}")
