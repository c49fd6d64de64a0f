"""The compiled kernel alone, with everything laid out for it: a round cannot be faster than this."""

from __future__ import annotations

from collections.abc import Iterable

from veilrec.device.learner import Cohort
from veilrec.simulate.simulation import Simulation


class KernelAlone:
    """Local learning of known cohorts: nothing drawn, gathered, measured, added up or stepped."""

    def __init__(self, simulation: Simulation, rounds: Iterable[int]) -> None:
        self._learner = simulation.learner
        self._model = {name: values.copy() for name, values in simulation.server.weights.items()}
        self._cohorts = {number: _cohorts(simulation, number) for number in rounds}

    def round(self, number: int) -> None:
        """Only what the devices of that round do."""
        for cohort in self._cohorts[number]:
            self._learner.learn(cohort, self._model, number)


def _cohorts(simulation: Simulation, number: int) -> list[Cohort]:
    devices, size = simulation.sampler.draw(number), simulation.chunk
    parts = [devices[start : start + size] for start in range(0, len(devices), size)]
    return [
        Cohort(part, simulation.train.take(part), {k: v[part] for k, v in simulation.private.items()}) for part in parts
    ]
