"""Results as a reader gets them: tables for the terminal, JSON and Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from veilrec.core.errors import counted
from veilrec.methods.registry import get
from veilrec.privacy.guarantee import Guarantee
from veilrec.report.comparison import spread_words
from veilrec.report.labels import byte_scale, provenance, spelt
from veilrec.report.reproduce.experiment import PrintedNumber, ResultTable
from veilrec.report.reproduce.results import NOT_RUN, PanelResults, ResultLine, StudySummary
from veilrec.report.reproduce.study import describe_serving
from veilrec.runs.comparison import Spread

FAILED = "failed"
_NAMES = {
    "paper_params": "M parameters",
    "down_bytes": "bytes down",
    "up_bytes": "bytes up",
    "selection_bytes": "of them selection",
    "skew": "skew tau",
}
_MAX_METRICS = 5  # in one table, each with the paper's beside it
_DIVERGED = "diverged"  # as a failed run says it
_VERSIONS = ("veilrec", "Python", "Libraries")


def name_of(metric: str) -> str:
    """Spell a metric as the heading of a column."""
    return _NAMES.get(metric) or spelt(metric)


def grids(summary: StudySummary) -> list[ResultTable]:
    """Make every table of a summary, in order."""
    tables = []
    if summary.study.experiment.picture == "frontier":
        tables = [_price(panel, metric) for panel in summary.panels for metric in summary.study.experiment.metrics]
        return [*tables, terms_grid(summary.panels)]
    for panel in summary.panels:
        parts = parts_of(summary.study.experiment.metrics)
        tables += [*(_results(panel, summary, metrics) for metrics in parts), _privacy(panel)]
    return [*(table for table in tables if table.rows), *summary.calculated.grids]


def parts_of(metrics: Sequence[str]) -> list[Sequence[str]]:
    """Split metrics into as few parts as can be read side by side."""
    size = -(-len(metrics) // max(1, -(-len(metrics) // _MAX_METRICS)))
    return [metrics[start : start + size] for start in range(0, len(metrics), max(1, size))]


def _results(panel: PanelResults, summary: StudySummary, metrics: Sequence[str]) -> ResultTable:
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
    return ResultTable(title, head, rows, frozenset({0, 1}))


def lengths_of(panel: PanelResults) -> str:
    """Say how many rounds and epochs the runs really had."""
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
    ours: Mapping[str, Spread],
    theirs: Mapping[str, PrintedNumber],
    otherwise: str = "",
) -> list[str]:
    cells = []
    for metric in metrics:
        cells += [str(theirs.get(metric, ""))] if metric in printed else []
        cells.append(_number(metric, ours[metric]) if metric in ours else otherwise)
    return cells


def _number(metric: str, measured: Spread) -> str:
    if not any(measured.values):
        return "0"
    size, unit = byte_scale(measured.mean) if metric.endswith("_bytes") else (1.0, "")
    digits = 2 if unit or metric == "paper_params" else 4
    spread = "" if measured.sd is None else f" ± {measured.sd / size:.{digits}f}"
    return f"{measured.mean / size:.{digits}f}{spread} {unit}".rstrip()


def _privacy(panel: PanelResults) -> ResultTable:
    trained = [line for line in panel.lines if line.of_training is None and line.guarantee is not None]
    served = [line for line in panel.lines if line.of_training is not None]
    rows = [
        *([line.variant.row.label, line.variant.how, *_stated(line.guarantee)] for line in trained),
        *_once((line.variant.row.label, "training", *_stated(line.of_training)) for line in served),
        *_once((line.variant.row.label, "a query", *_stated(line.guarantee)) for line in served),
    ]
    every = [said for line in panel.lines for said in (line.guarantee, line.of_training) if said is not None]
    if all(said.basis == "none" for said in every):
        rows = []  # no guarantee is claimed
    title = f"{panel.panel.source}: what is claimed, and what holds"
    return ResultTable(title, ["method", "how", "claimed", "holds"], rows, frozenset(range(4)))


def _stated(guarantee: Guarantee | None) -> tuple[str, str]:
    return ("", "") if guarantee is None else (claimed(guarantee), holds(guarantee))


def _once(rows: Iterable[tuple[str, ...]]) -> list[list[str]]:
    """Merge rows that state the same under the first label: a model may be served in many modes."""
    labels: dict[tuple[str, ...], list[str]] = {}
    for label, *stated in rows:
        labels.setdefault(tuple(stated), []).append(label)
    return [[_and_more(names), *stated] for stated, names in labels.items()]


def _and_more(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}; and {counted(len(names) - 1, 'more row')}"


def claimed(guarantee: Guarantee) -> str:
    """Spell out the claimed guarantee with unit, adjacency, scope, trust and basis."""
    if guarantee.basis == "none":
        return "nothing"
    return (
        f"({guarantee.epsilon:.4g}, {guarantee.delta:g}) per {guarantee.unit}, {guarantee.adjacency}, "
        f"{guarantee.scope}, trusting: {guarantee.trust}; {guarantee.basis}"
    )


def holds(guarantee: Guarantee) -> str:
    """Spell out the epsilon that holds for the same unit, adjacency, scope and trust."""
    if guarantee.basis == "none":
        return "nothing"
    if guarantee.basis == "proven":
        return "as claimed"
    if guarantee.honest_epsilon is None:
        return guarantee.honest_note or "no finite epsilon is known"
    note = f"; {guarantee.honest_note}" if guarantee.honest_note else ""
    return f"({guarantee.honest_epsilon:.4g}, {guarantee.honest_delta:g}) for the same{note}"


def _price(panel: PanelResults, metric: str) -> ResultTable:
    places = sorted({line.variant.row.at for line in panel.lines if line.variant.row.at is not None})
    rows = []
    for name, lines in panel.families().items():
        by_place = {line.variant.row.at: line for line in lines}
        cells = [_cell(by_place[place], metric) if place in by_place else "" for place in places]
        rows.append([name, *cells, "", _seeds_of(lines)])
    rows += [
        [line.variant.row.label, *("" for _ in places), _cell(line, metric), _seeds_of([line])]
        for line in panel.references()
    ]
    popularity = panel.baselines.get("popularity", {})
    if metric in popularity:
        found = popularity[metric]
        rows.append(["popularity", *("" for _ in places), spread_words(found), str(len(found.values))])
    title = f"{panel.panel.source} ({panel.data.partition(':')[0]}, {panel.protocol}): {spelt(metric)} by epsilon"
    return ResultTable(title, ["method", *(f"{place:g}" for place in places), "no privacy", "seeds"], rows)


def _cell(line: ResultLine, metric: str) -> str:
    if metric in line.measured:
        return spread_words(line.measured[metric])
    return FAILED if line.problem.startswith(FAILED) else line.problem.partition(":")[0]


def _seeds_of(lines: Sequence[ResultLine]) -> str:
    counts = sorted({line.seeds for line in lines})
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def terms(guarantee: Guarantee) -> str:
    """Spell out unit, adjacency, scope, trust, basis and delta of an epsilon."""
    return (
        f"per {guarantee.unit}, {guarantee.adjacency}, {guarantee.scope}, trusting: {guarantee.trust},"
        f" {guarantee.basis}, delta {guarantee.delta:g}"
    )


def terms_of(panels: Sequence[PanelResults]) -> dict[str, list[str]]:
    """Group the names of curves by the terms of their epsilons, over all panels."""
    found: dict[str, dict[str, None]] = {}
    for name, _, promise in _promising(panels):
        found.setdefault(terms(promise), {})[name] = None
    return {meant: list(names) for meant, names in found.items()}


def _promising(panels: Sequence[PanelResults]) -> Iterator[tuple[str, ResultLine, Guarantee]]:
    """Yield the lines of curves that state a guarantee, with the names of their curves."""
    for name, lines in (curve for panel in panels for curve in panel.families().items()):
        yield from ((name, line, line.guarantee) for line in lines if line.guarantee is not None)


def terms_grid(panels: Sequence[PanelResults]) -> ResultTable:
    """Make the table of the terms of every epsilon, and of what holds."""
    rows: dict[tuple[str, str, str], None] = {}
    for name, line, promise in _promising(panels):
        holding = "as claimed" if promise.basis == "proven" else f"at epsilon {line.epsilon:g}: {holds(promise)}"
        rows[name, terms(promise), holding] = None
    return ResultTable(
        "What is claimed, and what holds", ["method", "epsilon is", "holds"], list(rows), frozenset(range(3))
    )


def problems(summary: StudySummary) -> list[str]:
    """Describe every variant that was not, or not wholly, run."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for panel in summary.panels:
        for line in panel.lines:
            if line.problem:
                # many rows that diverge are one line, and many that are not run
                alike = "" if _as_known(line) or line.problem == NOT_RUN else line.name
                found.setdefault((panel.panel.source, line.problem, alike), []).append(line.name)
    return [f"{source}, {_and_more(names)}: {problem}" for (source, problem, _), names in found.items()]


