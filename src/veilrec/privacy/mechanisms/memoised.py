"""An answer drawn once per public period and replayed for free."""

from __future__ import annotations

import json
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from veilrec.errors import BadInput
from veilrec.privacy.events import ComposedEvent
from veilrec.privacy.mechanisms.base import Mechanism, Released, require_complete
from veilrec.privacy.randomness import Source

Input = TypeVar("Input")
Answer = NDArray[Any]
FREE = ComposedEvent(())  # nothing new was learned


class Store(Protocol):
    """Where a device keeps its last answer; `save` has to be durable before it returns."""

    def load(self, key: str) -> tuple[int, bytes] | None:
        """The period and the answer that were saved last."""

    def save(self, key: str, period: int, answer: bytes) -> None:
        """Replace them."""


class MemoryStore:
    """For simulations and tests: forgotten when the process ends."""

    def __init__(self) -> None:
        self._saved: dict[str, tuple[int, bytes]] = {}

    def load(self, key: str) -> tuple[int, bytes] | None:
        """The period and the answer that were saved last."""
        return self._saved.get(key)

    def save(self, key: str, period: int, answer: bytes) -> None:
        """Replace them."""
        self._saved[key] = (period, answer)


class Memoised(Generic[Input]):
    """A mechanism that answers afresh only when the public period changes, whatever happened to the data
    meanwhile.

    Redrawing when the data change would announce the change with certainty. `key` names the question: another
    model version is another question, and costs again.
    """

    def __init__(self, mechanism: Mechanism[Input, Any], store: Store, *, key: str) -> None:
        require_complete(mechanism)
        self.mechanism = mechanism
        self._store = store
        self._key = key

    def release(self, value: Input, source: Source, *, period: int) -> Released[Answer]:
        """The answer of this period: new and charged the first time, the same and free from then on."""
        saved = self._store.load(self._key)
        if saved and period < saved[0]:
            raise BadInput(f"period is {period}, but period {saved[0]} was answered: the public clock never goes back")
        if saved and period == saved[0]:
            return Released(_decoded(saved[1]), FREE)
        fresh = self.mechanism.release(value, source)
        self._store.save(self._key, period, _encoded(fresh.value))
        return fresh


def _encoded(answer: Answer) -> bytes:
    header = json.dumps({"dtype": answer.dtype.str, "shape": answer.shape}).encode()
    return header + b"\n" + np.ascontiguousarray(answer).tobytes()


def _decoded(stored: bytes) -> Answer:
    try:
        header, data = stored.split(b"\n", 1)
        layout = json.loads(header)
        return np.frombuffer(data, np.dtype(layout["dtype"])).reshape(layout["shape"])
    except (ValueError, KeyError, TypeError):
        raise BadInput("the stored answer cannot be read: wait for the next period, nothing is sent before") from None
