"""What the coordinator asks of whom at this moment: read by whatever carries it to the devices."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from veilrec.federate.tasks import Kind, Task


@dataclass(frozen=True)
class Asked:
    """Who is asked, and what belongs to it: something for all, and behind it something for each."""

    devices: Collection[str]
    content: bytes
    own: Mapping[str, bytes] | None = None


class Board:
    """One task at a time, with a content for all and a part for each; whoever has answered is not asked again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._task: Task | None = None
        self._devices: frozenset[str] = frozenset()
        self._answered: set[str] = set()
        self._content = b""  # what belongs to the task
        self._own: Mapping[str, bytes] = {}  # by device, behind that
        self._digests: dict[str, str] = {}  # of both together
        self._digest = ""  # of what those have who have nothing of their own
        self._until = 0.0
        self.over = False
        self._watchers: list[Callable[[], None]] = []

    def watch(self, notify: Callable[[], None]) -> None:
        """Be told whenever something new is asked, by a call from any thread."""
        self._watchers.append(notify)

    def publish(
        self,
        kind: Kind,
        number: int,
        devices: Collection[str],
        *,
        content: bytes = b"",
        own: Mapping[str, bytes] | None = None,
        answered: Collection[str] = (),
        period: int = 0,
        seconds: float,
    ) -> None:
        """Ask these devices; those who have answered before, and died meanwhile or not, are left alone."""
        with self._lock:
            self._task = Task(kind, number, period)
            self._devices, self._answered = frozenset(devices), set(answered)
            digest = hashlib.sha256(content)
            self._content, self._own = content, own or {}
            self._digests = {who: _behind(digest, part) for who, part in self._own.items()}
            self._digest = digest.hexdigest() if content else ""
            self._until = time.monotonic() + seconds
        self._tell()

    def withdraw(self) -> None:
        """Ask nothing of anybody."""
        with self._lock:
            self._task, self._devices, self._content, self._own, self._digests = None, frozenset(), b"", {}, {}
            self._digest = ""

    def end(self) -> None:
        """Nothing will be asked any more."""
        self.withdraw()
        self.over = True
        self._tell()

    def _tell(self) -> None:
        for notify in self._watchers:
            notify()

    def task_for(self, device: str) -> Task | None:
        """What a device is asked now."""
        if self.over:
            return Task("over", 0)
        with self._lock:
            if self._task is None or device not in self._devices or device in self._answered:
                return None
            size = len(self._content) + len(self._own.get(device, b""))
            left = max(0.0, self._until - time.monotonic())
            return replace(self._task, sha256=self._digest_for(device), size=size, seconds=round(left, 3))

    def content(self, device: str, digest: str) -> bytes | None:
        """What belongs to the task of a device; None if it has none of that digest."""
        with self._lock:
            if device not in self._devices or not digest or digest != self._digest_for(device):
                return None
            return self._content + self._own.get(device, b"")

    def _digest_for(self, device: str) -> str:
        return self._digests.get(device, self._digest)

    def note(self, device: str, kind: str, number: int) -> None:
        """A device has answered a task, which may not be the one of now any more."""
        with self._lock:
            if self._task is not None and (self._task.kind, self._task.number) == (kind, number):
                self._answered.add(device)

    @property
    def answers(self) -> int:
        """How many have answered what is asked now."""
        with self._lock:
            return len(self._answered)

    @property
    def seconds_left(self) -> float:
        """Until the answers that have come have to do."""
        return self._until - time.monotonic()


def _behind(digest: hashlib._Hash, part: bytes) -> str:
    """Of what was digested already with something behind it: what all have in common is read once."""
    whole = digest.copy()
    whole.update(part)
    return whole.hexdigest()
