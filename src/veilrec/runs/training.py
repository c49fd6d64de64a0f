"""A prepared run trained to the end, measured and saved: what `veilrec train` does.

A number of rounds that is found on held-out items, and then a training on everything for as many.

Early stopping holds items back, so that the model which it chooses has learnt from less than others. A refit puts all
methods on the same footing: the search is a run of its own, beside the run that was asked for.

Where the clients of a simulated run learn: in this process, in several, or on a Ray cluster; one outcome.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput, counted
from veilrec.core.files import write_json, write_text
from veilrec.core.resources import peak_rss_mb
from veilrec.evaluation.evaluator import EvaluationResult, evaluate_cases
from veilrec.evaluation.split import Cases, marks_of
from veilrec.methods.base import learning_rates
from veilrec.methods.registry import get, source_of
from veilrec.models.scores import Model
from veilrec.runs import checkpoint
from veilrec.runs.checkpoint import (
    CONFIG,
    PRIVATE,
    RESULT,
    Progress,
    check_out,
    private_folder,
    read_config,
    read_result,
)
from veilrec.runs.evaluation import before_and_after, measure, warnings_of, with_popularity
from veilrec.runs.fingerprint import check_fingerprint, keep_fingerprint
from veilrec.runs.loop import Listener, run
from veilrec.runs.model_files import Clients, ModelFiles, save_model, saved_clients
from veilrec.runs.noise import keep_secret
from veilrec.runs.request import PreparedRun, RunRequest, as_meant
from veilrec.simulation.simulation import Simulation
from veilrec.simulation.workers import ProcessPool, RayWorkers


def train(
    prepared: PreparedRun, out: Path, *, resume: bool = False, listeners: Sequence[Listener] = ()
) -> dict[str, Any]:
    """Run to the end in the folder `out` and return what result.json says."""
    check_out(out, resume=resume)
    _open_folder(out, prepared, resume=resume)
    split = prepared.split
    cases, name = (split.test, "test") if split.valid is None else (split.valid, "valid")
    looks = _Looks(cases, split.train)
    progress = run(
        out,
        prepared.trainer,
        prepared.schedule,
        looks,
        split_name=name,
        listeners=tuple(listeners),
        resume=resume,
        rates=learning_rates(prepared.method.config),
    )
    result = _result(prepared, progress, looks.last if split.valid is None else None)
    (out / RESULT).unlink(missing_ok=True)  # of a run that was made longer: it is not finished until all is saved
    _save(out, prepared)
    write_json(out / RESULT, result)
    return result


class _Looks:
    """Evaluates the model of a round; the last evaluation is that of the final model, and is kept."""

    def __init__(self, cases: Cases, known: Csr) -> None:
        self._cases, self._known = cases, known
        self.last: EvaluationResult | None = None  # where a run is resumed at its end, there was none

    def __call__(self, model: Model) -> dict[str, float]:
        self.last = evaluate_cases(self._cases, self._known, model)
        return self.last.means(further=False)


def save_finished(
    prepared: PreparedRun, out: Path, progress: Progress, *, warnings: Sequence[str] = (), **more: Any
) -> dict[str, Any]:
    """Write a run whose rounds were done elsewhere: its trainer holds what came of them; what result.json says.

    `warnings` come before its own, and `more` stands beside the rest; the parameters that crossed the network are not
    known, only the bytes.
    """
    check_out(out, resume=False)
    result = _result(prepared, progress)
    result["warnings"] = [*warnings, *result["warnings"]]
    for name in ("down_params", "up_params", "paper_params"):
        result["communication"].pop(name, None)
    write_text(out / CONFIG, yaml.safe_dump(prepared.description(), sort_keys=False, allow_unicode=True))
    _save(out, prepared)
    write_json(out / RESULT, result | more)
    return result | more


def _open_folder(out: Path, prepared: PreparedRun, *, resume: bool) -> None:
    """Write what a run is before its first round, its secret first; or see that it is the run that was asked for."""
    description, is_new = prepared.description(), not out.exists()
    if resume:
        _refuse_another(out, prepared, description)
    try:
        if not resume:
            private_folder(out)
            if prepared.secret is not None:
                keep_secret(out, prepared.secret)
            keep_fingerprint(out, prepared)
        write_text(out / CONFIG, yaml.safe_dump(description, sort_keys=False, allow_unicode=True))
    except OSError:
        if not resume:  # nothing has begun: leave no folder that can neither be used nor resumed
            shutil.rmtree(out if is_new else out / PRIVATE, ignore_errors=True)
        raise


def _refuse_another(out: Path, prepared: PreparedRun, description: Mapping[str, Any]) -> None:
    saved = {"noise": "seeded", "caveats": []} | read_config(out)
    free = {"veilrec", "checkpoint_every"}
    proven = prepared.method.guarantee(prepared.config).basis == "proven"
    if not (prepared.method.rounds_are_fixed or proven):
        free.add("rounds")  # a run can be made longer, but not one whose noise was chosen for its length
    if prepared.request.patience is None:
        free.add("evaluate_every")  # it decides nothing but how often one looks
    differing = [key for key in description if key not in free and saved.get(key) != description[key]]
    if differing:
        key = differing[0]
        raise BadInput(
            f"cannot resume {out}: its {key} is {saved.get(key)!r}, now asked for {description[key]!r};"
            " use the same settings, or another --out"
        )
    done, asked = checkpoint.rounds_in(out), prepared.schedule.rounds
    if done > asked:
        raise BadInput(
            f"cannot resume {out}: it has {counted(done, 'round')} already, now asked for {asked:,};"
            f" give --rounds {done} or more, or another --out"
        )
    check_fingerprint(out, prepared)


def _save(out: Path, prepared: PreparedRun) -> None:
    """What may be shared, and beside it what stays on clients."""
    parts, population, split, method = prepared.trainer.parts(), prepared.population, prepared.split, prepared.method
    catalogue = population.catalogue
    clients = Clients(
        users=population.users,
        trained_on=split.train,
        used=population.interactions.pairs(),
        states=parts.private,
        learnt_from=None if split.train_impressions is None else marks_of(split.train_impressions),
        liked=split.liked,
    )
    model = ModelFiles(
        method=method.name,
        ranker=parts.ranker,
        weights=parts.weights,
        sent=parts.sent,
        items=population.items,
        titles=None if catalogue is None else catalogue.titles,
        guarantee=prepared.guarantee(),
        categories=catalogue.categories if catalogue is not None and len(catalogue.categories.data) else None,
    )
    with saved_clients(out, clients):  # together, or a full disk could leave those of a shorter run beside the model
        save_model(out, model)


def _result(prepared: PreparedRun, progress: Progress, judged: EvaluationResult | None = None) -> dict[str, Any]:
    """What result.json says; the final model is asked the test cases unless it was `judged` by them already."""
    r, split, method = prepared.request, prepared.split, prepared.method
    measured = measure(prepared.trainer.model(), split, r.seed, judged=judged).to_json()
    counted_ones = ["down_bytes", "up_bytes", "down_params", "up_params", "selection_bytes"]
    if method.item_parameters is not None:  # the communication paper's convention: one way, item vectors only
        counted_ones.append("paper_params")
    trainer = prepared.trainer
    # where clients that only validate chose between the start and what was trained
    selection, compared = (trainer.selection, trainer.compared()) if isinstance(trainer, Simulation) else (None, {})
    metrics, baselines = measured["metrics"], measured["baselines"]
    guarantee = with_popularity(prepared.guarantee(), metrics, baselines["popularity"], method=r.method)
    return {
        "method": method.name,
        "dataset": prepared.population.name,
        "seed": r.seed,
        "rounds": progress.rounds_done,
        "protocol": split.protocol,
        "preset": r.preset,
        **measured,
        "warnings": warnings_of(r.method, guarantee, metrics, baselines),
        "guarantee": guarantee.to_json(),
        "publishable": prepared.obstacle() is None,
        "noise": (prepared.plan and prepared.plan.mechanism.facts()) or None,
        "comparison": None if selection is None else selection.to_json(),  # whether training was kept
        "before_and_after": before_and_after(compared["start"], compared["trained"], split) if compared else None,
        "communication": {name: getattr(progress, name) for name in counted_ones},
        "seconds": round(progress.seconds, 3),
        "clients_per_second": round(progress.clients_per_second, 1),
        "peak_rss_mb": round(peak_rss_mb(), 1),
        "best_round": progress.best_round or progress.rounds_done,
        "stopped_early": progress.stopped_early,
        "weights_sha256": checkpoint.digest(prepared.trainer.state()),
        **_origin(prepared),
    }


def _origin(prepared: PreparedRun) -> dict[str, Any]:
    """What the run had from others: the model that it started from, or its number of rounds."""
    origin: dict[str, Any] = {}
    if prepared.earlier is not None and prepared.carried_over is not None:
        earlier = prepared.earlier.files.guarantee.to_json()
        carried = asdict(prepared.carried_over)
        known = {"guarantee": earlier, "carried_over": carried, **prepared.earlier.history()}
        origin["start_from"] = prepared.earlier.description() | known
    if prepared.request.rounds_from is not None:
        origin["rounds_from"] = str(prepared.request.rounds_from)
    return origin


Train = Callable[[RunRequest, Path, bool], dict[str, Any]]  # of a request, into a folder, whether it goes on there


def search_folder(out: Path) -> Path:
    """Where the search for the rounds of a run lies."""
    return out.with_name(f"{out.name}-search")


def with_found_rounds(request: RunRequest, out: Path, train: Train, *, resume: bool) -> RunRequest:
    """Search as the request says, unless that is done already, and ask for the rounds that were best."""
    if request.patience is None:
        raise BadInput("--refit trains again for the rounds that --early-stop finds: give --early-stop N with it")
    if get(as_meant(request).method).rounds == 1:
        raise BadInput(f"{request.method} learns in one go, so there are no rounds to search: leave out --refit")
    folder = search_folder(out)
    if resume and (folder / RESULT).exists():
        result = read_result(folder)
    else:
        result = train(request, folder, resume and (folder / CONFIG).exists())
    return replace(request, patience=None, rounds=int(result["best_round"]), rounds_from=folder)


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
    """While a run lasts, its clients learn where the engine says."""
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
    crew: ProcessPool | RayWorkers
    if engine.name == "processes":
        crew = ProcessPool(workers, *parts, shared=engine.shared)
    else:
        crew = RayWorkers(workers, *parts, address=engine.address, shared=engine.shared)
    with crew:
        simulation.crew = crew
        try:
            yield
        finally:
            simulation.crew = None
