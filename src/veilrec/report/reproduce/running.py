"""The runs of a reproduced table or figure, and what came of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veilrec._words import counted
from veilrec.errors import VeilrecError
from veilrec.report.reproduce.price import NOT_RUN
from veilrec.report.run_summary import EvaluationPoint as Point
from veilrec.report.run_summary import read_run
from veilrec.runs.trials import Follow, Say, Trial, complete, finished


@dataclass(frozen=True)
class Outcome:
    """What came of a trial: what result.json says and the points of its curve, or why there is nothing."""

    result: Mapping[str, Any] | None
    points: tuple[Point, ...] = ()
    problem: str = ""


def read(trials: Sequence[Trial]) -> dict[Path, Outcome]:
    """The trials that are finished; of the others, that they are not."""
    return {trial.folder: _outcome(trial, "" if finished(trial) else NOT_RUN) for trial in trials}


def execute(trials: Sequence[Trial], *, jobs: int = 1, say: Say, follow: Follow | None = None) -> dict[Path, Outcome]:
    """Run every trial that is not finished, `jobs` at once, and read them all."""
    problems = complete(trials, jobs=jobs, say=say, follow=follow)
    if trials and len(problems) == len(trials):
        raise VeilrecError(
            f"none of {counted(len(trials), 'run')} came to an end; the first {next(iter(problems.values()))}"
        )
    return {trial.folder: _outcome(trial, problems.get(trial.folder, "")) for trial in trials}


def _outcome(trial: Trial, problem: str) -> Outcome:
    if problem:
        return Outcome(None, problem=problem)
    result = json.loads((trial.folder / "result.json").read_text(encoding="utf-8"))
    return Outcome(result, read_run(trial.folder).points)