def failed(summary: StudySummary) -> bool:
    """Whether a row failed, or some of its seeds did.

    Rows do not count that were left out by request, that diverge as they do with the paper's settings, or that are not
    run yet.
    """
    every = (line for panel in summary.panels for line in panel.lines)
    return any(line.problem not in ("", NOT_RUN) and not (line.variant.missing or _as_known(line)) for line in every)


def _as_known(line: ResultLine) -> bool:
    """Whether a row diverged that was expected to."""
    return line.variant.row.diverges and _DIVERGED in line.problem


def to_json(summary: StudySummary, command: str) -> dict[str, Any]:
    """Convert a summary to a JSON object."""
    study, experiment = summary.study, summary.study.experiment
    return {
        "experiment": experiment.name,
        **{name: getattr(experiment, name) for name in ("title", "paper", "metrics")},
        **{name: getattr(study, name) for name in ("quick", "seeds", "protocol")},
        "command": command,
        "panels": [_panel_json(panel) for panel in summary.panels],
        "tables": [
            {name: getattr(grid, name) for name in ("title", "head", "rows")} for grid in summary.calculated.grids
        ],
        "notes": list(summary.notes),
        "problems": problems(summary),
        "versions": _versions(),
    }


def _panel_json(panel: PanelResults) -> dict[str, Any]:
    return {
        "source": panel.panel.source,
        "published_on": panel.panel.published_on,
        "data": panel.data.partition(":")[0],
        "protocol": panel.protocol,
        "rows": [_line_json(line) for line in panel.lines],
        "baselines": {
            name: {metric: _spread_json(value) for metric, value in values.items()}
            for name, values in panel.baselines.items()
        },
    }


