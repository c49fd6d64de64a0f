"""Many runs of one experiment: finished ones are read, interrupted ones go on, and a failed one stops no other."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeVar

from veilrec._version import __version__
from veilrec.core.errors import BadInput, VeilrecError, counted
from veilrec.methods.base import Config
from veilrec.methods.registry import code_of, get, short_name
from veilrec.runs.checkpoint import CONFIG, RESULT, read_config
from veilrec.runs.loop import Interrupted, Listener
from veilrec.runs.request import RunRequest, absolute, prepare
from veilrec.runs.training import train

Say = Callable[[str], None]
Follow = Callable[[str, int], AbstractContextManager[Listener | None]]
"""From the title of a run and its number of rounds to a listener that shows progress."""
_OF_DATA = ("cut", "rating_scale", "users", "items", "rows")
_WITHOUT_EFFECT = ("nominal_people", "preset", "settings", "evaluate_every", "checkpoint_every", *_OF_DATA)
A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True)
class RunTrial:
    """One run and its folder, whose name says what is in it and changes with every setting."""

    request: RunRequest
    folder: Path
    sizes: Mapping[str, int] = field(default_factory=dict)  # of the data today, where they are known


def folder_name(request: RunRequest, config: Config, rounds: int) -> str:
    """METHOD-DATA-PRESET-DIGEST-seedN: another one as soon as anything that decides the outcome is another."""
    r = request
    decisive = [
        __version__,
        r.method,
        absolute(r.data),
        r.protocol,
        r.preset,
        r.settings,
        rounds,
        r.evaluate_every,
        config.model_dump(mode="json"),
    ]
    if r.caveats:
        decisive.append(r.caveats)
    if (code := code_of(r.method)) is not None:
        decisive.append(code)
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:8]
    return f"{short_name(r.method)}-{r.dataset}-{r.preset}-{digest}-seed{r.seed}"


def complete(trials: Sequence[RunTrial], *, jobs: int = 1, say: Say, follow: Follow | None = None) -> dict[Path, str]:
    """Run every trial that is not finished, `jobs` at once; for each that failed, why."""
    check_jobs(jobs)
    todo = [trial for trial in trials if not finished(trial)]
    if len(todo) < len(trials):
        say(f"{len(trials) - len(todo)} of {len(trials)} runs are finished already and are read again.")
    for trial in todo:
        _clear(trial, say)
    try:
        return _in_processes(todo, jobs, say) if jobs > 1 else _one_by_one(todo, say, follow)
    except Interrupted as stop:
        raise Interrupted(f"{stop}; the same command goes on from there") from None


def check_jobs(jobs: int) -> None:
    """Refuse to work in no process."""
    if jobs < 1:
        raise BadInput(f"--jobs is {jobs}: it must be 1 or more")


def finished(trial: RunTrial) -> bool:
    """Whether the folder holds the result of exactly this run, as it would be trained today."""
    return (trial.folder / RESULT).exists() and not _out_of_date(trial)


def _out_of_date(trial: RunTrial) -> str:
    """Why the run in the folder is not what would be trained today; "" if it is."""
    try:
        saved = read_config(trial.folder)
    except BadInput:
        return "its config.yaml cannot be read"
    today = _described(trial)
    if saved.get("config") != today["config"]:
        today["config"] = _settled(trial.request, today["config"])
    return _first_difference(saved, today)


def _described(trial: RunTrial) -> dict[str, Any]:
    """What config.yaml of a trial would say today of all that it was asked for."""
    asked = trial.request
    config, rounds = asked.configured()
    return {
        "method": short_name(asked.method),
        "data": absolute(asked.data),
        "seed": asked.seed,
        "protocol": asked.protocol,
        "preset": asked.preset,
        "settings": list(asked.settings),
        "rounds": rounds,
        "config": config.model_dump(mode="json"),
        **({"caveats": list(asked.caveats)} if asked.caveats else {}),
        **trial.sizes,
    }


def find_finished(trial: RunTrial, runs: Iterable[tuple[Path, Mapping[str, Any]]]) -> Path | None:
    """The folder of a finished run that had the same outcome, by its config.yaml, however its settings were spelt."""
    asked = trial.request
    wanted = {"veilrec": __version__, "noise": asked.noise, "caveats": list(asked.caveats)} | _described(trial)
    del wanted["preset"], wanted["settings"]  # they may be spelt otherwise: `config` is what they came to
    for folder, saved in runs:
        # Whatever else a run may have been asked for, such as early stopping, it must not have been.
        other = {name: value for name, value in saved.items() if name not in wanted and name not in _WITHOUT_EFFECT}
        if all(saved.get(name) == value for name, value in wanted.items()) and not any(other.values()):
            return folder
    return None


def finished_runs(*roots: Path) -> list[tuple[Path, Mapping[str, Any]]]:
    """The finished runs that lie in these folders, each with its config.yaml."""
    found: list[tuple[Path, Mapping[str, Any]]] = []
    for root in roots:
        for path in sorted(root.glob(f"*/{RESULT}")):
            try:
                found.append((path.parent, read_config(path.parent)))
            except BadInput:
                continue  # a folder of something else
    return found


def _settled(asked: RunRequest, config: Any) -> Any:
    """The configuration as a run would really have it: with few clients it settles for a smaller cohort."""
    try:
        return prepare(asked).config.model_dump(mode="json")
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


def _clear(trial: RunTrial, say: Say) -> None:
    """Make room where the folder holds another run, finished or not; that one is kept beside it."""
    if not (trial.folder / CONFIG).exists() or not (reason := _out_of_date(trial)):
        return
    names = (trial.folder.with_name(f"{trial.folder.name}-before-{number}") for number in count(1))
    kept = trial.folder.rename(next(name for name in names if not name.exists()))
    say(f"{title(trial)}: trained anew, because {reason}; the old run is now {kept.name}.")


def _one_by_one(todo: Sequence[RunTrial], say: Say, follow: Follow | None) -> dict[Path, str]:
    problems = {}
    for number, trial in enumerate(todo, 1):
        problem = _attempt(trial, f"[{number}/{len(todo)}] {title(trial)}", follow)
        if problem:
            problems[trial.folder] = problem
            say(f"[{number}/{len(todo)}] {title(trial)}: {problem}")
    return problems


def _in_processes(todo: Sequence[RunTrial], jobs: int, say: Say) -> dict[Path, str]:
    problems = {}
    for trial, problem in in_processes(_attempt, iter(todo), jobs):
        say(f"{title(trial)}: {problem or 'done'}")
        if problem:
            problems[trial.folder] = problem
    return problems


def in_processes(work: Callable[[A], R], waiting: Iterator[A], jobs: int) -> Iterator[tuple[A, R]]:
    """What the work made of each of those that wait, as soon as it is done; no more are taken than can run at once.

    Nothing new begins after an interruption.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the processes are the parallelism
    context = multiprocessing.get_context("spawn")  # compiled kernels and torch do not survive a fork
    running: dict[Future[R], A] = {}
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        try:
            while True:
                running |= {pool.submit(work, one): one for one in islice(waiting, jobs - len(running))}
                if not running:
                    return
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(done), done.result()
        except (KeyboardInterrupt, Interrupted):
            raise Interrupted("stopped; every run that was going has a checkpoint") from None
        except BrokenProcessPool:
            raise VeilrecError(
                "a process of --jobs ended without a word, perhaps for want of memory: try again with --jobs 1"
            ) from None


def _attempt(trial: RunTrial, words: str = "", follow: Follow | None = None) -> str:
    """Run one; the problem in words where it cannot be done, such as a loss that grows without end."""
    try:
        prepared = prepare(trial.request)
        with nullcontext() if follow is None else follow(words, prepared.schedule.rounds) as listener:
            listeners = () if listener is None else (listener,)
            train(prepared, trial.folder, resume=(trial.folder / CONFIG).exists(), listeners=listeners)
    except Interrupted:
        raise
    except VeilrecError as error:
        return f"failed: {error}"
    return ""


def title(trial: RunTrial) -> str:
    """A run in a few words, with the rounds that it really has."""
    r = trial.request
    settings = "".join(f" {setting}" for setting in r.settings if setting.partition("=")[0].strip() != "rounds")
    unit = "round" if get(r.method).kind == "federated" else "epoch"
    rounds = "" if r.rounds is None else f", {counted(r.rounds, unit)}"
    return f"{short_name(r.method)} on {r.dataset}, {r.preset}{settings}{rounds}, seed {r.seed}"
