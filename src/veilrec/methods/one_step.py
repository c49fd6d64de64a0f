"""Methods without rounds: everything is computed at step 0, and the model is made of what was computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from veilrec.errors import VeilrecError
from veilrec.evaluate.scorer import Model
from veilrec.simulate.trainer import StepReport

Arrays = Mapping[str, NDArray[Any]]


class OneStep:
    """A trainer whose first step does the whole work; further steps change nothing."""

    def __init__(self, compute: Callable[[], Arrays], make_model: Callable[[Arrays], Model]) -> None:
        self._compute = compute
        self._make_model = make_model
        self._arrays: Arrays | None = None

    def step(self, number: int) -> StepReport:
        """Compute at step 0."""
        if number == 0:
            self._arrays = self._compute()
        return StepReport()

    def model(self) -> Model:
        """The model of what was computed."""
        return self._make_model(self._computed())

    def state(self) -> dict[str, NDArray[Any]]:
        """What was computed; nothing before step 0."""
        return dict(self._arrays or {})

    def load_state(self, state: Arrays, steps_done: int) -> None:
        """Go on from a state."""
        self._arrays = {name: values.copy() for name, values in state.items()} if steps_done else None

    def _computed(self) -> Arrays:
        if self._arrays is None:
            raise VeilrecError("there is no model before step 0: train for at least 1 round")
        return self._arrays
