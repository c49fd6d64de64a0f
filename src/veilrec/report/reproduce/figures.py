"""The picture of a summary: a row or two of axes per panel, one for each metric; theirs hollow, ours full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from PIL import Image

from veilrec._files import replacing
from veilrec.report.plots import COLOURS
from veilrec.report.reproduce import frontier_picture
from veilrec.report.reproduce.experiment import Calculated
from veilrec.report.reproduce.study import Variant
from veilrec.report.reproduce.summary import Line, PanelSummary, Summary, lengths_of, name_of, parts_of
from veilrec.report.units import human_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "veilrec",
    "text.parse_math": False,
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.18,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
}
_WIDTH, _HEIGHT, _LINE_HEIGHT = 4.2, 3.2, 0.24
_DOTS, _PALETTE = 100, 256  # dots an inch and colours of a PNG: small enough for a page
_FAR = 10  # times the smallest
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES = ("-", "--", "-.", ":")
_INK = "#3d4451"


def save_all(summary: Summary, folder: Path) -> list[str]:
    """Every picture of an experiment, as SVG and as PNG, and their names."""
    experiment = summary.study.experiment
    drawn = {experiment.name: draw}
    if experiment.picture == "frontier":
        drawn[f"{experiment.name}-more"] = frontier_picture.draw_more
    for name, how in drawn.items():
        for ending in ("svg", "png"):
            save(summary, folder / f"{name}.{ending}", how)
    return list(drawn)


def save(summary: Summary, path: Path, how: Callable[[Summary], Figure] | None = None) -> None:
    """Write the picture as SVG or PNG, by the ending of the path."""
    with mpl.rc_context(_STYLE), replacing(path) as part:
        figure = (how or draw)(summary)
        if path.suffix == ".png":
            _save_png(figure, part)
        else:
            metadata: Any = {"Date": None, "Creator": None}
            figure.savefig(part, format="svg", facecolor="white", metadata=metadata)


def _save_png(figure: Figure, path: Path) -> None:
    """With a palette: a third of the bytes, and nobody sees it."""
    drawn = BytesIO()
    figure.savefig(drawn, format="png", facecolor="white", dpi=_DOTS)
    few = Image.open(drawn).convert("RGB").quantize(_PALETTE, method=Image.Quantize.MAXCOVERAGE)
    few.save(path, format="PNG", optimize=True)


def draw(summary: Summary) -> Figure:
    """All panels under one another, and what needs no training last."""
    experiment, calculated = summary.study.experiment, summary.calculated
    if experiment.picture == "frontier":
        return frontier_picture.draw(summary)
    shown = [panel for panel in summary.panels if any(line.measured for line in panel.lines)]
    rows = [(panel, metrics) for panel in shown for metrics in parts_of(experiment.metrics)]
    n_rows, n_columns = len(rows) + bool(calculated.curves), max((len(metrics) for _, metrics in rows), default=1)
    most_lines = max((len(panel.lines) for panel in shown), default=0)
    height = max(_HEIGHT, _LINE_HEIGHT * most_lines + 1.0)
    figure = Figure(figsize=(_WIDTH * n_columns + 2.0, height * max(n_rows, 1)), layout="constrained")
    figure.suptitle(_title(summary), fontsize=9.5, wrap=True)
    if not n_rows:
        return figure
    parts = figure.subfigures(n_rows, 1, squeeze=False)[:, 0]  # each with columns of its own width
    for part, (panel, metrics) in zip(parts, rows, strict=False):
        row = part.subplots(1, len(metrics), squeeze=False)[0]
        for place, metric in zip(row, metrics, strict=True):
            _PICTURES[experiment.picture](place, panel, metric)
            place.set_title(f"{panel.panel.source}, {panel.data.partition(':')[0]}", loc="left", fontsize=9)
            if experiment.picture != "points":
                place.set_xlabel(panel.panel.x_label or experiment.x_label)
                place.set_ylabel(name_of(metric))
            elif place is not row[0]:
                place.tick_params(labelleft=False)  # the same lines as on the left
        _legend(row[-1], *_distinct(row))
    if calculated.curves:
        _draw_calculated(parts[-1].add_subplot(1, n_columns, 1), calculated)
    return figure


def _title(summary: Summary) -> str:
    study = summary.study
    lengths = "".join(f"{length}, " for length in dict.fromkeys(map(lengths_of, summary.panels)) if length)
    quick = f" (quick, {lengths}not for quoting)" if study.quick else ""
    spread = f"; mean and standard deviation of {len(study.seeds)} seeds" if len(study.seeds) > 1 else ""
    return f"{study.experiment.name}{quick}: {study.experiment.title}{spread}"


def _distinct(row: Sequence[Axes]) -> tuple[list[Any], list[str]]:
    """What all axes of a row show, each once."""
    found = {}
    for axes in row:
        handles, labels = axes.get_legend_handles_labels()
        found.update({label: handle for handle, label in zip(handles, labels, strict=True)})
    return list(found.values()), list(found)


def _legend(axes: Axes, handles: Sequence[Any], labels: Sequence[str]) -> None:
    axes.legend(handles, labels, loc="center left", bbox_to_anchor=(1.02, 0.5), handlelength=3.0)


def _points(axes: Axes, panel: PanelSummary, metric: str) -> None:
    """A line of the table per row, theirs and ours as points on it."""
    lines = [line for line in panel.lines if line.measured]
    ours = [(height, line.measured[metric]) for height, line in enumerate(lines) if metric in line.measured]
    printed = enumerate(line.variant.row.printed.get(metric) for line in lines)
    theirs = [(height, number.value) for height, number in printed if number is not None]
    if ours:
        axes.errorbar(
            [m.mean for _, m in ours],
            [height for height, _ in ours],
            xerr=[m.sd or 0.0 for _, m in ours],
            marker="o",
            color=COLOURS[0],
            capsize=2,
            linestyle="none",
            label="ours",
        )
    if theirs:
        axes.plot(
            [value for _, value in theirs],
            [height for height, _ in theirs],
            marker="D",
            color=COLOURS[1],
            markerfacecolor="none",
            linestyle="none",
            label=f"paper{_other_data(panel)}",
        )
    _baselines(axes, panel, metric, vertical=True)
    axes.set_yticks(range(len(lines)), [line.name for line in lines], fontsize=7.5)
    axes.set_ylim(max(len(lines), 1) - 0.5, -0.5)
    axes.set_xlim(0.0, 1.04 * axes.get_xlim()[1])  # room for the whole of the last marker
    axes.set_xlabel(name_of(metric))
    if metric.endswith("_bytes"):
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: human_bytes(value)))


def _rounds(axes: Axes, panel: PanelSummary, metric: str) -> None:
    """The mean over seeds after each round, with a band of one standard deviation; a colour is a method."""
    labels = list(dict.fromkeys(line.variant.row.label for line in panel.lines))
    for line in panel.lines:
        points = line.curve.get(metric)
        if not points:
            continue
        at, mean = [r for r, _ in points], [m.mean for _, m in points]
        style = _style(labels.index(line.variant.row.label)) | {"linestyle": _dash(line.variant)}
        axes.plot(at, mean, label=line.name, markersize=3, linewidth=1.2, **style)
        low = [m.mean - (m.sd or 0.0) for _, m in points]
        high = [m.mean + (m.sd or 0.0) for _, m in points]
        axes.fill_between(at, low, high, color=style["color"], alpha=0.15, linewidth=0)
    _printed_levels(axes, panel, metric, labels)
    _baselines(axes, panel, metric, vertical=False)
    axes.set_xscale("log")  # private runs end after some ten rounds, the paper's after 400
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _printed_levels(axes: Axes, panel: PanelSummary, metric: str, labels: Sequence[str]) -> None:
    """What the paper prints, at the last round that is drawn: its curves themselves carry no numbers."""
    last = max((at for line in panel.lines for at, _ in line.curve.get(metric, ())), default=1)
    printed = {line.variant.row.label: line.variant.row.printed.get(metric) for line in panel.lines}
    for label, number in printed.items():
        if number is not None:
            axes.plot(
                last,
                number.value,
                marker="D",
                markerfacecolor="none",
                linestyle="none",
                color=COLOURS[labels.index(label) % len(COLOURS)],
                label=f"{label} in the paper{_other_data(panel)}",
            )


def _other_data(panel: PanelSummary) -> str:
    """Behind what the paper prints, where it is of other data than ours."""
    other = panel.panel.is_other_data(panel.data.partition(":")[0])
    return f" (on {panel.panel.published_on}: other data)" if other else ""


def _dash(variant: Variant) -> str:
    """Ours in long strokes, the paper's own settings and noise in short ones."""
    return _DASHES[2 * (variant.preset == "paper") + (variant.calibration == "as-published")]


