"""Run what a study asks for, measure what is beside the runs, and put the seeds together, line by line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from veilrec.client.queries import Serving
from veilrec.core.errors import VeilrecError, counted
from veilrec.core.files import write_json
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.report.labels import spelt
from veilrec.report.page import EvaluationPoint, read_run
from veilrec.report.reproduce.calculated import CalculatedTables, calculate
from veilrec.report.reproduce.experiment import ExperimentPanel
from veilrec.report.reproduce.study import Probe, RowVariant, Study, StudyPanel
from veilrec.runs.checkpoint import read_result
from veilrec.runs.comparison import Spread
from veilrec.runs.evaluation import evaluate_run, measure
from veilrec.runs.request import prepare
from veilrec.runs.serving import evaluate_serving
from veilrec.runs.trials import Follow, RunTrial, Say, complete, finished, in_processes

NOT_RUN = "not run"
_QUALITY = ("ndcg@10", "auc")  # by which a line is compared with popularity: the first that there is


@dataclass(frozen=True)
class RunOutcome:
    """The result of a run or measurement with the points of its curve, or the problem why there is none."""

    result: Mapping[str, Any] | None
    points: tuple[EvaluationPoint, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class ResultLine:
    """A variant with what was measured; nothing where `problem` says why."""

    variant: RowVariant
    measured: Mapping[str, Spread] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, Spread]] = field(default_factory=dict)
    guarantee: Guarantee | None = None
    of_training: Guarantee | None = None  # of a served model, whose own guarantee is that of a query
    rounds: int | None = None
    curve: Mapping[str, Sequence[tuple[int, Spread]]] = field(default_factory=dict)
    problem: str = ""

    @property
    def name(self) -> str:
        """The paper's label and how it was run."""
        return f"{self.variant.row.label} ({self.variant.how})"

    @property
    def epsilon(self) -> float:
        """The epsilon that the run itself states; where it states none, the one that was asked for."""
        stated = None if self.guarantee is None else self.guarantee.epsilon
        return (self.variant.row.at or 0.0) if stated is None else stated

    @property
    def seeds(self) -> int:
        """Number of runs that a cell is the mean of."""
        return len(next(iter(self.measured.values())).values) if self.measured else 0


@dataclass(frozen=True)
class PanelResults:
    """The lines of a panel and the baselines beside them."""

    panel: ExperimentPanel
    data: str
    protocol: str
    lines: tuple[ResultLine, ...]
    baselines: Mapping[str, Mapping[str, Spread]]

    def families(self) -> dict[str, list[ResultLine]]:
        """Group the lines of each curve by its name, in order of epsilon."""
        found: dict[str, list[ResultLine]] = {}
        for line in self.lines:
            if line.variant.row.at is not None:
                found.setdefault(line.variant.row.family, []).append(line)
        return {name: sorted(lines, key=lambda line: line.variant.row.at or 0.0) for name, lines in found.items()}

    def references(self) -> list[ResultLine]:
        """List the lines that lie at no epsilon: they have no privacy."""
        return [line for line in self.lines if line.variant.row.at is None]


@dataclass(frozen=True)
class StudySummary:
    """All results of a study."""

    study: Study
    panels: tuple[PanelResults, ...]
    notes: tuple[str, ...]
    calculated: CalculatedTables  # what needed no training


def read(trials: Sequence[RunTrial]) -> dict[Path, RunOutcome]:
    """Read the trials that are finished; mark the others as not run."""
    return {trial.folder: _outcome(trial, "" if finished(trial) else NOT_RUN) for trial in trials}


def execute(
    trials: Sequence[RunTrial], *, jobs: int = 1, say: Say, follow: Follow | None = None
) -> dict[Path, RunOutcome]:
    """Run every trial that is not finished, `jobs` at once, and read them all.

    Raises:
        VeilrecError: None of the trials came to an end.
    """
    problems = complete(trials, jobs=jobs, say=say, follow=follow)
    if trials and len(problems) == len(trials):
        raise VeilrecError(
            f"none of {counted(len(trials), 'run')} came to an end; the first {next(iter(problems.values()))}"
        )
    return {trial.folder: _outcome(trial, problems.get(trial.folder, "")) for trial in trials}


