"""One round of 100 clients on ML-100K: ours, the plain loop, pfl, Flower, and the kernel alone."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _measure import Options, Result, Round, seconds_per_round
from _workload import LocalWork, Ratings, Workload, ml_100k
from veilrec.client.local_training import Cohort
from veilrec.core.errors import VeilrecError
from veilrec.core.resources import peak_rss_mb
from veilrec.core.schema import RoundSpec as UpdateRound
from veilrec.methods.base import Method, Problem, configure
from veilrec.methods.priv_fedmf_sub import fedmf, fedncf
from veilrec.report.labels import installed
from veilrec.simulation.simulation import Seeds, Simulation

_SEED = 1
_COHORT = 100
_OURS = "ours"
_FAST = frozenset({_OURS, "numba_limit"})
_FLOWER_ROUNDS, _FLOWER_ROUNDS_QUICK = 5, 2
_LAYERS = (32, 16, 8)
_FLOWER_SECONDS = 600.0  # at most, for all its rounds


def fedmf_own_items(name: str, options: Options) -> Result:
    """Own items with label 1, all in one step: no randomness but the cohort."""
    ratings = ml_100k()
    return _compare(name, fedmf.FEDMF, LocalWork("mf", ratings.n_items), ratings, options)


def fedmf_with_negatives(name: str, options: Options) -> Result:
    """The communication paper's setting."""
    ratings = ml_100k()
    local = LocalWork("mf", ratings.n_items, negatives=4, batch=256)
    return _compare(name, fedmf.FEDMF, local, ratings, options)


def fedncf_with_negatives(name: str, options: Options) -> Result:
    """NeuMF as `fedncf` has it by default."""
    ratings = ml_100k()
    local = LocalWork("ncf", ratings.n_items, layers=_LAYERS, negatives=4, batch=256, rate=0.0005, reduction="mean")
    return _compare(name, fedncf.FEDNCF, local, ratings, options)


def _compare(name: str, method: Method[Any], local: LocalWork, ratings: Ratings, options: Options) -> Result:
    """Let everybody take part in cyclic order; our memory is read before torch and the peers come in."""
    simulation = simulation_of(method, local, ratings, _COHORT)
    workload = workload_of(simulation, local, _COHORT)
    turns = options.turns
    contenders: dict[str, Round] = {_OURS: simulation.step}
    simulation.step(0)
    memory = peak_rss_mb()
    contenders["numba_limit"] = KernelAlone(simulation, range(turns.repeats * turns.rounds)).round
    notes: list[str] = []
    contenders["plain_loop"] = _plain_loop(workload, simulation)
    if options.peers:
        _add_pfl(contenders, workload, simulation, notes)
    seconds = seconds_per_round(contenders, _FAST, turns)
    ours = seconds.pop(_OURS)
    if options.peers:
        _add_flower(seconds, workload, _FLOWER_ROUNDS_QUICK if options.quick else _FLOWER_ROUNDS, notes)
    return Result(name, ratings.source, _COHORT, ours, memory, seconds, notes=tuple(notes))


def simulation_of(method: Method[Any], local: LocalWork, ratings: Ratings, cohort: int) -> Simulation:
    """Our simulator, set to the work; the server averages, as the peers do."""
    config, _ = configure(method, preset="tuned", dataset="", settings=settings_of(local, cohort))
    problem = Problem(ratings.train, ratings.n_items, _SEED)
    if method.plan is None:
        raise VeilrecError(f"{method.name} is not simulated client by client, so it has no rounds to compare")
    clients = method.clients(config, problem)
    return Simulation(method.plan(config, problem), clients, problem.train, Seeds.all_from(_SEED))


def settings_of(local: LocalWork, cohort: int) -> Sequence[str]:
    """The work as settings of our methods."""
    common = {
        "epochs": local.epochs,
        "negatives": local.negatives,
        "batch": local.batch,
        "reduction": local.reduction,
        "user_rate": local.rate,
        "item_rate": local.rate,
        "decay": 0.0,
    }
    own: dict[str, Any] = {"dim": local.dim}
    if local.model == "ncf":
        layers = ",".join(map(str, local.layers))
        own = {"gmf": local.dim, "mlp": local.dim, "layers": layers, "network_rate": local.rate, "optimiser": "adam"}
    settings = [f"local.{key}={value}" for key, value in (common | own).items()]
    return [*settings, f"cohort.size={cohort}", "aggregation=mean", "server.rate=1.0"]


def workload_of(simulation: Simulation, local: LocalWork, cohort: int) -> Workload:
    """Build the workload of the peers, from the same starting values."""
    public = {name: values.copy() for name, values in simulation.server.weights.items()}
    private = {name: values.copy() for name, values in simulation.private.items()}
    return Workload(local, simulation.data.rows, cohort, public, private)


