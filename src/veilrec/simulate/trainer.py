"""What the run loop needs of anything that learns: a federated simulation or a centralised baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from veilrec.evaluate.scorer import Model


@dataclass(frozen=True)
class StepReport:
    """One round (or, centralised, one epoch): who took part and what crossed the door."""

    devices: int = 0
    down_bytes: int = 0
    up_bytes: int = 0
    down_params: int = 0
    up_params: int = 0
    selection_bytes: int = 0  # of up_bytes: reports on which items the sub-model should have
    paper_params: int = 0  # as the communication paper counts: one way, item vectors only
    loss: float | None = None


class Trainer(Protocol):
    """Learns step by step and can be stopped and resumed between any two steps."""

    def step(self, number: int) -> StepReport:
        """Do round `number`, counted from 0."""

    def model(self) -> Model:
        """The model as it stands, ready to rank."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that the next step and the model depend on, apart from configuration and data."""

    def load_state(self, state: Mapping[str, NDArray[Any]], steps_done: int) -> None:
        """Go on from a state."""
