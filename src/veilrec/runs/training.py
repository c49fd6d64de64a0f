"""From a method's name and a data set's name to a trained, measured, saved run: what `veilrec train` does."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from veilrec import __version__
from veilrec._files import write_json, write_text
from veilrec._state import State
from veilrec._words import counted
from veilrec.data.population import Population
from veilrec.data.spec import load
from veilrec.errors import BadInput
from veilrec.evaluate.evaluator import evaluate
from veilrec.evaluate.protocols import default_protocol, make_split
from veilrec.evaluate.split import Split
from veilrec.methods.base import LARGEST, Method, NewsData, Problem, configure, is_set, promised, saved_settings
from veilrec.methods.private import noise_facts
from veilrec.methods.registry import get
from veilrec.privacy.guarantee import Guarantee
from veilrec.runs import checkpoint
from veilrec.runs.checkpoint import Progress
from veilrec.runs.loop import Listener, Schedule, run
from veilrec.simulate.cohort import TooFewDevices
from veilrec.simulate.simulation import Simulation
from veilrec.simulate.trainer import Trainer

BASELINES = ("popularity", "random")
MODEL = "model.safetensors"
DEVICES = "devices.safetensors"  # what simulated devices keep to themselves: no part of a release
_OF_DEVICES = "private."
_NEEDED = (
    "data",
    "seed",
    "protocol",
    "preset",
    "settings",
    "rounds",
    "evaluate_every",
    "checkpoint_every",
    "patience",
    "config",
)


@dataclass(frozen=True)
class Request:
    """Everything that decides the outcome of a run; saved as config.yaml."""

    method: str
    data: str
    seed: int = 0
    protocol: str | None = None  # None: the usual one for the kind of data
    preset: str = "tuned"
    settings: tuple[str, ...] = ()  # name=value, over the preset
    rounds: int | None = None
    evaluate_every: int | None = None
    checkpoint_every: int = 20
    patience: int | None = None


@dataclass(frozen=True)
class Prepared:
    """A request with its data read, split, and its trainer built."""

    request: Request
    method: Method[Any]
    population: Population
    split: Split
    trainer: Any
    schedule: Schedule
    config: Any
    problem: Problem
    notes: tuple[str, ...] = ()  # what was settled otherwise than the settings say, for the user to read

    def guarantee(self) -> Guarantee:
        """What the run promises."""
        return promised(self.method, self.config, self.problem)

    def description(self) -> dict[str, Any]:
        """What config.yaml says."""
        r = self.request
        return {
            "veilrec": __version__,
            "method": r.method,
            "data": absolute(r.data),
            "seed": r.seed,
            "protocol": self.split.protocol,
            "preset": r.preset,
            "settings": list(r.settings),
            "rounds": self.schedule.rounds,
            "evaluate_every": self.schedule.evaluate_every,
            "checkpoint_every": r.checkpoint_every,
            "patience": r.patience,
            "config": self.config.model_dump(mode="json"),
            "users": self.population.n_users,
            "items": self.population.n_items,
            "rows": len(self.population.interactions),
        }


def absolute(spec: str) -> str:
    """A data specification that means the same from any folder."""
    name, colon, rest = spec.partition(":")
    if colon and "=" not in rest and Path(rest).expanduser().exists():
        return f"{name}:{Path(rest).expanduser().resolve()}"
    return spec


def prepare(request: Request, *, config: Mapping[str, Any] | None = None) -> Prepared:
    """Check everything and read the data; nothing is written yet. A saved `config` goes before the presets."""
    method = get(request.method)
    dataset = request.data.partition(":")[0]
    if config is None:
        settings, rounds = configure(method, preset=request.preset, dataset=dataset, settings=request.settings)
    else:
        settings, rounds = saved_settings(method, config), method.rounds
    rounds = rounds if request.rounds is None else request.rounds
    asked = {
        "rounds": rounds,
        "evaluate-every": request.evaluate_every,
        "checkpoint-every": request.checkpoint_every,
        "early-stop": request.patience,
    }
    for name, value in asked.items():
        if value is not None and not 1 <= value <= LARGEST:
            raise BadInput(f"--{name} is {value}: it must be from 1 to {LARGEST:,}")
    if request.patience is not None and method.guarantee(settings).basis == "proven":
        raise BadInput(
            "--early-stop would choose the round by exact metrics of people's held-out items, which no noise covers:"
            " leave it out, or choose --rounds beforehand"
        )
    population = load(request.data)
    protocol = request.protocol or default_protocol(population)
    split = make_split(population, protocol, seed=request.seed, validation=request.patience is not None)
    problem = Problem(split.train, split.n_items, request.seed, rounds, news_data(population, split))
    may_shrink = config is None and not is_set(request.settings, "cohort.size")
    settings, trainer, notes = _build(method, settings, problem, may_shrink=may_shrink)
    schedule = Schedule(
        rounds=rounds,
        evaluate_every=request.evaluate_every or max(1, rounds // 20),
        checkpoint_every=request.checkpoint_every,
        patience=request.patience,
        watch="ndcg@10" if split.test.impressions is None else "auc",
    )
    return Prepared(request, method, population, split, trainer, schedule, settings, problem, notes)


def _build(
    method: Method[Any], settings: Any, problem: Problem, *, may_shrink: bool
) -> tuple[Any, Trainer, tuple[str, ...]]:
    """A trainer; where few devices can learn and no privacy depends on the cohort, one with everybody in each round."""
    try:
        return settings, method.build(settings, problem), ()
    except TooFewDevices as few:
        if not may_shrink or method.guarantee(settings).basis != "none":
            raise
        everybody = replace(settings.cohort, size=few.population)
        shrunk = settings.model_copy(update={"cohort": everybody})
        note = (
            f"every round has all {counted(few.population, 'device')} instead of the usual {settings.cohort.size}:"
            " there are no more that can learn"
        )
        return shrunk, method.build(shrunk, problem), (note,)


def news_data(population: Population, split: Split) -> NewsData | None:
    """Titles and train impressions, where there are both."""
    if population.catalogue is None or split.train_impressions is None:
        return None
    return NewsData(population.catalogue, split.train_impressions)


def train(prepared: Prepared, out: Path, *, resume: bool = False, listeners: Sequence[Listener] = ()) -> dict[str, Any]:
    """Run to the end in the folder `out` and return what result.json says."""
    check_out(out, resume=resume)
    _open_folder(out, prepared, resume=resume)
    split = prepared.split
    cases, name = (split.test, "test") if split.valid is None else (split.valid, "valid")
    progress = run(
        out,
        prepared.trainer,
        prepared.schedule,
        lambda model: evaluate(cases, split.train, model),
        split_name=name,
        listeners=tuple(listeners),
        resume=resume,
    )
    _save(out, prepared.trainer.state(), progress)
    result = _result(prepared, progress)
    write_json(out / "result.json", result)
    return result


def _save(out: Path, state: State, progress: Progress) -> None:
    """What everybody may have, and beside it what stays on devices."""
    own = {name: state[name] for name in state if name.startswith(_OF_DEVICES)}
    if own:
        checkpoint.save(out / DEVICES, own, progress)
    checkpoint.save(out / MODEL, {name: state[name] for name in state if name not in own}, progress)


def check_out(out: Path, *, resume: bool) -> None:
    """Refuse a folder that would mix two runs, before any long work."""
    if resume and not (out / "config.yaml").exists():
        raise BadInput(f"nothing to resume in {out}: it has no config.yaml; run without --resume to start there")
    if not resume and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} is not empty: choose another --out, or add --resume to go on with the run in it")


def _open_folder(out: Path, prepared: Prepared, *, resume: bool) -> None:
    description = prepared.description()
    path = out / "config.yaml"
    if resume:
        saved = read_config(out)
        free = {"veilrec", "checkpoint_every"}
        if not prepared.method.rounds_are_fixed:
            free.add("rounds")  # a run can be made longer, but not one whose noise was chosen for its length
        differing = [key for key in description if key not in free and saved.get(key) != description[key]]
        if differing:
            key = differing[0]
            raise BadInput(
                f"cannot resume {out}: its {key} is {saved.get(key)!r}, now asked for {description[key]!r};"
                " use the same settings, or another --out"
            )
    write_text(path, yaml.safe_dump(description, sort_keys=False, allow_unicode=True))


def read_config(folder: Path) -> dict[str, Any]:
    """config.yaml of a run."""
    path = folder / "config.yaml"
    try:
        config = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        config = None
    if not isinstance(config, dict) or "method" not in config:
        raise BadInput(f"{folder} is no run of veilrec: expected a folder with a config.yaml from `veilrec train`")
    return config


def measure_baselines(split: Split, seed: int) -> dict[str, dict[str, float]]:
    """Popularity and random on the same test cases."""
    measured = {}
    for name in BASELINES:
        method = get(name)
        config, _ = configure(method, preset="tuned", dataset="")
        trainer = method.build(config, Problem(split.train, split.n_items, seed))
        trainer.step(0)
        measured[name] = evaluate(split.test, split.train, trainer.model())
    return measured


def _result(prepared: Prepared, progress: Progress) -> dict[str, Any]:
    r, split, method = prepared.request, prepared.split, prepared.method
    metrics = evaluate(split.test, split.train, prepared.trainer.model())
    communication = {
        "down_bytes": progress.down_bytes,
        "up_bytes": progress.up_bytes,
        "down_params": progress.down_params,
        "up_params": progress.up_params,
        "selection_bytes": progress.selection_bytes,
    }
    if method.item_parameters is not None:  # the communication paper's convention: one way, item vectors only
        communication["paper_params"] = progress.paper_params
    baselines = measure_baselines(split, r.seed)
    guarantee = with_popularity(prepared.guarantee(), metrics, baselines["popularity"])
    return {
        "method": r.method,
        "dataset": prepared.population.name,
        "seed": r.seed,
        "rounds": progress.rounds_done,
        "protocol": split.protocol,
        "preset": r.preset,
        "metrics": metrics,
        "baselines": baselines,
        "guarantee": guarantee.to_json(),
        "noise": _noise(prepared, guarantee),
        "communication": communication,
        "seconds": round(progress.seconds, 3),
        "clients_per_second": round(progress.clients_per_second, 1),
        "peak_rss_mb": round(peak_rss_mb(), 1),
        "best_round": progress.best_round or progress.rounds_done,
        "stopped_early": progress.stopped_early,
        "weights_sha256": checkpoint.digest(prepared.trainer.state()),
    }


def _noise(prepared: Prepared, guarantee: Guarantee) -> dict[str, float] | None:
    """The noise on the sums of a simulation, where there is any."""
    trainer, config = prepared.trainer, prepared.config
    if not isinstance(trainer, Simulation) or trainer.server.sigma == 0.0 or guarantee.unit is None:
        return None
    taking_part = replace(prepared.problem, train=trainer.train)
    return noise_facts(trainer.server.sigma, config.privacy, config.cohort, taking_part, guarantee.unit)


def with_popularity(guarantee: Guarantee, metrics: Mapping[str, float], popularity: Mapping[str, float]) -> Guarantee:
    """A private model that ranks no better than the items' counts says so."""
    if guarantee.basis == "none" or metrics.get("ndcg@10", 1.0) > popularity.get("ndcg@10", 0.0):
        return guarantee
    caveat = (
        f"This run ranks no better than popularity (nDCG@10 {metrics['ndcg@10']:.3f} against "
        f"{popularity['ndcg@10']:.3f}), which can be released at a far smaller epsilon: use that."
    )
    return replace(guarantee, caveats=(*guarantee.caveats, caveat))


