"""A device behind Flower: it answers letters, and does nothing else that a server says.

The same folder, ledger and outbox as over HTTPS; a letter that comes again gets the same bytes again.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from veilrec.errors import VeilrecError
from veilrec.federate import identity
from veilrec.federate.device import folder as device_folder
from veilrec.federate.device.process import answers_of
from veilrec.federate.facts import Known, largest_content
from veilrec.federate.flower_letters import DECLINED, HELLO, TASK, BadLetter, Letter, raw, text
from veilrec.federate.tasks import Task

_NONCE = 32


class LetterDevice:
    """One device, for as long as it is held."""

    def __init__(self, folder: Path, known: Known, say: Callable[[str], None]) -> None:
        self._known, self._say = known, say
        self._identity = device_folder.identity_of(folder)
        self._invitation = device_folder.read_invitation(folder)
        self._device = device_folder.open_device(folder, known)
        self._answers = answers_of(self._device, known, device_folder.read_about(folder).place, self._identity)
        self.is_over = False  # whether the coordinator has said so

    def __enter__(self) -> LetterDevice:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._device.close()

    def reply(self, letter: Letter) -> Letter:
        """The answer to a letter; what cannot or must not be answered is declined."""
        try:
            asked = text(letter, "ask")
            if asked == HELLO:
                return self._introduce(raw(letter, "nonce", _NONCE))
            if asked == TASK:
                return self._do(letter)
            raise BadLetter(f"a device does not know what {asked!r} is")
        except (VeilrecError, OSError, sqlite3.Error) as error:
            self._say(f"not answered: {error}")
            return DECLINED

    def _introduce(self, nonce: bytes) -> Letter:
        made, device = self._known.federation, self._invitation.device
        return {
            "device": device,
            "federation": made.id,
            "plan": made.plan,
            "key": self._identity.public,
            "endorsement": self._invitation.endorse(made.id, self._identity.public),
            "signature": identity.sign(self._identity, made.id, device, HELLO, 0, nonce),
        }

    def _do(self, letter: Letter) -> Letter:
        task = Task.from_json(text(letter, "task").encode())
        if task is None:
            raise BadLetter("a letter asks for nothing")
        if task.kind == "over":
            self.is_over = True
            self._say("the federation is over")
            return DECLINED
        content = raw(letter, "content", largest_content(self._known))
        if task.sha256 and hashlib.sha256(content).hexdigest() != task.sha256:
            raise BadLetter("what came is not what was announced")
        answer = self._answers.answer(task, content)
        made, device = self._known.federation, self._invitation.device
        self._say(f"{task.kind} {task.number}: answered")
        return {
            "device": device,
            "answer": answer,
            "signature": identity.sign(self._identity, made.id, device, task.kind, task.number, answer),
        }
