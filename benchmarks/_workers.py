"""What more processes bring, and what they cost: large rounds in one process and with two workers, and empty rounds."""

from __future__ import annotations

import os
import pickle
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

import numpy as np

from _measure import Options, Result, RoundTime, fresh_rounds
from veilrec.core.arrays import Floats, Offsets
from veilrec.core.errors import VeilrecError
from veilrec.core.resources import peak_rss_mb
from veilrec.data.synthetic_ratings import generate
from veilrec.methods.base import Problem, configure
from veilrec.methods.priv_fedmf_sub import fedmf
from veilrec.server.aggregation import Aggregator
from veilrec.simulation.pieces import OpenRound, Piece, PieceReport
from veilrec.simulation.simulation import Seeds, Simulation
from veilrec.simulation.workers import PartialSum, ProcessPool, RayWorkers, WorkerPool

WORKERS = 2
_SEED = 1
_USERS, _USERS_QUICK = 20_000, 2_000
_COHORT, _COHORT_QUICK = 2_000, 200
_EMPTY_ROUNDS = 30


def two_against_one(name: str, options: Options) -> Result:
    """One process, and workers of either kind; Ray where it is installed."""
    users = _USERS_QUICK if options.quick else _USERS
    cohort = _COHORT_QUICK if options.quick else _COHORT
    alone = _simulation(users, cohort)
    one, figures = _beside(alone, ProcessPool, options)
    notes: tuple[str, ...] = ()
    if find_spec("ray") is None:
        notes = ("ray is not installed: pip install 'veilrec[ray]'",)
    else:
        _, of_ray = _beside(_simulation(users, cohort), RayWorkers, options)
        figures |= {f"ray_{key}": value for key, value in of_ray.items()}
    figures |= {"workers": WORKERS, "cpu_us_per_client": round(1e6 * one.cpu_seconds / cohort, 2), **_bytes(alone)}
    source = f"synthetic-ratings:users={users},seed={_SEED}"
    return Result(name, source, cohort, one.seconds, peak_rss_mb(), figures=figures, notes=notes)


def _beside(
    alone: Simulation, hire: type[ProcessPool] | type[RayWorkers], options: Options
) -> tuple[RoundTime, dict[str, float]]:
    """Round by round in one process and with workers, which have to end in the same bits."""
    together = Simulation(alone.plan, alone.data, alone.histories, alone.seeds)
    begun = time.perf_counter()
    with hire(WORKERS, together.plan, together.data, together.seeds) as crew:
        started = time.perf_counter() - begun
        together.crew = watched = _Watched(crew)
        rounds = 3 if options.quick else 10 * options.repeats
        for simulation in (alone, together):
            simulation.step(rounds)  # compiles
        taken = fresh_rounds({"alone": alone.step, "together": together.step}, rounds)
        empty = _empty_round(together, crew)
    if not all(np.array_equal(value, together.state()[key]) for key, value in alone.state().items()):
        raise VeilrecError("workers gave another model than one process: nothing was measured")
    one, two = taken["alone"], taken["together"]
    return one, {
        "two_workers_seconds": round(two.seconds, 5),
        "speed_up": round(one.seconds / two.seconds, 3),
        # By processor time, ours and then the busiest worker's: what the speed-up would be were all cores free.
        "speed_up_by_cpu": round(one.cpu_seconds / (two.cpu_seconds + watched.busiest()), 3),
        "own_cpu_ms": round(1e3 * two.cpu_seconds, 3),
        "empty_round_ms": round(1e3 * empty, 3),
        "seconds_to_start": round(started, 2),
        "load": round(os.getloadavg()[0], 2),
    }


class _Watched:
    """A crew of which is noted how long its busiest worker had to work."""

    def __init__(self, crew: WorkerPool) -> None:
        self._crew, self._seconds = crew, list[float]()

    def learn(self, opened: OpenRound, pieces: Sequence[Piece]) -> tuple[list[PieceReport], list[PartialSum]]:
        told, sums = self._crew.learn(opened, pieces)
        self._seconds.append(max(part.cpu_seconds for part in sums))
        return told, sums

    def close(self) -> None:
        self._crew.close()

    def busiest(self) -> float:
        """The median over the rounds, the first one, which compiles, left out."""
        return statistics.median(self._seconds[1:])


def _simulation(users: int, cohort: int) -> Simulation:
    population = generate(users=users, seed=_SEED)
    config, _ = configure(fedmf.FEDMF, preset="tuned", dataset="synthetic-ratings", settings=[f"cohort.size={cohort}"])
    problem = Problem(population.interactions.pairs(), population.n_items, _SEED)
    made = fedmf.FEDMF
    if made.plan is None:
        raise TypeError("fedmf has a plan")
    seeds = Seeds.all_from(_SEED)
    return Simulation(made.plan(config, problem), made.clients(config, problem), problem.train, seeds)


def _empty_round(simulation: Simulation, crew: ProcessPool | RayWorkers) -> float:
    """The model to every worker, a client each, and their sums back."""
    opened = _opened(simulation)
    clients = simulation.sampler.draw(0)[:WORKERS]
    pieces = [
        Piece(place, one, simulation.numbers[one], np.ones(1, np.bool_), _kept(simulation, one))
        for place in range(WORKERS)
        for one in [clients[place : place + 1]]
    ]
    times = []
    for _ in range(_EMPTY_ROUNDS):
        begun = time.perf_counter()
        crew.learn(opened, pieces)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def _opened(simulation: Simulation) -> OpenRound:
    return OpenRound(replace(simulation.server.spec, number=0), simulation.server.weights, None)


def _kept(simulation: Simulation, clients: Offsets) -> dict[str, Floats]:
    return {name: values[clients] for name, values in simulation.private.items()}


def _bytes(simulation: Simulation) -> dict[str, float]:
    """What travels in a round, and what lies in memory."""
    opened = _opened(simulation)
    total = Aggregator(simulation.plan.fixed_point(opened.spec), simulation.plan.aggregation).vector
    users = len(simulation.data.rows)
    numbers: list[pickle.PickleBuffer] = []
    pickle.dumps(simulation.data, protocol=5, buffer_callback=numbers.append)
    return {
        "model_mb_to_a_worker": round(sum(value.nbytes for value in opened.model.values()) / 1e6, 3),
        "sum_mb_of_a_worker": round(total.nbytes / 1e6, 3),
        "data_bytes_per_user": round(sum(part.raw().nbytes for part in numbers) / users, 1),
        "state_bytes_per_user": round(sum(values.nbytes for values in simulation.private.values()) / users, 1),
    }
