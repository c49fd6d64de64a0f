"""What the coordinator asks of whom at this moment: read by whatever carries it to the devices."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from veilrec.federate.tasks import Kind, Task


class Board:
    """One task at a time, with a content for all or one for each; whoever has answered is not asked again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._task: Task | None = None
        self._devices: frozenset[str] = frozenset()
        self._answered: set[str] = set()
        self._contents: dict[str, tuple[str, bytes]] = {}  # by device: a digest, and what belongs to the task
        self._common: tuple[str, bytes] | None = None
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
        content: bytes | Mapping[str, bytes] = b"",
        answered: Collection[str] = (),
        period: int = 0,
        seconds: float,
    ) -> None:
        """Ask these devices; those who have answered before, and died meanwhile or not, are left alone."""
        with self._lock:
            self._task = Task(kind, number, period)
            self._devices, self._answered = frozenset(devices), set(answered)
            own = {} if isinstance(content, bytes) else {who: _named(part) for who, part in content.items()}
            self._contents = own
            self._common = _named(content) if isinstance(content, bytes) and content else None
            self._until = time.monotonic() + seconds
        self._tell()

    def withdraw(self) -> None:
        """Ask nothing of anybody."""
        with self._lock:
            self._task, self._devices, self._contents, self._common = None, frozenset(), {}, None

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
            digest, content = self._contents.get(device) or self._common or ("", b"")
            left = max(0.0, self._until - time.monotonic())
            return replace(self._task, sha256=digest, size=len(content), seconds=round(left, 3))

    def content(self, device: str, digest: str) -> bytes | None:
        """What belongs to the task of a device; None if it has none of that digest."""
        with self._lock:
            if device not in self._devices:
                return None
            found = self._contents.get(device) or self._common
            return found[1] if found is not None and found[0] == digest else None

    def note(self, device: str) -> None:
        """A device has answered what is asked now."""
        with self._lock:
            self._answered.add(device)

    @property
    def seconds_left(self) -> float:
        """Until the answers that have come have to do."""
        return self._until - time.monotonic()


def _named(content: bytes) -> tuple[str, bytes]:
    return hashlib.sha256(content).hexdigest(), content
