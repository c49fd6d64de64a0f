"""Where the devices of a simulated run learn: in this process, in several, or on a Ray cluster; one outcome."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from veilrec.errors import BadInput
from veilrec.methods.registry import source_of
from veilrec.runs.request import PreparedRun
from veilrec.simulate.crew import Processes
from veilrec.simulate.ray_crew import RayWorkers
from veilrec.simulate.simulation import Simulation

EngineName = Literal["local", "processes", "ray"]


@dataclass(frozen=True)
class Engine:
    """No setting of it changes a bit of the outcome, so that it is no part of a run's configuration."""

    name: EngineName = "local"
    workers: int | None = None  # None: one for every core of this machine
    address: str | None = None  # of a Ray cluster; None: Ray is started here
    shared: Path | None = None  # a folder that every machine sees; None: one of this machine, for a while

    def __post_init__(self) -> None:
        if self.name == "local" and (self.workers or self.address or self.shared):
            raise BadInput("--workers, --address and --shared are for other processes: add --engine processes or ray")
        if self.address is not None and self.name != "ray":
            raise BadInput(f"--address is that of a Ray cluster, and --engine is {self.name}: use --engine ray")
        if self.shared is not None and not self.shared.is_dir():
            raise BadInput(f"--shared {self.shared}: there is no such folder; make one that every machine sees")


@contextmanager
def hired(prepared: PreparedRun, engine: Engine) -> Iterator[None]:
    """While a run lasts, its devices learn where the engine says."""
    if engine.name == "local":
        yield
        return
    simulation = prepared.trainer
    if not isinstance(simulation, Simulation):
        raise BadInput(
            f"{prepared.method.name} has all data in one place: leave --engine out, or choose a federated method"
        )
    if source_of(prepared.request.method) is not None:
        raise BadInput("a method from a file of yours is not known to other processes: leave --engine out")
    workers = engine.workers if engine.workers is not None else os.cpu_count() or 1
    parts = simulation.plan, simulation.data, simulation.seeds
    crew: Processes | RayWorkers
    if engine.name == "processes":
        crew = Processes(workers, *parts, shared=engine.shared)
    else:
        crew = RayWorkers(workers, *parts, address=engine.address, shared=engine.shared)
    with crew:
        simulation.crew = crew
        try:
            yield
        finally:
            simulation.crew = None
