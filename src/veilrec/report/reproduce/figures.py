"""The picture of a summary: a row of axes per panel, one for each metric; theirs hollow, ours full."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from veilrec._files import replacing
from veilrec.report.plots import COLOURS
from veilrec.report.reproduce.experiment import Extra
from veilrec.report.reproduce.render import name_of
from veilrec.report.reproduce.summary import Line, PanelSummary, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "veilrec", "text.parse_math": False, "font.size": 9,
    "axes.grid": True, "grid.alpha": 0.18, "axes.spines.top": False, "axes.spines.right": False,
    "legend.frameon": False, "legend.fontsize": 7.5,
}  # fmt: skip
_WIDTH, _HEIGHT, _LINE_HEIGHT = 5.2, 3.6, 0.24
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES = ("-", "--", ":", "-.")


def save(summary: Summary, path: Path) -> None:
    """Write the picture as SVG or PNG, by the ending of the path."""
    with mpl.rc_context(_STYLE), replacing(path) as part:
        kind = path.suffix.removeprefix(".")
        metadata: Any = {"Date": None, "Creator": None} if kind == "svg" else None
        draw(summary).savefig(part, format=kind, facecolor="white", dpi=150, metadata=metadata)


def draw(summary: Summary) -> Figure:
    """All panels under one another, and what needs no training last."""
    experiment = summary.plan.experiment
    extra = experiment.extra()
    shown = [panel for panel in summary.panels if any(line.measured for line in panel.lines)]
    n_rows, n_columns = len(shown) + bool(extra.curves), len(experiment.metrics) if shown else 1
    most_lines = max((len(panel.lines) for panel in shown), default=0)
    height = max(_HEIGHT, _LINE_HEIGHT * most_lines + 1.0)
    figure = Figure(figsize=(_WIDTH * n_columns, height * max(n_rows, 1)), layout="constrained")
    words = (
        f"{experiment.name}{' (quick, not for quoting)' if summary.plan.quick else ''}: {experiment.title}"
    )
    figure.suptitle(words, fontsize=9.5, wrap=True)
    if not n_rows:
        return figure
    axes = figure.subplots(n_rows, n_columns, squeeze=False)
    for row, panel in zip(axes, shown, strict=False):
        for place, metric in zip(row, experiment.metrics, strict=True):
            _PICTURES[experiment.picture](place, panel, metric)
            place.set_title(f"{panel.panel.source}, {panel.data.partition(':')[0]}", loc="left", fontsize=9)
            if experiment.picture != "points":
                place.set_xlabel(experiment.x_label)
                place.set_ylabel(name_of(metric))
    if extra.curves:
        _draw_extra(axes[-1], extra)
    return figure


def _points(axes: Axes, panel: PanelSummary, metric: str) -> None:
    """A line of the table per row, theirs and ours as points on it."""
    lines = [line for line in panel.lines if metric in line.measured]
    for height, line in enumerate(lines):
        ours, theirs = line.measured[metric], line.variant.row.printed.get(metric)
        axes.errorbar(
            ours.mean, height, xerr=ours.sd, marker="o", color=COLOURS[0], capsize=2, linestyle="none",
            label=None if height else "ours",
        )  # fmt: skip
        if theirs is not None:
            axes.plot(
                theirs.value, height, marker="D", color=COLOURS[1], markerfacecolor="none", linestyle="none"
            )
    if any(metric in line.variant.row.printed for line in lines):
        axes.plot(
            [], [], marker="D", color=COLOURS[1], markerfacecolor="none", linestyle="none", label="paper"
        )
    _baselines(axes, panel, metric, vertical=True)
    axes.set_yticks(range(len(lines)), [line.name for line in lines], fontsize=7.5)
    axes.set_ylim(max(len(lines), 1) - 0.5, -0.5)
    axes.set_xlim(left=0.0)
    axes.set_xlabel(name_of(metric))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4)


def _rounds(axes: Axes, panel: PanelSummary, metric: str) -> None:
    """The mean over seeds after each round, with a band of one standard deviation."""
    for number, line in enumerate(line for line in panel.lines if line.curve.get(metric)):
        points = line.curve[metric]
        at, mean = [r for r, _ in points], [m.mean for _, m in points]
        style = _style(number)
        axes.plot(at, mean, label=line.name, markersize=3, **style)
        low = [m.mean - (m.sd or 0.0) for _, m in points]
        high = [m.mean + (m.sd or 0.0) for _, m in points]
        axes.fill_between(at, low, high, color=style["color"], alpha=0.15, linewidth=0)
    _baselines(axes, panel, metric, vertical=False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def _along(axes: Axes, panel: PanelSummary, metric: str) -> None:
    """The final value over `Row.at`: a curve for the rows that are alike but for it."""
    groups: dict[str, list[Line]] = {}
    for line in panel.lines:
        if metric in line.measured and line.variant.row.at is not None:
            label = line.variant.row.label
            family = label.rpartition(", ")[0]  # "delta 0.005, lambda 0.015": a curve for each delta
            groups.setdefault(", ".join(filter(None, (family, line.variant.how))), []).append(line)
    for number, (name, lines) in enumerate(groups.items()):
        at = [line.variant.row.at or 0.0 for line in lines]
        ours = [line.measured[metric] for line in lines]
        axes.errorbar(
            at,
            [m.mean for m in ours],
            yerr=[m.sd or 0.0 for m in ours],
            label=name,
            capsize=2,
            **_style(number),
        )
    for line in panel.lines:
        if metric in line.measured and line.variant.row.at is None:  # a row that stands for itself
            axes.axhline(line.measured[metric].mean, color="#0072b2", label=line.variant.row.label)
    _baselines(axes, panel, metric, vertical=False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


_PICTURES = {"points": _points, "rounds": _rounds, "along": _along}


def _baselines(axes: Axes, panel: PanelSummary, metric: str, *, vertical: bool) -> None:
    for number, (name, values) in enumerate(panel.baselines.items()):
        if metric in values:
            line = axes.axvline if vertical else axes.axhline
            line(
                values[metric].mean,
                color="#3d4451",
                linestyle=_DASHES[1 + number % 3],
                linewidth=1,
                label=name,
            )


def _style(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _DASHES[number // len(COLOURS) % len(_DASHES)],
    }


def _draw_extra(row: Sequence[Axes], extra: Extra) -> None:
    first = row[0]
    for number, curve in enumerate(extra.curves):
        first.plot(curve.x, curve.y, label=curve.label, **_style(number))
    first.set(yscale="log", xlabel=extra.x_label, ylabel=extra.y_label)
    first.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    first.yaxis.set_minor_formatter(NullFormatter())
    first.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    for unused in row[1:]:
        unused.set_axis_off()