def _along(axes: Axes, panel: PanelSummary, metric: str) -> None:
    """The final value over `Row.at`: a curve for the rows that are alike but for it.

    A curve has its colour whether or not a metric has all curves: one legend stands for all axes.
    """
    groups: dict[str, list[Line]] = {}
    for line in panel.lines:
        if line.measured and line.variant.row.at is not None:
            label = line.variant.row.label
            family = label.rpartition(", ")[0]  # "delta 0.005, lambda 0.015": a curve for each delta
            groups.setdefault(", ".join(filter(None, (family, line.variant.how))), []).append(line)
    for number, (name, every) in enumerate(groups.items()):
        lines = [line for line in every if metric in line.measured]
        if not lines:
            continue
        at = [line.variant.row.at or 0.0 for line in lines]
        ours = [line.measured[metric] for line in lines]
        axes.errorbar(
            at, [m.mean for m in ours], yerr=[m.sd or 0.0 for m in ours], label=name, capsize=2, **_style(number)
        )
    alone = [line for line in panel.lines if line.measured and line.variant.row.at is None]
    for number, line in enumerate(alone, len(groups)):
        if metric in line.measured:
            style = {name: value for name, value in _style(number).items() if name != "marker"}
            axes.axhline(line.measured[metric].mean, label=line.variant.row.label, **style)
    _baselines(axes, panel, metric, vertical=False)
    _ticks_at(axes, [line.variant.row.at or 0.0 for lines in groups.values() for line in lines])