def peak_rss_mb() -> float:
    """The most memory that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def default_out(request: Request) -> Path:
    """runs/METHOD-DATA-seedN, with a number behind it where that exists."""
    dataset = request.data.partition(":")[0]
    base = Path(os.environ.get("VEILREC_RUNS", "runs")) / f"{request.method}-{dataset}-seed{request.seed}"
    candidate, number = base, 1
    while candidate.exists():
        number += 1
        candidate = base.with_name(f"{base.name}-{number}")
    return candidate


def open_run(folder: Path) -> tuple[Prepared, Progress]:
    """A finished (or interrupted) run with its model loaded, ready to evaluate or recommend."""
    saved = read_config(folder)
    missing = [key for key in _NEEDED if key not in saved]
    if missing:
        raise BadInput(f"{folder / 'config.yaml'} is not whole: it says nothing of {missing[0]}; train again")
    request = Request(
        method=saved["method"],
        data=saved["data"],
        seed=saved["seed"],
        protocol=saved["protocol"],
        preset=saved["preset"],
        settings=tuple(saved["settings"]),
        rounds=saved["rounds"],
        evaluate_every=saved["evaluate_every"],
        checkpoint_every=saved["checkpoint_every"],
        patience=saved["patience"],
    )
    path = folder / MODEL if (folder / MODEL).exists() else checkpoint.newest(folder)
    if path is None:
        raise BadInput(f"{folder} has no model yet: its training was stopped before the first checkpoint")
    prepared = prepare(request, config=saved["config"])
    _refuse_changed_data(folder, saved, prepared)
    beside = [folder / DEVICES] if path.name == MODEL and (folder / DEVICES).exists() else []
    return prepared, checkpoint.restore(prepared.trainer, path, *beside)


def _refuse_changed_data(folder: Path, saved: Mapping[str, Any], prepared: Prepared) -> None:
    """A model belongs to the words, users and items that it was trained with."""
    found = prepared.description()
    for key in ("users", "items", "rows"):
        if saved.get(key, found[key]) != found[key]:
            raise BadInput(
                f"{saved['data']} has {found[key]:,} {key} and had {saved[key]:,} when {folder} was trained:"
                " bring the old files back, or train again"
            )
