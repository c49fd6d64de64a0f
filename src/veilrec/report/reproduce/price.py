"""What privacy costs, as tables: a line a method, a column an epsilon, and in which terms every epsilon is meant."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from veilrec.privacy.guarantee import Guarantee
from veilrec.report.reproduce.experiment import Grid
from veilrec.report.units import spelt

if TYPE_CHECKING:
    from veilrec.report.reproduce.summary import Line, Measured, PanelSummary, Summary

FAILED = "failed"
NOT_RUN = "not run"
_COLUMNS = (
    *("data", "protocol", "label", "method", "preset", "calibration", "settings", "reads_order"),
    *("epsilon", "delta", "unit", "adjacency", "scope", "trust", "basis", "honest_epsilon", "honest_delta"),
    *("metric", "seeds", "mean", "sd", "standard_error_over_seeds", "standard_error_over_users", "lowest", "highest"),
    *("values", "cases", "rounds", "seconds", "up_bytes", "down_bytes", "problem"),
)


def families(panel: PanelSummary) -> dict[str, list[Line]]:
    """The curves of a panel by their names, each by growing epsilon."""
    found: dict[str, list[Line]] = {}
    for line in panel.lines:
        if line.variant.row.at is not None:
            found.setdefault(line.variant.row.family, []).append(line)
    return {name: sorted(lines, key=lambda line: line.variant.row.at or 0.0) for name, lines in found.items()}


def references(panel: PanelSummary) -> list[Line]:
    """The rows that lie at no epsilon: they have no privacy."""
    return [line for line in panel.lines if line.variant.row.at is None]


def epsilon_of(line: Line) -> float:
    """The one that the run itself states; where there is none, the one that was asked for."""
    stated = None if line.guarantee is None else line.guarantee.epsilon
    return (line.variant.row.at or 0.0) if stated is None else stated


def price_grids(panel: PanelSummary, metrics: Sequence[str]) -> list[Grid]:
    """A table a metric."""
    return [_price(panel, metric) for metric in metrics]


def _price(panel: PanelSummary, metric: str) -> Grid:
    places = sorted({line.variant.row.at for line in panel.lines if line.variant.row.at is not None})
    rows = []
    for name, lines in families(panel).items():
        by_place = {line.variant.row.at: line for line in lines}
        cells = [_cell(by_place[place], metric) if place in by_place else "" for place in places]
        rows.append([name, *cells, "", _seeds(lines)])
    rows += [
        [line.variant.row.label, *("" for _ in places), _cell(line, metric), _seeds([line])]
        for line in references(panel)
    ]
    popularity = panel.baselines.get("popularity", {})
    if metric in popularity:
        found = popularity[metric]
        rows.append(["popularity", *("" for _ in places), _number(found), str(len(found.values))])
    title = f"{panel.panel.source} ({panel.data.partition(':')[0]}, {panel.protocol}): {spelt(metric)} by epsilon"
    return Grid(title, ["method", *(f"{place:g}" for place in places), "no privacy", "seeds"], rows)


def _cell(line: Line, metric: str) -> str:
    if metric in line.measured:
        return _number(line.measured[metric])
    return FAILED if line.problem.startswith(FAILED) else line.problem.partition(":")[0]


def _number(found: Measured) -> str:
    return f"{found.mean:.4f}" if found.sd is None else f"{found.mean:.4f} ± {found.sd:.4f}"


def _seeds(lines: Sequence[Line]) -> str:
    counts = sorted({seeds_of(line) for line in lines})
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def seeds_of(line: Line) -> int:
    """How many runs a cell is the mean of."""
    return len(next(iter(line.measured.values())).values) if line.measured else 0


def terms(guarantee: Guarantee) -> str:
    """All that an epsilon means nothing without."""
    return (
        f"per {guarantee.unit}, {guarantee.adjacency}, {guarantee.scope}, trusting: {guarantee.trust},"
        f" {guarantee.basis}, delta {guarantee.delta:g}"
    )


def terms_of(panels: Sequence[PanelSummary]) -> dict[str, list[str]]:
    """Terms -> the curves whose epsilons are meant so, in every panel."""
    found: dict[str, list[str]] = {}
    for panel in panels:
        for name, lines in families(panel).items():
            for line in lines:
                if line.guarantee is not None and name not in (named := found.setdefault(terms(line.guarantee), [])):
                    named.append(name)
    return found


def terms_grid(panels: Sequence[PanelSummary]) -> Grid:
    """In which terms the epsilons of all tables are meant, and what holds."""
    rows: list[list[str]] = []
    for panel in panels:
        for name, lines in families(panel).items():
            for line in lines:
                if line.guarantee is not None and (row := [name, terms(line.guarantee), _holds(line)]) not in rows:
                    rows.append(row)
    return Grid("What is claimed, and what holds", ["method", "epsilon is", "holds"], rows, frozenset(range(3)))


def _holds(line: Line) -> str:
    from veilrec.report.reproduce.summary import holds

    if line.guarantee is None or line.guarantee.basis == "proven":
        return "as claimed"
    return f"at epsilon {epsilon_of(line):g}: {holds(line.guarantee)}"


def error_over_users(line: Line, metric: str) -> float | None:
    """Of a hit rate with one held-out item a user: hits are drawn like coins, whichever seed trained the model."""
    if not metric.startswith("hr@") or metric not in line.measured or "cases" not in line.measured:
        return None
    rate = line.measured[metric].mean
    return math.sqrt(rate * (1.0 - rate) / line.measured["cases"].mean)


def to_csv(summary: Summary) -> str:
    """A line for every metric of every row, with its seeds, errors, seconds and bytes; also for rows that failed."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for panel in summary.panels:
        for line in panel.lines:
            for metric in summary.study.experiment.metrics:
                writer.writerow(_row(panel, line, metric))
    return text.getvalue()


def _row(panel: PanelSummary, line: Line, metric: str) -> dict[str, Any]:
    row, promise = line.variant.row, line.guarantee
    of_promise = ("epsilon", "delta", "unit", "adjacency", "scope", "trust", "basis", "honest_epsilon", "honest_delta")
    return {
        "data": panel.data.partition(":")[0],
        "protocol": panel.protocol,
        "label": row.label,
        "method": row.method,
        "preset": line.variant.preset,
        "calibration": line.variant.calibration,
        "settings": " ".join(row.settings),
        "reads_order": int(row.reads_order),
        **({name: getattr(promise, name) for name in of_promise} if promise is not None else {"epsilon": row.at}),
        "metric": metric,
        "rounds": line.rounds,
        "problem": line.problem,
        **_numbers(line, metric, panel.protocol),
        **{
            name: line.measured[name].mean
            for name in ("cases", "seconds", "up_bytes", "down_bytes")
            if name in line.measured
        },
    }


def _numbers(line: Line, metric: str, protocol: str) -> dict[str, Any]:
    if metric not in line.measured:
        return {"seeds": 0}
    found = line.measured[metric]
    return {
        "seeds": len(found.values),
        "mean": found.mean,
        "sd": found.sd,
        "standard_error_over_seeds": None if found.sd is None else found.sd / math.sqrt(len(found.values)),
        "standard_error_over_users": error_over_users(line, metric) if protocol.startswith("loo-") else None,
        "lowest": min(found.values),
        "highest": max(found.values),
        "values": json.dumps(list(found.values)),
    }