def _outcome(trial: RunTrial, problem: str) -> RunOutcome:
    if problem:
        return RunOutcome(None, problem=problem)
    return RunOutcome(_read_json(trial.folder / "result.json"), read_run(trial.folder).points)


def _read_json(path: Path) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return saved


def recall(probes: Sequence[Probe], runs: Mapping[Path, RunOutcome]) -> dict[Path, RunOutcome]:
    """Read the measurements that were taken already; mark the others as not run."""
    return {probe.place: _known(probe, runs) or RunOutcome(None, problem=NOT_RUN) for probe in probes}


def take(
    probes: Sequence[Probe], runs: Mapping[Path, RunOutcome], *, jobs: int = 1, say: Say
) -> dict[Path, RunOutcome]:
    """Take the measurements that are missing, `jobs` at once; those of failed runs fail with them."""
    found = {probe.place: outcome for probe in probes if (outcome := _known(probe, runs)) is not None}
    todo = [probe for probe in probes if probe.place not in found]
    for probe, problem in _measured(todo, jobs):
        say(f"{probe.title}: {problem or 'measured'}")
        found[probe.place] = RunOutcome(None, problem=problem) if problem else RunOutcome(_read_json(probe.place))
    return found


def _known(probe: Probe, runs: Mapping[Path, RunOutcome]) -> RunOutcome | None:
    """What need not be measured: it was already, of the same model, or there is no model."""
    if probe.needs_run and (problem := runs[probe.trial.folder].problem):
        return RunOutcome(None, problem=problem)
    try:
        saved = _read_json(probe.place)
    except (OSError, ValueError):
        return None
    return RunOutcome(saved) if saved.get("of") == _model_of(probe) else None


def _measured(todo: Sequence[Probe], jobs: int) -> Iterator[tuple[Probe, str]]:
    if jobs > 1 and len(todo) > 1:
        yield from in_processes(_attempt, iter(todo), jobs)
    else:
        yield from ((probe, _attempt(probe)) for probe in todo)


def _attempt(probe: Probe) -> str:
    """Take one measurement; return the problem in words where that fails."""
    try:
        result = _measure(probe)
    except VeilrecError as error:
        return f"failed: {error}"
    probe.place.parent.mkdir(parents=True, exist_ok=True)
    write_json(probe.place, {**result, "of": _model_of(probe)})
    return ""


def _model_of(probe: Probe) -> str | None:
    """Digest of the weights that were measured, for a run may be trained anew."""
    return str(read_result(probe.trial.folder)["weights_sha256"]) if probe.needs_run else None


def _measure(probe: Probe) -> dict[str, Any]:
    """Measure as result.json has it."""
    folder, request = probe.trial.folder, probe.trial.request
    if probe.protocol is not None:
        own = read_result(folder)
        return {**evaluate_run(folder, probe.protocol), **{name: own[name] for name in ("communication", "seconds")}}
    if probe.serving is not None:
        return _served(folder, probe.serving)
    prepared = prepare(request)
    measured = measure(prepared.trainer.model(), prepared.split, request.seed).to_json()
    return {**measured, "rounds": 0, "communication": {}, "guarantee": no_guarantee().to_json()}


def _served(folder: Path, serving: Serving) -> dict[str, Any]:
    """Evaluate as `veilrec evaluate --serving` does, with skew and recall among the metrics."""
    result = evaluate_serving(folder, serving)
    more = {name: result[name] for name in ("skew", "recall@100")}
    return {**result, "metrics": {**result["metrics"], **more}, "communication": {}}


def summarise(study: Study, outcomes: Mapping[Path, RunOutcome]) -> StudySummary:
    """Put the runs together, seed by seed."""
    panels = tuple(_panel(panel, outcomes) for panel in study.panels)
    found = [note for panel in panels for note in _against_popularity(panel)]
    presets = {variant.preset for panel in study.panels for variant in panel.variants}
    notes = (*study.notes, *study.experiment.notes_on(presets), *found)
    return StudySummary(study, panels, notes, calculate(study.experiment))