def _spread_json(spread: Spread) -> dict[str, Any]:
    return {"mean": spread.mean, "sd": spread.sd, "values": list(spread.values)}


def _line_json(line: ResultLine) -> dict[str, Any]:
    row, variant, guarantee = line.variant.row, line.variant, line.guarantee
    return {
        **{name: getattr(row, name) for name in ("label", "method", "settings", "untrained")},
        **{name: getattr(variant, name) for name in ("preset", "calibration")},
        "serving": None if row.serving is None else describe_serving(row.serving),
        "rounds": line.rounds,
        "theirs": {
            name: {"value": p.value, "spread": None if p.spread is None else float(p.spread)}
            for name, p in row.printed.items()
        },
        "ours": {name: _spread_json(measured) for name, measured in line.measured.items()},
        "guarantee": guarantee.to_json() if guarantee else None,
        "training_guarantee": line.of_training.to_json() if line.of_training else None,
        "claimed": claimed(guarantee) if guarantee else None,
        "holds": holds(guarantee) if guarantee else None,
        "problem": line.problem or None,
        "runs": [trial.folder.name for trial in variant.trials],
    }


def error_over_users(line: ResultLine, metric: str) -> float | None:
    """Binomial standard error over users of a hit rate with one held-out item per user; None for other metrics."""
    if not metric.startswith("hr@") or metric not in line.measured or "cases" not in line.measured:
        return None
    rate = line.measured[metric].mean
    return math.sqrt(rate * (1.0 - rate) / line.measured["cases"].mean)


def to_markdown(summary: StudySummary, command: str, picture: str) -> str:
    """Format a summary as Markdown, without dates and folders: the same results give the same text."""
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


def _markdown_table(grid: ResultTable) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = ["---" if column in grid.words else "---:" for column in range(len(grid.head))]
    return "\n".join([f"{grid.title}:", "", line(grid.head), line(rule), *(line(row) for row in grid.rows)])


def _versions() -> dict[str, str]:
    found = provenance()
    return {name: found[name] for name in _VERSIONS}