def _plain_loop(workload: Workload, simulation: Simulation) -> Round:
    import torch

    from _plain_loop import PlainLoop

    torch.set_num_threads(1)
    return PlainLoop(workload, simulation.sampler.draw).round


def _add_pfl(contenders: dict[str, Round], workload: Workload, simulation: Simulation, notes: list[str]) -> None:
    """A peer is somebody else's code: whatever goes wrong in it is a note, not our failure."""
    if installed("pfl") is None:
        notes.append("pfl is not installed: pip install 'veilrec[bench]'")
        return
    try:
        from _pfl_peer import PflPeer

        peer = PflPeer(workload, simulation.sampler.draw)
        peer.round(0)
    except Exception as error:
        notes.append(_failed("pfl", error))
        return
    contenders["pfl"] = peer.round


def _add_flower(seconds: dict[str, float], workload: Workload, rounds: int, notes: list[str]) -> None:
    if installed("flwr") is None or installed("ray") is None:
        notes.append("Flower with Ray is not installed: pip install 'veilrec[bench]'")
        return
    try:
        with tempfile.TemporaryDirectory(prefix="veilrec-bench-") as folder:
            seconds["flower"] = statistics.median(run_flower(workload, rounds, Path(folder)).seconds)
    except Exception as error:
        notes.append(_failed("Flower", error))


def _failed(peer: str, error: Exception) -> str:
    note = f"{peer} did not run: {type(error).__name__}: {error}".splitlines()[0]
    sys.stderr.write(note + "\n")
    return note


class KernelAlone:
    """Local learning of known cohorts: nothing drawn, gathered, measured, added up or stepped.

    A round cannot be faster than this.
    """

    def __init__(self, simulation: Simulation, rounds: Iterable[int]) -> None:
        self._trainer = simulation.plan.trainer
        self._model = {name: values.copy() for name, values in simulation.server.weights.items()}
        self._cohorts = {number: _cohorts(simulation, number) for number in rounds}

    def round(self, number: int) -> None:
        """Only what the clients of that round do."""
        for cohort in self._cohorts[number]:
            self._trainer.learn(cohort, self._model, UpdateRound(number))


def _cohorts(simulation: Simulation, number: int) -> list[Cohort[Any]]:
    clients, size = simulation.sampler.draw(number), simulation.plan.clients_per_batch
    parts = [clients[start : start + size] for start in range(0, len(clients), size)]
    return [
        Cohort(
            part,
            simulation.data.take(part),
            {k: v[part] for k, v in simulation.private.items()},
            simulation.seeds.draws,
        )
        for part in parts
    ]


class FlowerRun(NamedTuple):
    """What a run of Flower gave."""

    seconds: list[float]  # of every round but the first
    answer: Path  # the last model, as npz


def run_flower(workload: Workload, rounds: int, folder: Path) -> FlowerRun:
    """Run 1 + `rounds` rounds of Flower in a fresh process; the first one does not count.

    Flower starts Ray, talks to both standard streams and reads its settings from the environment. Only the time between
    the ends of consecutive aggregations counts: starting Ray, importing torch in its actor and registering the nodes
    lie before the first of them.
    """
    question, answer = folder / "workload.npz", folder / "answer.npz"
    workload.save(question)
    # Ray makes unix sockets below its folder, whose paths must stay short.
    with tempfile.TemporaryDirectory(prefix="vr-") as home:
        settings = {
            "FLWR_HOME": home,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_LOG_LEVEL": "ERROR",
            "RAY_TMPDIR": home,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        code, words, complaints = _flower_process([str(question), str(answer), str(rounds + 1)], os.environ | settings)
    if code != 0 or not answer.exists():
        last = (complaints.strip().splitlines() or ["it said nothing"])[-1]
        raise VeilrecError(f"Flower ended with code {code}: {last}")
    return FlowerRun(json.loads(words.strip().splitlines()[-1]), answer)


def _flower_process(arguments: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
    """Code and both streams of the process; one that takes too long is asked to end itself and Ray."""
    here = str(Path(__file__).parent)  # for the actors of Ray as well
    path = [here, *filter(None, [environment.get("PYTHONPATH")])]
    with subprocess.Popen(
        [sys.executable, "-c", "from _flower_peer import main; main()", *arguments],
        env=environment | {"PYTHONPATH": os.pathsep.join(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            words, complaints = process.communicate(timeout=_FLOWER_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise VeilrecError(f"Flower was stopped after {_FLOWER_SECONDS:g} s") from None
        return process.returncode, words, complaints