def _ticks_at(axes: Axes, places: Sequence[float]) -> None:
    """Ticks where something was measured; places that lie far apart are drawn on a logarithmic axis."""
    if not places:
        return
    if max(places) >= _FAR * min(places) > 0.0:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sorted(set(places)), [f"{place:g}" for place in sorted(set(places))])


_PICTURES = {"points": _points, "rounds": _rounds, "along": _along}


def _baselines(axes: Axes, panel: PanelSummary, metric: str, *, vertical: bool) -> None:
    for number, (name, values) in enumerate(panel.baselines.items()):
        if metric in values:
            line = axes.axvline if vertical else axes.axhline
            line(values[metric].mean, color=_INK, linestyle=_DASHES[1 + number % 3], linewidth=1, label=name)


def _style(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _DASHES[number // len(COLOURS) % len(_DASHES)],
    }


def _draw_calculated(axes: Axes, calculated: Calculated) -> None:
    for number, curve in enumerate(calculated.curves):
        axes.plot(curve.x, curve.y, label=curve.label, **_style(number))
    axes.set(yscale="log", xlabel=calculated.x_label, ylabel=calculated.y_label)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    _ticks_at(axes, [place for curve in calculated.curves for place in curve.x])
    _legend(axes, *axes.get_legend_handles_labels())
