"""Local learning, written once over a leading cohort dimension: a real device is a cohort of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from veilrec._arrays import Floats, Offsets
from veilrec._csr import Csr
from veilrec.updates import Uploads


@dataclass(frozen=True)
class Cohort:
    """The devices that learn together in one call: their data and their own state, side by side."""

    devices: Offsets  # [n], the number of each device: the key of its draws
    data: Csr  # n rows: the items that each may learn from
    private: Mapping[str, Floats]  # [n, ...] each: what never leaves a device; learners change it in place


@dataclass(frozen=True)
class Learned:
    """What a round of local learning gives: messages not yet clipped or perturbed, and a log."""

    uploads: Uploads
    examples: Offsets  # [n], number of local examples, positives and negatives of all epochs
    loss: Floats  # [n], mean loss of the last local epoch


class Learner(Protocol):
    """Local learning of one family of models."""

    def fresh_private_state(self, devices: Offsets) -> dict[str, Floats]:
        """The starting state of devices that take part for the first time."""

    def learn(self, cohort: Cohort, model: Mapping[str, Floats], round_number: int) -> Learned:
        """Learn from each device's data; the model is the one that the server sent, and is not changed."""
