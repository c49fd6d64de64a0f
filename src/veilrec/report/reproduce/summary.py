"""Runs of several seeds as one line beside the paper's, and what a reader sees of them: tables, a page, JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from veilrec._words import counted
from veilrec.methods.registry import get
from veilrec.privacy.guarantee import Guarantee
from veilrec.report.machine import provenance
from veilrec.report.reproduce.experiment import Calculated, Grid, Panel, Printed
from veilrec.report.reproduce.price import NOT_RUN, price_grids, terms_grid
from veilrec.report.reproduce.probes import in_words
from veilrec.report.reproduce.running import Outcome
from veilrec.report.reproduce.study import Study, StudyPanel, Variant
from veilrec.report.run_summary import EvaluationPoint as Point
from veilrec.report.units import byte_scale, spelt

_QUALITY = ("ndcg@10", "auc")  # by which a line is compared with popularity: the first that there is
_NAMES = {
    "paper_params": "M parameters",
    "down_bytes": "bytes down",
    "up_bytes": "bytes up",
    "selection_bytes": "of them selection",
    "skew": "skew tau",
}
_MOST_METRICS = 5  # in one table, each with the paper's beside it
_DIVERGED = "diverged"  # as a failed run says it
_VERSIONS = ("veilrec", "Python", "Libraries")


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
    of_training: Guarantee | None = None  # of a served model, whose own guarantee is that of a query
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
    protocol: str
    lines: tuple[Line, ...]
    baselines: Mapping[str, Mapping[str, Measured]]


@dataclass(frozen=True)
class Summary:
    """Everything that a reader gets."""

    study: Study
    panels: tuple[PanelSummary, ...]
    notes: tuple[str, ...]
    calculated: Calculated  # what needed no training


def summarise(study: Study, outcomes: Mapping[Path, Outcome]) -> Summary:
    """Put the runs together, seed by seed."""
    panels = tuple(_panel(panel, outcomes) for panel in study.panels)
    found = [note for panel in panels for note in _against_popularity(panel)]
    presets = {variant.preset for panel in study.panels for variant in panel.variants}
    notes = (*study.notes, *study.experiment.notes_on(presets), *found)
    return Summary(study, panels, notes, study.experiment.calculated())


def amounts(result: Mapping[str, Any]) -> dict[str, float]:
    """What a row can show of a run: its metrics, what was sent, and how long it took."""
    sent = dict(result["communication"])
    if "seconds" in result:
        sent["seconds"] = result["seconds"]
    if "paper_params" in sent:
        sent["paper_params"] = sent["paper_params"] / 1e6  # the paper's unit
    return {**result["metrics"], **sent}


def _panel(panel: StudyPanel, outcomes: Mapping[Path, Outcome]) -> PanelSummary:
    lines = tuple(_line(variant, outcomes) for variant in panel.variants)
    baselines = max((line.baselines for line in lines), key=_seeds_behind, default={})
    return PanelSummary(panel.panel, panel.data, panel.protocol, lines, baselines)


def _seeds_behind(baselines: Mapping[str, Mapping[str, Measured]]) -> int:
    return max((len(value.values) for values in baselines.values() for value in values.values()), default=0)


def _line(variant: Variant, outcomes: Mapping[Path, Outcome]) -> Line:
    found = [outcomes[place] for place in variant.places()]
    problem = _problem(variant, found)
    results = [outcome.result for outcome in found if outcome.result is not None]
    if not results:
        return Line(variant, problem=problem)
    first = results[0]
    return Line(
        variant,
        _collect([amounts(result) for result in results]),
        {name: _collect([result["baselines"][name] for result in results]) for name in first["baselines"]},
        Guarantee.from_json(first["guarantee"]),
        Guarantee.from_json(first["model_guarantee"]) if "model_guarantee" in first else None,
        first["rounds"] or None,
        _curve([outcome.points for outcome in found if outcome.result is not None]),
        problem and f"{problem} ({len(results)} of {len(found)} seeds are shown)",
    )


def _problem(variant: Variant, found: Sequence[Outcome]) -> str:
    """The first; that some seeds are not run yet is none, as long as there are others."""
    problems = [variant.problem, *(outcome.problem for outcome in found)]
    return next(filter(lambda said: said not in ("", NOT_RUN), problems), "") or (
        NOT_RUN if found and all(outcome.problem for outcome in found) else ""
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
    trained = [line for line in panel.lines if line.measured and not line.variant.row.untrained]
    below = [line for line in trained if line.measured[metric].mean <= level]
    if not below:
        return []
    named = "; ".join(_by_curve(below))
    return [f"{panel.panel.source}: no better than popularity ({spelt(metric)} {level:.4f}): {named}."]


def _by_curve(lines: Sequence[Line]) -> list[str]:
    """Their names; the points of one curve in a word each: "DPALS, epsilon 0.25, 0.5 (tuned)"."""
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


def name_of(metric: str) -> str:
    """A column's heading."""
    return _NAMES.get(metric) or spelt(metric)


