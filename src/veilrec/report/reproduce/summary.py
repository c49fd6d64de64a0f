"""Runs of several seeds as one line beside the paper's: mean, spread, guarantee, curve, and what is to be said."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from veilrec.privacy.guarantee import Guarantee
from veilrec.report.reproduce.experiment import Extra, Panel
from veilrec.report.reproduce.plan import Plan, PlannedPanel
from veilrec.report.reproduce.runner import Outcome
from veilrec.report.reproduce.variants import Variant
from veilrec.report.runs import Point
from veilrec.report.units import spelt

_QUALITY = ("ndcg@10", "auc")  # by which a line is compared with popularity: the first that there is


@dataclass(frozen=True)
class Measured:
    """One number of several runs."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Their mean."""
        return statistics.fmean(self.values)

    @property
    def sd(self) -> float | None:
        """Their standard deviation, from two runs on."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {"mean": self.mean, "sd": self.sd, "values": list(self.values)}


@dataclass(frozen=True)
class Line:
    """A variant with what was measured; nothing where `problem` says why."""

    variant: Variant
    measured: Mapping[str, Measured] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)
    guarantee: Guarantee | None = None
    rounds: int | None = None
    curve: Mapping[str, Sequence[tuple[int, Measured]]] = field(default_factory=dict)
    problem: str = ""

    @property
    def name(self) -> str:
        """The paper's label and how it was run."""
        return f"{self.variant.row.label} ({self.variant.how})"


@dataclass(frozen=True)
class PanelSummary:
    """The lines of a panel and the baselines beside them."""

    panel: Panel
    data: str
    lines: tuple[Line, ...]
    baselines: Mapping[str, Mapping[str, Measured]]


@dataclass(frozen=True)
class Summary:
    """Everything that a reader gets."""

    plan: Plan
    panels: tuple[PanelSummary, ...]
    notes: tuple[str, ...]
    extra: Extra  # what needed no training


def summarise(plan: Plan, outcomes: Mapping[Path, Outcome]) -> Summary:
    """Put the runs together, seed by seed."""
    panels = tuple(_panel(planned, outcomes) for planned in plan.panels)
    found = [note for panel in panels for note in _against_popularity(panel)]
    return Summary(plan, panels, (*plan.notes, *plan.experiment.notes, *found), plan.experiment.extra())


def amounts(result: Mapping[str, Any]) -> dict[str, float]:
    """What a row can show of a run: its metrics, and what was sent."""
    sent = dict(result["communication"])
    if "paper_params" in sent:
        sent["paper_params"] = sent["paper_params"] / 1e6  # the paper's unit
    return {**result["metrics"], **sent}


def _panel(planned: PlannedPanel, outcomes: Mapping[Path, Outcome]) -> PanelSummary:
    lines = tuple(_line(variant, outcomes) for variant in planned.variants)
    baselines = next((line.baselines for line in lines if line.baselines), {})
    return PanelSummary(planned.panel, planned.data, lines, baselines)


def _line(variant: Variant, outcomes: Mapping[Path, Outcome]) -> Line:
    found = [outcomes[trial.folder] for trial in variant.trials]
    problem = variant.problem or next((outcome.problem for outcome in found if outcome.problem), "")
    results = [outcome.result for outcome in found if outcome.result is not None]
    if not results:
        return Line(variant, problem=problem)
    first = results[0]
    return Line(
        variant,
        _collect([amounts(result) for result in results]),
        {name: _collect([result["baselines"][name] for result in results]) for name in first["baselines"]},
        Guarantee.from_json(first["guarantee"]),
        first["rounds"],
        _curve([outcome.points for outcome in found if outcome.result is not None]),
        problem and f"{problem} ({len(results)} of {len(found)} seeds are shown)",
    )


def _collect(rows: Sequence[Mapping[str, float]]) -> dict[str, Measured]:
    return {name: Measured(tuple(row[name] for row in rows)) for name in rows[0]}


def _curve(runs: Sequence[Sequence[Point]]) -> dict[str, list[tuple[int, Measured]]]:
    """Metric -> (round, values of all seeds), at the rounds that every seed has been evaluated at."""
    by_round = [{point.round: point.metrics for point in points} for points in runs]
    common = sorted(set.intersection(*(set(rounds) for rounds in by_round)))
    return {
        name: [(at, Measured(tuple(rounds[at][name] for rounds in by_round))) for at in common]
        for name in (by_round[0][common[0]] if common else ())
    }


def _against_popularity(panel: PanelSummary) -> list[str]:
    popularity = panel.baselines.get("popularity", {})
    metric = next((name for name in _QUALITY if name in popularity), None)
    if metric is None:
        return []
    level = popularity[metric].mean
    below = [line.name for line in panel.lines if line.measured and line.measured[metric].mean <= level]
    if not below:
        return []
    return [f"{panel.panel.source}: no better than popularity ({spelt(metric)} {level:.4f}): {'; '.join(below)}."]
