"""Interface between the run loop and a trainer: a federated simulation or a centralised baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from veilrec.client.rankers import Ranker, sent_first
from veilrec.core.arrays import Bools
from veilrec.core.csr import Csr
from veilrec.models.scores import Model


@dataclass(frozen=True)
class StepReport:
    """Participation, traffic and loss of one round (centralised: one epoch)."""

    devices: int = 0
    down_bytes: int = 0
    up_bytes: int = 0
    down_params: int = 0
    up_params: int = 0
    selection_bytes: int = 0  # of up_bytes: reports on which items the sub-model should have
    paper_params: int = 0  # as the communication paper counts: one way, item vectors only
    loss: float | None = None
    shares: tuple[float, ...] | None = None  # mean attention over basis vectors, of models that have them


@dataclass(frozen=True)
class ModelParts:
    """A trained model in parts: public weights, and private state of clients."""

    ranker: Ranker
    weights: Mapping[str, NDArray[Any]]
    private: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # [users, ...] each
    sent: Bools | None = None  # the items that any round was about; None: all

    def model(self, histories: Csr) -> Model:
        """Model for users with these histories, in the order of their private states."""
        model = self.ranker.model(self.weights, self.private, histories)
        return model if self.sent is None else sent_first(model, self.sent)


class Trainer(Protocol):
    """Trains step by step; can be stopped and resumed between any two steps."""

    def step(self, number: int) -> StepReport:
        """Run round `number`, counted from 0."""

    def parts(self) -> ModelParts:
        """Current model in parts."""

    def model(self) -> Model:
        """Current model, ready to rank for the training users."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that the next step and the model depend on, apart from configuration and data."""

    def load_state(self, state: Mapping[str, NDArray[Any]], steps_done: int) -> None:
        """Resume from a saved state."""
