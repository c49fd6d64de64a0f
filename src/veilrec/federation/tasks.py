"""What crosses between a coordinator and its devices, whichever way it travels: tasks, contents and answers.

A transport carries opaque bytes both ways and knows nothing of models. Over HTTPS it is `link` on one
side and `coordinator.https` on the other; another one (a message queue, Flower) has to do no more than this:

    device                                        coordinator
    link.poll(seconds)  -> FederationTask | None  board.task_for(device), and a note when that changes
    link.fetch(task)    -> bytes                  board.content(device, sha256)
    link.send(task, bytes) -> Receipt             take(device, task's kind and number, bytes)

Secure aggregation has RPCs beside the round: each is a task of its own kind, with a content of its own for each client.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, get_args

from veilrec.core.errors import VeilrecError

RpcKind = Literal["open", "sum", "advertise", "share", "sign", "reveal"]  # secagg RPCs, beside the round itself
TaskKind = Literal["report", "round", "judge", "open", "sum", "advertise", "share", "sign", "reveal", "over"]
Receipt = Literal["taken", "known already"]
RPC_KINDS: tuple[str, ...] = get_args(RpcKind)
WITH_CONTENT = "with-content"  # in a poll: what belongs to a task may come with it, behind the end of its line
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class FederationTask:
    """Something that a device is asked for."""

    kind: TaskKind
    number: int  # of the round
    period: int = 0  # of a report
    sha256: str = ""  # of what belongs to it; empty: nothing does
    size: int = 0  # bytes of that
    seconds: float = 0.0  # that are left for it

    def to_json(self) -> dict[str, Any]:
        """Encode for the wire."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: bytes) -> FederationTask | None:
        """A task, or None where nothing is asked; anything odd raises `BadTask`."""
        try:
            fields = json.loads(content)
            if fields is None:
                return None
            task = cls(**fields)
            odd = task.kind not in get_args(TaskKind) or not isinstance(task.sha256, str)
            odd |= any(not isinstance(value, int) or value < 0 for value in (task.number, task.period, task.size))
        except (ValueError, TypeError, RecursionError):
            odd = True
        if odd:
            raise BadTask("the coordinator asks for something that is not understood")
        return task


class BadTask(VeilrecError):
    """A task or content that cannot be understood, or must not be done."""


class Away(VeilrecError):
    """The coordinator cannot be reached, or has no time: try again later."""


class TurnedAway(VeilrecError):
    """The coordinator refuses, and will refuse the same again."""

    def __init__(self, status: int, line: str) -> None:
        self.status = status
        super().__init__(line)


def joined(first: bytes, second: bytes) -> bytes:
    """Two contents as one."""
    return head(first) + second


def head(first: bytes) -> bytes:
    """The beginning of two contents as one: whatever follows is the second."""
    return _LENGTH.pack(len(first)) + first


def parted(content: bytes) -> tuple[bytes, bytes]:
    """The two contents that `joined` put together."""
    length = _LENGTH.unpack_from(content)[0] if len(content) >= _LENGTH.size else len(content)
    if length > len(content) - _LENGTH.size:
        raise BadTask("what belongs to the task is not whole")
    middle = _LENGTH.size + length
    return content[_LENGTH.size : middle], content[middle:]


class CoordinatorLink(Protocol):
    """A device's way to its coordinator."""

    def poll(self, seconds: float) -> FederationTask | None:
        """Wait up to so many seconds for a task."""

    def fetch(self, task: FederationTask) -> bytes:
        """Fetch the content of a task, and check its digest."""

    def send(self, task: FederationTask, answer: bytes) -> Receipt:
        """Answer a task; when this returns the answer is on the coordinator's disk, and counts."""

    def close(self) -> None:
        """Close the connection."""
