"""What a coordinator asks, carried by Flower: letters to the nodes that are there, answers to the driver.

Nodes are asked who they are; a node counts as a device only by a signature of the device's key over a number that was
drawn for it, and an answer only by one over the answer. So Flower, and whoever runs it, can lose letters and cannot
make any. A letter has as long as its round; whoever does not answer is asked again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from veilrec.errors import VeilrecError
from veilrec.federate import identity
from veilrec.federate.coordinator.driver import RoundDriver, StoreBusy
from veilrec.federate.coordinator.registry import NotInvited
from veilrec.federate.flower_letters import HELLO, BadLetter, Letter, raw, task_letter, text
from veilrec.federate.tasks import Task

_HELLO_SECONDS = 60.0  # that a node has to say who it is
_AGAIN_SECONDS = 5.0  # before a node that did not answer is asked again
_LOOK_SECONDS = 1.0  # between looks at which nodes there are
_SMALL = 4096


class Post(Protocol):
    """The part of Flower that is used."""

    def nodes(self) -> Iterable[int]:
        """Those that are there now."""

    def push(self, letters: Sequence[tuple[int, Letter, float]]) -> Sequence[str | None]:
        """Send letters to nodes, each with the seconds it has; the names that their answers go by."""

    def pull(self, names: Sequence[str]) -> Iterable[tuple[str, Letter | None]]:
        """The answers that have come; None for one that went wrong."""


@dataclass(frozen=True)
class _Sent:
    """A letter that waits for its answer."""

    node: int
    device: str | None  # None: it asked for it
    task: Task | None
    nonce: bytes
    until: float


class Carrier:
    """Moves letters between a driver and Flower; one thread calls `turn`, again and again."""

    def __init__(self, driver: RoundDriver, post: Post, say: Callable[[str], None], *, largest_answer: int) -> None:
        self._driver, self._post, self._say, self._cap = driver, post, say, largest_answer
        self._federation = driver.federation
        self._devices: dict[int, str] = {}  # by node
        self._sent: dict[str, _Sent] = {}
        self._not_before: dict[int, float] = {}
        self._told_over: set[int] = set()
        self._looked = -_LOOK_SECONDS
        self._nodes: list[int] = []

    def turn(self) -> None:
        """Send what is to be sent, and take in what has come."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._nodes, self._looked = list(self._post.nodes()), now
        self._send(now)
        self._collect(now)

    @property
    def everybody_knows(self) -> bool:
        """Whether every node that is a device was told that it is over."""
        return self._told_over >= {node for node in self._nodes if node in self._devices}

    def _send(self, now: float) -> None:
        waiting = {sent.node for sent in self._sent.values()}
        drafts: list[tuple[Letter, _Sent]] = []
        for node in self._nodes:
            if node in waiting or self._not_before.get(node, 0.0) > now:
                continue
            device = self._devices.get(node)
            if device is None:
                nonce = secrets.token_bytes(32)
                hello: Letter = {"ask": HELLO, "nonce": nonce}
                drafts.append((hello, _Sent(node, None, None, nonce, now + _HELLO_SECONDS)))
            else:
                drafts += self._task_for(node, device, now)
        names = self._post.push([(sent.node, letter, sent.until - now) for letter, sent in drafts]) if drafts else []
        for name, (_, sent) in zip(names, drafts, strict=True):
            if name is None:  # the node has gone meanwhile
                self._later(sent.node, now)
            else:
                self._sent[name] = sent

    def _task_for(self, node: int, device: str, now: float) -> list[tuple[Letter, _Sent]]:
        board = self._driver.board
        task = board.task_for(device)
        if task is None:
            return []
        if task.kind == "over":
            if node in self._told_over:
                return []
            self._told_over.add(node)
            self._driver.see(device)
            return [(task_letter(task, b""), _Sent(node, device, task, b"", now + _AGAIN_SECONDS))]
        content = board.content(device, task.sha256) if task.sha256 else b""
        if content is None or task.seconds <= 0.0:  # the round has ended meanwhile
            return []
        self._driver.see(device)
        return [(task_letter(task, content), _Sent(node, device, task, b"", now + task.seconds))]

    def _collect(self, now: float) -> None:
        for name, letter in self._post.pull(list(self._sent)) if self._sent else ():
            sent = self._sent.pop(name, None)
            if sent is None:
                continue
            if letter is None or "declined" in letter:
                self._later(sent.node, now)
                continue
            try:
                self._take(sent, letter)
            except StoreBusy:
                self._later(sent.node, now)
            except VeilrecError as error:
                self._say(f"an answer by way of Flower is not taken: {error}")
                self._later(sent.node, now)
        for name in [name for name, sent in self._sent.items() if sent.until < now]:
            del self._sent[name]

    def _later(self, node: int, now: float) -> None:
        self._not_before[node] = now + _AGAIN_SECONDS

    def _take(self, sent: _Sent, letter: Letter) -> None:
        if sent.device is None or sent.task is None:
            self._meet(sent, letter)
            return
        if text(letter, "device") != sent.device:
            raise BadLetter("a node answers for another device than it said it is")
        entry = self._driver.registry.find(sent.device)
        if entry is None or entry.key is None or entry.revoked:
            raise NotInvited("this device was revoked")
        answer, task = raw(letter, "answer", self._cap), sent.task
        signed = raw(letter, "signature", _SMALL)
        identity.check(entry.key, self._federation.id, sent.device, task.kind, task.number, answer, signed)
        self._driver.take(sent.device, task.kind, task.number, answer)

    def _meet(self, sent: _Sent, letter: Letter) -> None:
        """A node says which device it is: by the device's own key, which its invitation vouches for."""
        device, made = text(letter, "device"), self._federation
        if text(letter, "federation") != made.id or text(letter, "plan") != made.plan:
            raise BadLetter("a node is of another federation, or has another version of the plan")
        key = raw(letter, "key", _SMALL)
        identity.check(key, made.id, device, HELLO, 0, sent.nonce, raw(letter, "signature", _SMALL))
        place = self._driver.registry.enrol(made.id, device, key, raw(letter, "endorsement", _SMALL))
        self._devices[sent.node] = place.device
        self._driver.see(place.device)
        self._driver.enrolled()