def amounts(result: Mapping[str, Any]) -> dict[str, float]:
    """Collect what a row can show of a run: metrics, communication and seconds."""
    sent = dict(result["communication"])
    if "seconds" in result:
        sent["seconds"] = result["seconds"]
    if "paper_params" in sent:
        sent["paper_params"] = sent["paper_params"] / 1e6  # the paper's unit
    return {**result["metrics"], **sent}


def _panel(panel: StudyPanel, outcomes: Mapping[Path, RunOutcome]) -> PanelResults:
    lines = tuple(_line(variant, outcomes) for variant in panel.variants)
    baselines = max((line.baselines for line in lines), key=_seeds_behind, default={})
    return PanelResults(panel.panel, panel.data, panel.protocol, lines, baselines)


def _seeds_behind(baselines: Mapping[str, Mapping[str, Spread]]) -> int:
    return max((len(value.values) for values in baselines.values() for value in values.values()), default=0)


def _line(variant: RowVariant, outcomes: Mapping[Path, RunOutcome]) -> ResultLine:
    found = [outcomes[place] for place in variant.places()]
    problem = _problem(variant, found)
    results = [outcome.result for outcome in found if outcome.result is not None]
    if not results:
        return ResultLine(variant, problem=problem)
    first = results[0]
    return ResultLine(
        variant,
        _collect([amounts(result) for result in results]),
        {name: _collect([result["baselines"][name] for result in results]) for name in first["baselines"]},
        Guarantee.from_json(first["guarantee"]),
        Guarantee.from_json(first["model_guarantee"]) if "model_guarantee" in first else None,
        first["rounds"] or None,
        _curve([outcome.points for outcome in found if outcome.result is not None]),
        problem and f"{problem} ({len(results)} of {len(found)} seeds are shown)",
    )


def _problem(variant: RowVariant, found: Sequence[RunOutcome]) -> str:
    """The first problem; that some seeds are not run yet is none, as long as there are others."""
    problems = [variant.problem, *(outcome.problem for outcome in found)]
    return next(filter(lambda said: said not in ("", NOT_RUN), problems), "") or (
        NOT_RUN if found and all(outcome.problem for outcome in found) else ""
    )


def _collect(rows: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    return {name: Spread(tuple(row[name] for row in rows)) for name in rows[0]}


def _curve(runs: Sequence[Sequence[EvaluationPoint]]) -> dict[str, list[tuple[int, Spread]]]:
    """Metric -> (round, values of all seeds), at the rounds in which every seed was evaluated."""
    by_round = [{point.round: point.metrics for point in points} for points in runs]
    common = sorted(set.intersection(*(set(rounds) for rounds in by_round)))
    return {
        name: [(at, Spread(tuple(rounds[at][name] for rounds in by_round))) for at in common]
        for name in (by_round[0][common[0]] if common else ())
    }


def _against_popularity(panel: PanelResults) -> list[str]:
    popularity = panel.baselines.get("popularity", {})
    metric = next((name for name in _QUALITY if name in popularity), None)
    if metric is None:
        return []
    level = popularity[metric].mean
    trained = [line for line in panel.lines if line.measured and not line.variant.row.untrained]
    below = [line for line in trained if line.measured[metric].mean <= level]
    if not below:
        return []
    named = "; ".join(_by_curve(below))
    return [f"{panel.panel.source}: no better than popularity ({spelt(metric)} {level:.4f}): {named}."]


def _by_curve(lines: Sequence[ResultLine]) -> list[str]:
    """Name the lines, those of one curve together: "DPALS, epsilon 0.25, 0.5 (tuned)"."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        row = line.variant.row
        place = row.label.removeprefix(row.family).removeprefix(", ")
        found.setdefault((row.family, line.variant.how), []).append(place)
    names = []
    for (family, how), places in found.items():
        kind = places[0].rpartition(" ")[0]
        where = ", ".join(place.removeprefix(f"{kind} ") for place in places)
        names.append(f"{', '.join(filter(None, (family, f'{kind} {where}'.strip())))} ({how})")
    return names
