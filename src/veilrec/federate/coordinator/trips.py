"""The small trips of secure sums: something is asked of helpers or devices, and what they say is waited for.

What they say is kept nowhere: whoever is asked the same again says the same. It is taken in beside the coordinator's
lock, which somebody who waits for it holds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping

from veilrec.errors import VeilrecError
from veilrec.federate.coordinator.board import Board
from veilrec.federate.coordinator.registry import Entry, Registry
from veilrec.federate.tasks import Receipt, Trip
from veilrec.federate.vouching import listed
from veilrec.server.refusals import Refused

Take = Callable[[str, bytes], object]
"""What is done with what somebody, by name, says; an error refuses it."""


class Trips:
    """One trip at a time."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._changed = threading.Condition()
        self._asked: tuple[Trip, int, frozenset[str], Take] | None = None
        self._came: dict[str, bytes] = {}
        self.stopping = False
        self.down = self.up = 0  # bytes, until somebody sets them to 0

    def stop(self) -> None:
        """Wait for nobody any more."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    def take(self, who: str, kind: str, number: int, content: bytes) -> Receipt:
        """What somebody says; `Refused` where it is not what they are asked, or not their first word on it."""
        with self._changed:
            if self._asked is None or self._asked[:2] != (kind, number) or who not in self._asked[2]:
                raise Refused("nothing is open", "this is not asked for now")
            known = self._came.get(who)
            if known is not None and known != content:
                raise Refused("second message", "something else was said to this already")
            if known is None:
                try:
                    self._asked[3](who, content)
                except VeilrecError as error:
                    raise Refused("bad bytes", str(error)) from None
                self._came[who] = content
                self.up += len(content)
                if len(self._came) == len(self._asked[2]):
                    self._changed.notify_all()
        self._board.note(who, kind, number)
        return "taken" if known is None else "known already"

    def ask(
        self,
        kind: Trip,
        number: int,
        names: Collection[str],
        *,
        seconds: float,
        content: bytes = b"",
        own: Mapping[str, bytes] | None = None,
        take: Take | None = None,
    ) -> dict[str, bytes]:
        """What these say, or those of them who do in time."""
        until = time.monotonic() + seconds
        with self._changed:
            self._came, self._asked = {}, (kind, number, frozenset(names), take or _anything)
            self.down += len(names) * len(content) + sum(map(len, (own or {}).values()))
        self._board.publish(kind, number, names, content=content, own=own, seconds=seconds)
        with self._changed:
            while len(self._came) < len(names) and not self.stopping and time.monotonic() < until:
                self._changed.wait(0.5)
            self._asked = None
            said = dict(self._came)
        self._board.withdraw()
        return said


def _anything(_who: str, _content: bytes) -> None:
    pass


def learners(registry: Registry) -> list[Entry]:
    """The devices that learn and that have come."""
    return [entry for entry in registry.entries("learner") if entry.key is not None and not entry.revoked]


def keys_of(entries: Collection[Entry]) -> dict[int, bytes]:
    """Lasting keys, by place."""
    return {entry.place.number: entry.key for entry in entries if entry.key is not None}


def listed_keys(entries: Collection[Entry]) -> bytes:
    """The same with what vouches for every key, for those who believe nobody's word."""
    return listed(
        (entry.place.number, entry.key, entry.endorsement)
        for entry in entries
        if entry.key is not None and entry.endorsement is not None
    )
