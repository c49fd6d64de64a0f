"""From an experiment to finished runs: which panels on which data, every row in its presets, calibrations and seeds.

Finished runs are read, interrupted ones go on, and a failed one stops no other.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from veilrec._version import __version__
from veilrec._words import counted
from veilrec.data.datasets import find_dataset, load, locate, parse, whereabouts
from veilrec.errors import BadInput, VeilrecError, unknown_name
from veilrec.evaluate.protocols import PROTOCOLS
from veilrec.methods.base import Method, configure, preset_names
from veilrec.methods.registry import METHODS, get
from veilrec.report.reproduce.experiment import BOTH_PRESETS, CALIBRATIONS, Experiment, Panel, Quick, Row
from veilrec.report.run_summary import Point, read_run
from veilrec.runs.folder import read_config
from veilrec.runs.loop import Interrupted, Listener
from veilrec.runs.request import Request, absolute, prepare
from veilrec.runs.training import train

Say = Callable[[str], None]
Follow = Callable[[str, int], AbstractContextManager[Listener | None]]
"""From the title of a run and its number of rounds to somebody who shows how it goes."""
_QUICK_POINTS = 5  # of a quick curve


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    seeds: int = 3
    quick: bool = False
    data: str | None = None  # instead of the experiment's
    protocol: str | None = None
    presets: tuple[str, ...] = ()  # only these; empty: all
    calibrations: tuple[str, ...] = ()  # likewise, of methods that have them
    methods: tuple[str, ...] = ()  # likewise


@dataclass(frozen=True)
class Trial:
    """One run and its folder, whose name says what is in it and changes with every setting."""

    request: Request
    folder: Path


@dataclass(frozen=True)
class Variant:
    """A row in one preset and one calibration; no trials where it cannot be run, and then why."""

    row: Row
    preset: str
    calibration: str | None
    trials: tuple[Trial, ...] = ()
    problem: str = ""

    @property
    def how(self) -> str:
        """Preset and calibration in words."""
        return ", ".join(filter(None, (self.preset, self.calibration)))


@dataclass(frozen=True)
class Conditions:
    """What all rows of a panel are run under."""

    data: str
    protocol: str
    seeds: tuple[int, ...]
    presets: tuple[str, ...]  # only these
    calibrations: tuple[str, ...]  # only these, of methods that have them
    quick: Quick | None  # None: at full length
    runs: Path  # folder of all runs


@dataclass(frozen=True)
class StudyPanel:
    """A panel with the data that it really runs on."""

    panel: Panel
    data: str
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class Study:
    """An experiment with everything that is to be run for it."""

    experiment: Experiment
    protocol: str
    seeds: tuple[int, ...]
    quick: bool
    panels: tuple[StudyPanel, ...]
    notes: tuple[str, ...]

    def trials(self) -> list[Trial]:
        """Every run, once."""
        every = (t for panel in self.panels for variant in panel.variants for t in variant.trials)
        return list({trial.folder: trial for trial in every}.values())


@dataclass(frozen=True)
class Outcome:
    """What came of a trial: what result.json says and the points of its curve, or why there is nothing."""

    result: Mapping[str, Any] | None
    points: tuple[Point, ...] = ()
    problem: str = ""


def make_study(experiment: Experiment, options: Options, out: Path) -> Study:
    """Check what was asked and find the data; nothing is run or written."""
    _check(experiment, options)
    notes: list[str] = []
    if options.quick:
        notes.append(
            f"Quick: {counted(experiment.quick.rounds, 'round')} of one seed: to see that it runs, not to quote."
        )
    chosen = _panels(experiment, options, notes)
    protocol = options.protocol or experiment.protocol
    seeds = (0,) if options.quick else tuple(range(options.seeds))
    panels = []
    for panel, data in chosen:
        conditions = Conditions(
            data,
            protocol,
            seeds,
            options.presets or BOTH_PRESETS,
            options.calibrations or CALIBRATIONS,
            experiment.quick if options.quick else None,
            out / "runs",
        )
        rows = [row for row in panel.rows if not options.methods or row.method in options.methods]
        variants = tuple(variant for row in rows for variant in variants_of(row, conditions))
        if not variants:
            raise BadInput(
                f"no row of {experiment.name} is left by --preset, --calibration and --method: leave one of them out"
            )
        panels.append(StudyPanel(panel, data, variants))
    return Study(experiment, protocol, seeds, options.quick, tuple(panels), tuple(notes))


def _check(experiment: Experiment, options: Options) -> None:
    if options.seeds < 1:
        raise BadInput(f"--seeds is {options.seeds}: it must be 1 or more")
    if options.protocol is not None and options.protocol not in PROTOCOLS:
        raise unknown_name("protocol", options.protocol, PROTOCOLS)
    known = (("preset", options.presets, BOTH_PRESETS), ("calibration", options.calibrations, CALIBRATIONS))
    for kind, asked, names in known:
        for name in asked:
            if name not in names:
                raise unknown_name(kind, name, names)
    methods = tuple(dict.fromkeys(row.method for panel in experiment.panels for row in panel.rows))
    for name in options.methods:
        if name not in methods:
            raise unknown_name(f"method of {experiment.name}", name, methods)


def _panels(experiment: Experiment, options: Options, notes: list[str]) -> list[tuple[Panel, str]]:
    if options.data is not None:
        return [_panel_on(experiment, options.data, notes)]
    if options.quick:
        return [(experiment.panels[0], _quick_data(experiment, notes))]
    found = []
    for panel in experiment.panels:
        try:
            locate(parse(panel.data))
        except BadInput as error:
            if panel.required:
                raise BadInput(f"{error}; or try --quick, or other data with --data NAME:PATH") from None
            notes.append(f"{panel.source} is left out: {panel.data} was not found.")
            continue
        found.append((panel, panel.data))
    return found


def _panel_on(experiment: Experiment, data: str, notes: list[str]) -> tuple[Panel, str]:
    """The panel of that data set, or the first one beside other data."""
    asked = parse(data)
    if asked.dataset.kind in ("ratings", "news"):
        locate(asked)
    for panel in experiment.panels:
        if panel.data == asked.dataset.name:
            return panel, data
    first = experiment.panels[0]
    notes += _other_data(first, asked.dataset.name)
    return first, data


def _quick_data(experiment: Experiment, notes: list[str]) -> str:
    quick, first = experiment.quick, experiment.panels[0]
    data = quick.made_up
    if quick.data is not None and whereabouts(find_dataset(quick.data)) is not None:
        data = quick.data
    if data != first.data:
        notes += _other_data(first, data.partition(":")[0])
    return data


def _other_data(panel: Panel, name: str) -> list[str]:
    if not panel.published_on:
        return []
    return [f"The paper's numbers are of {panel.published_on}, ours of {name}: they cannot be compared."]


def variants_of(row: Row, conditions: Conditions) -> list[Variant]:
    """Every way in which a row is run."""
    presets = [preset for preset in row.presets if preset in conditions.presets]
    if conditions.quick is not None and "tuned" in presets:
        presets = ["tuned"]
    if row.method not in METHODS:
        problem = f"not available: this version has no method {row.method}"
        return [Variant(row, preset, None, problem=problem) for preset in presets[-1:]]
    method = get(row.method)
    has_them = "calibration" in method.config.model_fields
    calibrations = [c for c in row.calibrations if c in conditions.calibrations] if has_them else [None]
    return [
        _variant(method, row, preset, calibration, conditions) for preset in presets for calibration in calibrations
    ]


def _variant(method: Method[Any], row: Row, preset: str, calibration: str | None, conditions: Conditions) -> Variant:
    if preset not in preset_names(method):
        problem = f"not available: {method.name} has no preset {preset}"
        return Variant(row, preset, calibration, problem=problem)
    try:
        settings = _settings(method, row, preset, calibration, conditions)
        trials = [_trial(method, preset, settings, seed, conditions) for seed in conditions.seeds]
    except BadInput as error:
        return Variant(row, preset, calibration, problem=f"not available: {error}")
    return Variant(row, preset, calibration, tuple(trials))


def _settings(
    method: Method[Any], row: Row, preset: str, calibration: str | None, conditions: Conditions
) -> tuple[str, ...]:
    settings = row.settings
    if conditions.quick is not None and method.kind == "federated":
        settings = (*conditions.quick.settings, *settings)
    if row.share is not None:
        settings = (*settings, f"cohort.size={max(1, round(row.share * _learners(conditions.data)))}")
    if (preset, calibration) == ("tuned", "as-published"):
        settings = (*settings, *row.tuned_as_published)
    return settings if calibration is None else (*settings, f"calibration={calibration}")


@lru_cache(maxsize=4)
def _learners(data: str) -> int:
    """How many users have anything to learn from."""
    population = load(data)
    shown = population.impressions.get("train")
    return population.n_users if shown is None else len(np.unique(shown.users))


def _trial(method: Method[Any], preset: str, settings: tuple[str, ...], seed: int, conditions: Conditions) -> Trial:
    dataset, quick = conditions.data.partition(":")[0], conditions.quick
    config, rounds = configure(method, preset=preset, dataset=dataset, settings=settings)
    every = None
    if quick is not None:
        rounds = quick.rounds if method.kind == "federated" else quick.epochs
        every = max(1, rounds // _QUICK_POINTS)
    request = Request(
        method.name, conditions.data, seed, conditions.protocol, preset, settings, rounds, evaluate_every=every
    )
    decisive = [
        __version__,
        method.name,
        absolute(conditions.data),
        conditions.protocol,
        preset,
        settings,
        rounds,
        every,
        config.model_dump(mode="json"),
    ]
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:8]
    return Trial(request, conditions.runs / f"{method.name}-{dataset}-{preset}-{digest}-seed{seed}")


def execute(trials: Sequence[Trial], *, jobs: int = 1, say: Say, follow: Follow | None = None) -> dict[Path, Outcome]:
    """Run every trial that is not finished, `jobs` at once, and read them all."""
    if jobs < 1:
        raise BadInput(f"--jobs is {jobs}: it must be 1 or more")
    todo = [trial for trial in trials if not finished(trial)]
    if len(todo) < len(trials):
        say(f"{len(trials) - len(todo)} of {len(trials)} runs are finished already and are read again.")
    for trial in todo:
        _clear(trial, say)
    try:
        problems = _in_processes(todo, jobs, say) if jobs > 1 else _one_by_one(todo, say, follow)
    except Interrupted as stop:
        raise Interrupted(f"{stop}; the same command goes on from there") from None
    return {trial.folder: _outcome(trial, problems.get(trial.folder, "")) for trial in trials}


def finished(trial: Trial) -> bool:
    """Whether the folder holds the result of exactly this run, as it would be trained today."""
    return (trial.folder / "result.json").exists() and not _out_of_date(trial)


def _out_of_date(trial: Trial) -> str:
    """Why the run in the folder is not what would be trained today; "" if it is."""
    asked = trial.request
    try:
        saved = read_config(trial.folder)
    except BadInput:
        return "its config.yaml cannot be read"
    config, rounds = configure(
        get(asked.method), preset=asked.preset, dataset=asked.data.partition(":")[0], settings=asked.settings
    )
    if saved.get("config") != config.model_dump(mode="json"):
        config = _settled(asked, config)
    today = {
        "method": asked.method,
        "data": absolute(asked.data),
        "seed": asked.seed,
        "protocol": asked.protocol,
        "preset": asked.preset,
        "settings": list(asked.settings),
        "rounds": rounds if asked.rounds is None else asked.rounds,
        "config": config.model_dump(mode="json"),
    }
    return _first_difference(saved, today)


def _settled(asked: Request, config: Any) -> Any:
    """The configuration as a run would really have it: where devices are few, it settles for a smaller cohort."""
    try:
        return prepare(asked).config
    except VeilrecError:
        return config


def _first_difference(saved: Mapping[str, Any], today: Mapping[str, Any], path: str = "") -> str:
    """The first setting of today that a saved one differs from, in words."""
    for name, value in today.items():
        before = saved.get(name)
        if before == value:
            continue
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            return _first_difference(before, value, f"{path}{name}.") or f"{path}{name} has changed"
        return f"{path}{name} was {before!r} and is {value!r} today"
    return ""


def _clear(trial: Trial, say: Say) -> None:
    """Make room where the folder holds another run, finished or not; that one is kept beside it."""
    if not (trial.folder / "config.yaml").exists() or not (reason := _out_of_date(trial)):
        return
    names = (trial.folder.with_name(f"{trial.folder.name}-before-{number}") for number in count(1))
    kept = trial.folder.rename(next(name for name in names if not name.exists()))
    say(f"{title(trial)}: trained anew, because {reason}; the old run is now {kept.name}.")


def _one_by_one(todo: Sequence[Trial], say: Say, follow: Follow | None) -> dict[Path, str]:
    problems = {}
    for number, trial in enumerate(todo, 1):
        problem = _attempt(trial, f"[{number}/{len(todo)}] {title(trial)}", follow)
        if problem:
            problems[trial.folder] = problem
            say(f"[{number}/{len(todo)}] {title(trial)}: {problem}")
    return problems


def _in_processes(todo: Sequence[Trial], jobs: int, say: Say) -> dict[Path, str]:
    problems = {}
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the processes are the parallelism
    context = multiprocessing.get_context("spawn")  # compiled kernels and torch do not survive a fork
    waiting = iter(todo)
    running: dict[Future[str], Trial] = {}
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        try:
            while running := running | _submitted(pool, waiting, jobs - len(running)):
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    trial, problem = running.pop(done), done.result()
                    say(f"{title(trial)}: {problem or 'done'}")
                    if problem:
                        problems[trial.folder] = problem
        except (KeyboardInterrupt, Interrupted):
            raise Interrupted("stopped; every run that was going has a checkpoint") from None
        except BrokenProcessPool:
            raise VeilrecError(
                "a process of --jobs ended without a word, perhaps for want of memory: try again with --jobs 1"
            ) from None
    return problems


def _submitted(pool: ProcessPoolExecutor, waiting: Iterator[Trial], count: int) -> dict[Future[str], Trial]:
    """Hand out no more than can run at once, so that nothing new begins after an interruption."""
    return {pool.submit(_attempt, trial, title(trial), None): trial for trial in islice(waiting, count)}


def _attempt(trial: Trial, words: str, follow: Follow | None) -> str:
    """Run one; the problem in words where it cannot be done, such as a loss that grows without end."""
    try:
        prepared = prepare(trial.request)
        going = (follow or _unseen)(words, prepared.schedule.rounds)
        with going as listener:
            train(
                prepared,
                trial.folder,
                resume=(trial.folder / "config.yaml").exists(),
                listeners=(listener,) if listener is not None else (),
            )
    except Interrupted:
        raise
    except VeilrecError as error:
        return f"failed: {error}"
    return ""


def _unseen(title: str, rounds: int) -> AbstractContextManager[Listener | None]:
    return nullcontext()


def _outcome(trial: Trial, problem: str) -> Outcome:
    if problem:
        return Outcome(None, problem=problem)
    result = json.loads((trial.folder / "result.json").read_text(encoding="utf-8"))
    return Outcome(result, read_run(trial.folder).points)


def title(trial: Trial) -> str:
    """A run in a few words."""
    r = trial.request
    settings = "".join(f" {setting}" for setting in r.settings)
    return f"{r.method} on {r.data.partition(':')[0]}, {r.preset}{settings}, seed {r.seed}"