def grids(summary: Summary) -> list[Grid]:
    """Every table of a summary, in order."""
    tables = []
    if summary.study.experiment.picture == "frontier":
        tables = [grid for panel in summary.panels for grid in price_grids(panel, summary.study.experiment.metrics)]
        return [*tables, terms_grid(summary.panels)]
    for panel in summary.panels:
        parts = parts_of(summary.study.experiment.metrics)
        tables += [*(_results(panel, summary, metrics) for metrics in parts), _privacy(panel)]
    return [*(table for table in tables if table.rows), *summary.calculated.grids]


def parts_of(metrics: Sequence[str]) -> list[Sequence[str]]:
    """Metrics in as few parts as can be read side by side."""
    size = -(-len(metrics) // max(1, -(-len(metrics) // _MOST_METRICS)))
    return [metrics[start : start + size] for start in range(0, len(metrics), max(1, size))]


def _results(panel: PanelSummary, summary: Summary, metrics: Sequence[str]) -> Grid:
    printed = {m for m in metrics if any(m in line.variant.row.printed for line in panel.lines)}
    head = ["method", "how"]
    for metric in metrics:
        head += [f"{name_of(metric)}, paper"] if metric in printed else []
        head.append(f"{name_of(metric)}, ours" if metric in printed else name_of(metric))
    rows = [
        [
            line.variant.row.label,
            line.variant.how,
            *_cells(metrics, printed, line.measured, line.variant.row.printed, _DIVERGED if _as_known(line) else ""),
        ]
        for line in panel.lines
        if line.measured or not line.problem or _as_known(line)
    ]
    for name, values in panel.baselines.items():
        if any(metric in values for metric in metrics):
            rows.append([name, "baseline", *_cells(metrics, printed, values, {})])
    data = panel.data.partition(":")[0]
    where = f"{panel.panel.published_on} in the paper, {data} here" if panel.panel.published_on else data
    title = f"{panel.panel.source} ({where})"
    if summary.study.quick:
        title = ", ".join(filter(None, (f"QUICK, not for quoting: {title}", lengths_of(panel))))
    return Grid(title, head, rows, frozenset({0, 1}))


def lengths_of(panel: PanelSummary) -> str:
    """How many rounds and epochs the runs really had."""
    found: dict[str, set[int]] = {}
    for line in panel.lines:
        if line.rounds:
            unit = "round" if get(line.variant.row.method).kind == "federated" else "epoch"
            found.setdefault(unit, set()).add(line.rounds)
    return ", ".join(
        counted(max(lengths), unit) if len(lengths) == 1 else f"{min(lengths)} to {max(lengths)} {unit}s"
        for unit, lengths in sorted(found.items(), reverse=True)
    )


def _cells(
    metrics: Sequence[str],
    printed: set[str],
    ours: Mapping[str, Measured],
    theirs: Mapping[str, Printed],
    otherwise: str = "",
) -> list[str]:
    cells = []
    for metric in metrics:
        cells += [str(theirs.get(metric, ""))] if metric in printed else []
        cells.append(_number(metric, ours[metric]) if metric in ours else otherwise)
    return cells


def _number(metric: str, measured: Measured) -> str:
    if not any(measured.values):
        return "0"
    size, unit = byte_scale(measured.mean) if metric.endswith("_bytes") else (1.0, "")
    digits = 2 if unit or metric == "paper_params" else 4
    spread = "" if measured.sd is None else f" ± {measured.sd / size:.{digits}f}"
    return f"{measured.mean / size:.{digits}f}{spread} {unit}".rstrip()


def _privacy(panel: PanelSummary) -> Grid:
    trained = [line for line in panel.lines if line.of_training is None and line.guarantee is not None]
    served = [line for line in panel.lines if line.of_training is not None]
    rows = [
        *([line.variant.row.label, line.variant.how, *_stated(line.guarantee)] for line in trained),
        *_once((line.variant.row.label, "training", *_stated(line.of_training)) for line in served),
        *_once((line.variant.row.label, "a query", *_stated(line.guarantee)) for line in served),
    ]
    every = [said for line in panel.lines for said in (line.guarantee, line.of_training) if said is not None]
    if all(said.basis == "none" for said in every):
        rows = []  # nobody claims anything
    title = f"{panel.panel.source}: what is claimed, and what holds"
    return Grid(title, ["method", "how", "claimed", "holds"], rows, frozenset(range(4)))


def _stated(guarantee: Guarantee | None) -> tuple[str, str]:
    return ("", "") if guarantee is None else (claimed(guarantee), holds(guarantee))


def _once(rows: Iterable[tuple[str, ...]]) -> list[list[str]]:
    """Rows that state the same as one, under the first label: a model may be asked in many ways."""
    labels: dict[tuple[str, ...], list[str]] = {}
    for label, *stated in rows:
        labels.setdefault(tuple(stated), []).append(label)
    return [[_and_more(names), *stated] for stated, names in labels.items()]


def _and_more(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}; and {counted(len(names) - 1, 'more row')}"


def claimed(guarantee: Guarantee) -> str:
    """What the method states, with everything that its epsilon means nothing without."""
    if guarantee.basis == "none":
        return "nothing"
    return (
        f"({guarantee.epsilon:.4g}, {guarantee.delta:g}) per {guarantee.unit}, {guarantee.adjacency}, "
        f"{guarantee.scope}, trusting: {guarantee.trust}; {guarantee.basis}"
    )


def holds(guarantee: Guarantee) -> str:
    """The honest value, for the same unit, adjacency, scope and trust."""
    if guarantee.basis == "none":
        return "nothing"
    if guarantee.basis == "proven":
        return "as claimed"
    if guarantee.honest_epsilon is None:
        return guarantee.honest_note or "no finite epsilon is known"
    note = f"; {guarantee.honest_note}" if guarantee.honest_note else ""
    return f"({guarantee.honest_epsilon:.4g}, {guarantee.honest_delta:g}) for the same{note}"


def problems(summary: Summary) -> list[str]:
    """A line for every variant that was not (or not wholly) run."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for panel in summary.panels:
        for line in panel.lines:
            if line.problem:
                # many rows that diverge are one line, and many that are not run
                alike = "" if _as_known(line) or line.problem == NOT_RUN else line.name
                found.setdefault((panel.panel.source, line.problem, alike), []).append(line.name)
    return [f"{source}, {_and_more(names)}: {problem}" for (source, problem, _), names in found.items()]


def failed(summary: Summary) -> bool:
    """Whether a row was not run, or not with all its seeds.

    Those that were left out by request do not count, nor those that diverge as they do with the paper's settings, nor
    those that are not run yet.
    """
    every = (line for panel in summary.panels for line in panel.lines)
    return any(line.problem not in ("", NOT_RUN) and not (line.variant.missing or _as_known(line)) for line in every)


def _as_known(line: Line) -> bool:
    """Whether a row diverged that was expected to."""
    return line.variant.row.diverges and _DIVERGED in line.problem


def to_json(summary: Summary, command: str) -> dict[str, Any]:
    """Everything, for machines."""
    study, experiment = summary.study, summary.study.experiment
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "paper": experiment.paper,
        "quick": study.quick,
        "command": command,
        "seeds": list(study.seeds),
        "protocol": study.protocol,
        "metrics": list(experiment.metrics),
        "panels": [_panel_json(panel) for panel in summary.panels],
        "tables": [
            {"title": grid.title, "head": list(grid.head), "rows": [list(row) for row in grid.rows]}
            for grid in summary.calculated.grids
        ],
        "notes": list(summary.notes),
        "problems": problems(summary),
        "versions": _versions(),
    }


def _panel_json(panel: PanelSummary) -> dict[str, Any]:
    return {
        "source": panel.panel.source,
        "published_on": panel.panel.published_on,
        "data": panel.data.partition(":")[0],
        "protocol": panel.protocol,
        "rows": [_line_json(line) for line in panel.lines],
        "baselines": {
            name: {metric: value.to_json() for metric, value in values.items()}
            for name, values in panel.baselines.items()
        },
    }


def _line_json(line: Line) -> dict[str, Any]:
    row, guarantee = line.variant.row, line.guarantee
    return {
        "label": row.label,
        "method": row.method,
        "preset": line.variant.preset,
        "calibration": line.variant.calibration,
        "settings": list(row.settings),
        "untrained": row.untrained,
        "serving": None if row.serving is None else in_words(row.serving),
        "rounds": line.rounds,
        "theirs": {
            name: {"value": p.value, "spread": None if p.spread is None else float(p.spread)}
            for name, p in row.printed.items()
        },
        "ours": {name: measured.to_json() for name, measured in line.measured.items()},
        "guarantee": guarantee.to_json() if guarantee else None,
        "training_guarantee": line.of_training.to_json() if line.of_training else None,
        "claimed": claimed(guarantee) if guarantee else None,
        "holds": holds(guarantee) if guarantee else None,
        "problem": line.problem or None,
        "runs": [trial.folder.name for trial in line.variant.trials],
    }


def to_markdown(summary: Summary, command: str, picture: str) -> str:
    """A part of a page: no date and no folder in it, so that the same results give the same text."""
    experiment, study = summary.study.experiment, summary.study
    parts = [f"### {experiment.name}: {experiment.title}", f"`{command}`"]
    if study.quick:
        parts.append("**A quick version, to see that it runs: not for quoting.**")
    seeds = ", ".join(str(seed) for seed in study.seeds)
    versions = "; ".join(f"{name} {value}" for name, value in _versions().items())
    how = f"Protocol {study.protocol}, seeds {seeds}." if study.panels else "No training."
    parts.append(f"{experiment.paper}. {how} {versions}.")
    parts += [_markdown_table(grid) for grid in grids(summary)]
    parts.append(f"![{experiment.title}]({picture})")
    lines = [*summary.notes, *problems(summary)]
    if lines:
        parts.append("\n".join(f"- {line}" for line in lines))
    return "\n\n".join(parts) + "\n"


def _markdown_table(grid: Grid) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = ["---" if column in grid.words else "---:" for column in range(len(grid.head))]
    return "\n".join([f"{grid.title}:", "", line(grid.head), line(rule), *(line(row) for row in grid.rows)])


def _versions() -> dict[str, str]:
    found = provenance()
    return {name: found[name] for name in _VERSIONS}
