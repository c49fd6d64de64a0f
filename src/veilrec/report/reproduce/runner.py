"""Run what a plan asks for: finished runs are read, interrupted ones go on, and a failed one stops no other."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

from veilrec.errors import BadInput, VeilrecError
from veilrec.methods.base import configure
from veilrec.methods.registry import get
from veilrec.report.reproduce.variants import Trial
from veilrec.report.runs import Point, read_run
from veilrec.runs.loop import Interrupted, Listener
from veilrec.runs.training import Request, absolute, prepare, read_config, train

Say = Callable[[str], None]
Follow = Callable[[str, int], AbstractContextManager[Listener | None]]
"""From the title of a run and its number of rounds to somebody who shows how it goes."""


@dataclass(frozen=True)
class Outcome:
    """What came of a trial: what result.json says and the points of its curve, or why there is nothing."""

    result: Mapping[str, Any] | None
    points: tuple[Point, ...] = ()
    problem: str = ""


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
