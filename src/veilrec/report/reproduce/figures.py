"""Plots of a summary: the paper's numbers hollow and ours full, and accuracy against epsilon (the frontier)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from PIL import Image

from veilrec.core.errors import counted
from veilrec.core.files import replacing
from veilrec.evaluation.protocols import PROTOCOLS
from veilrec.report.labels import human_bytes, spelt
from veilrec.report.plots import COLOURS
from veilrec.report.reproduce.calculated import CalculatedTables
from veilrec.report.reproduce.results import PanelResults, ResultLine, StudySummary
from veilrec.report.reproduce.summary import FAILED, error_over_users, lengths_of, name_of, parts_of, terms_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE = Path(__file__).with_name("figures.mplstyle")
_WIDTH, _HEIGHT, _LINE_HEIGHT = 4.2, 3.2, 0.24
_DOTS, _PALETTE = 100, 256  # dots an inch and colours of a PNG: small enough for a page
_FAR = 10  # times the smallest
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES = ("-", "--", "-.", ":")
_INK = "#3d4451"
_HOLLOW: Any = {"marker": "D", "markerfacecolor": "none", "linestyle": "none"}  # the paper's numbers
_OURS, _GREY = COLOURS[1], "#8a8f98"
_RIVALS = (COLOURS[0], COLOURS[2], COLOURS[3], COLOURS[4], COLOURS[5], "#6b4c9a", "#7f6000", "#444444")
_FRONTIER_MARKERS = ("s", "^", "D", "v", "P", "X", "o", "*")
_FRONTIER_WIDTH, _FRONTIER_HEIGHT, _LINE = (4.2, 4.1, 0.15)  # inches of axes with names, of a line below
_LEFT, _RIGHT, _NARROWEST = 0.6, 1.65, 6.5  # inches for numbers, for names, and of a picture
_NAME = 9.5  # points between two names
_FEWEST = 3  # points of a curve that the first picture shows


def save_all(summary: StudySummary, folder: Path) -> list[str]:
    """Save every picture of an experiment as SVG and as PNG; return their names."""
    experiment = summary.study.experiment
    drawn = {experiment.name: draw}
    if experiment.picture == "frontier":
        drawn[f"{experiment.name}-more"] = draw_frontier_more
    for name, how in drawn.items():
        for ending in ("svg", "png"):
            save(summary, folder / f"{name}.{ending}", how)
    return list(drawn)


def save(summary: StudySummary, path: Path, how: Callable[[StudySummary], Figure] | None = None) -> None:
    """Write the picture as SVG or PNG, by the ending of the path."""
    with mpl.rc_context(fname=_STYLE), replacing(path) as part:
        figure = (how or draw)(summary)
        if path.suffix == ".png":
            _save_png(figure, part)
        else:
            metadata: Any = {"Date": None, "Creator": None}
            figure.savefig(part, format="svg", facecolor="white", metadata=metadata)


def _save_png(figure: Figure, path: Path) -> None:
    """Save with a palette: a third of the bytes, without a visible difference."""
    drawn = BytesIO()
    figure.savefig(drawn, format="png", facecolor="white", dpi=_DOTS)
    few = Image.open(drawn).convert("RGB").quantize(_PALETTE, method=Image.Quantize.MAXCOVERAGE)
    few.save(path, format="PNG", optimize=True)


def draw(summary: StudySummary) -> Figure:
    """Draw all panels under one another, and what needs no training last."""
    experiment, calculated = summary.study.experiment, summary.calculated
    if experiment.picture == "frontier":
        return draw_frontier(summary)
    shown = [panel for panel in summary.panels if any(line.measured for line in panel.lines)]
    rows = [(panel, metrics) for panel in shown for metrics in parts_of(experiment.metrics)]
    n_rows, n_columns = len(rows) + bool(calculated.curves), max((len(metrics) for _, metrics in rows), default=1)
    max_lines = max((len(panel.lines) for panel in shown), default=0)
    height = max(_HEIGHT, _LINE_HEIGHT * max_lines + 1.0)
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


def _title(summary: StudySummary) -> str:
    study = summary.study
    lengths = "".join(f"{length}, " for length in dict.fromkeys(map(lengths_of, summary.panels)) if length)
    quick = f" (quick, {lengths}not for quoting)" if study.quick else ""
    spread = f"; mean and standard deviation of {len(study.seeds)} seeds" if len(study.seeds) > 1 else ""
    return f"{study.experiment.name}{quick}: {study.experiment.title}{spread}"


def _distinct(row: Sequence[Axes]) -> tuple[list[Any], list[str]]:
    """Collect the legend entries of all axes of a row, each once."""
    found = {}
    for axes in row:
        handles, labels = axes.get_legend_handles_labels()
        found.update({label: handle for handle, label in zip(handles, labels, strict=True)})
    return list(found.values()), list(found)


def _legend(axes: Axes, handles: Sequence[Any], labels: Sequence[str]) -> None:
    axes.legend(handles, labels, loc="center left", bbox_to_anchor=(1.02, 0.5), handlelength=3.0)


def _points(axes: Axes, panel: PanelResults, metric: str) -> None:
    """Plot the paper's value and ours as points, a row each."""
    lines = [line for line in panel.lines if line.measured]
    ours = {height: line.measured[metric] for height, line in enumerate(lines) if metric in line.measured}
    rows = enumerate(line.variant.row for line in lines)
    theirs = {height: row.printed[metric].value for height, row in rows if metric in row.printed}
    if ours:
        means, spreads = [m.mean for m in ours.values()], [m.sd or 0.0 for m in ours.values()]
        full: Any = {"marker": "o", "color": COLOURS[0], "capsize": 2, "linestyle": "none"}
        axes.errorbar(means, list(ours), xerr=spreads, label="ours", **full)
    if theirs:
        label = f"paper{_other_data(panel)}"
        axes.plot(list(theirs.values()), list(theirs), color=COLOURS[1], label=label, **_HOLLOW)
    _baselines(axes, panel, metric, vertical=True)
    axes.set_yticks(range(len(lines)), [line.name for line in lines], fontsize=7.5)
    axes.set_ylim(max(len(lines), 1) - 0.5, -0.5)
    axes.set_xlim(0.0, 1.04 * axes.get_xlim()[1])  # room for the whole of the last marker
    axes.set_xlabel(name_of(metric))
    if metric.endswith("_bytes"):
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: human_bytes(value)))


def _rounds(axes: Axes, panel: PanelResults, metric: str) -> None:
    """Plot the mean over seeds after each round with a band of one standard deviation; a colour is a method."""
    labels = list(dict.fromkeys(line.variant.row.label for line in panel.lines))
    for line in panel.lines:
        points = line.curve.get(metric)
        if not points:
            continue
        at, mean = [r for r, _ in points], [m.mean for _, m in points]
        variant = line.variant  # our settings have long dashes, the paper's own settings and noise short ones
        dash = _DASHES[2 * (variant.preset == "paper") + (variant.calibration == "as-published")]
        style = _style(labels.index(variant.row.label)) | {"linestyle": dash}
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


def _printed_levels(axes: Axes, panel: PanelResults, metric: str, labels: Sequence[str]) -> None:
    """Mark the paper's numbers at the last round that is drawn: its curves themselves carry none."""
    last = max((at for line in panel.lines for at, _ in line.curve.get(metric, ())), default=1)
    printed = {line.variant.row.label: line.variant.row.printed.get(metric) for line in panel.lines}
    for label, number in printed.items():
        if number is not None:
            colour = COLOURS[labels.index(label) % len(COLOURS)]
            name = f"{label} in the paper{_other_data(panel)}"
            axes.plot(last, number.value, color=colour, label=name, **_HOLLOW)


def _other_data(panel: PanelResults) -> str:
    """Name the paper's data where it is another than ours."""
    other = panel.panel.is_other_data(panel.data.partition(":")[0])
    return f" (on {panel.panel.published_on}: other data)" if other else ""


def _along(axes: Axes, panel: PanelResults, metric: str) -> None:
    """Plot the final value over `ExperimentRow.at`: a curve for rows that differ in nothing else.

    A curve has its colour whether or not a metric has all curves: one legend stands for all axes.
    """
    groups: dict[str, list[ResultLine]] = {}
    for line in panel.lines:
        if line.measured and line.variant.row.at is not None:
            # "delta 0.005, lambda 0.015": a curve for each delta
            groups.setdefault(", ".join(filter(None, (line.variant.row.family, line.variant.how))), []).append(line)
    for number, (name, every) in enumerate(groups.items()):
        lines = [line for line in every if metric in line.measured]
        if not lines:
            continue
        at = [line.variant.row.at or 0.0 for line in lines]
        ours = [line.measured[metric] for line in lines]
        means, spreads = [m.mean for m in ours], [m.sd or 0.0 for m in ours]
        axes.errorbar(at, means, yerr=spreads, label=name, capsize=2, **_style(number))
    alone = [line for line in panel.lines if line.measured and line.variant.row.at is None]
    for number, line in enumerate(alone, len(groups)):
        if metric in line.measured:
            style = {name: value for name, value in _style(number).items() if name != "marker"}
            axes.axhline(line.measured[metric].mean, label=line.variant.row.label, **style)
    _baselines(axes, panel, metric, vertical=False)
    _ticks_at(axes, [line.variant.row.at or 0.0 for lines in groups.values() for line in lines])


def _ticks_at(axes: Axes, places: Sequence[float]) -> None:
    """Set ticks where something was measured; places that lie far apart get a logarithmic axis."""
    if not places:
        return
    if max(places) >= _FAR * min(places) > 0.0:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sorted(set(places)), [f"{place:g}" for place in sorted(set(places))])


_PICTURES = {"points": _points, "rounds": _rounds, "along": _along}


def _baselines(axes: Axes, panel: PanelResults, metric: str, *, vertical: bool) -> None:
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


def _draw_calculated(axes: Axes, calculated: CalculatedTables) -> None:
    for number, curve in enumerate(calculated.curves):
        axes.plot(curve.x, curve.y, label=curve.label, **_style(number))
    axes.set(yscale="log", xlabel=calculated.x_label, ylabel=calculated.y_label)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    _ticks_at(axes, [place for curve in calculated.curves for place in curve.x])
    _legend(axes, *axes.get_legend_handles_labels())


@dataclass(frozen=True)
class _LineName:
    """A name at the right end of a line."""

    text: str
    height: float  # where the line ends
    style: dict[str, Any]


def draw_frontier(summary: StudySummary) -> Figure:
    """Draw the first metric by the first protocol, axes for each data set; curves of one or two points are left out."""
    first = summary.panels[0].protocol if summary.panels else ""
    metric = summary.study.experiment.metrics[0]
    return _frontier_figure(summary, _frontier_rows(summary, [(first, metric)]), _FEWEST)


def draw_frontier_more(summary: StudySummary) -> Figure:
    """Draw the other protocols and metrics, a row each, with a column for each data set and every curve."""
    metrics = summary.study.experiment.metrics
    protocols = dict.fromkeys(panel.protocol for panel in summary.panels)
    every = [(protocol, metric) for protocol in protocols for metric in metrics]
    return _frontier_figure(summary, _frontier_rows(summary, every[1:] or every), 1)


def _frontier_rows(summary: StudySummary, asked: Sequence[tuple[str, str]]) -> list[list[tuple[PanelResults, str]]]:
    """Arrange the panels that have results by protocol and metric."""
    panels = [panel for panel in summary.panels if any(line.measured for line in panel.lines)]
    rows = [[(panel, metric) for panel in panels if panel.protocol == protocol] for protocol, metric in asked]
    return [row for row in rows if row]


def _frontier_figure(summary: StudySummary, rows: list[list[tuple[PanelResults, str]]], fewest: int) -> Figure:
    columns = max((len(row) for row in rows), default=1)
    caption = _caption(summary, [panel for row in rows for panel, _ in row], max(2, columns), fewest)
    below, above = _LINE * (caption.count("\n") + 2), 0.35
    each = max(_FRONTIER_WIDTH, _NARROWEST / columns)
    width, height = each * columns, _FRONTIER_HEIGHT * max(1, len(rows)) + below + above
    figure = Figure(figsize=(width, height))
    places = figure.subplots(max(1, len(rows)), columns, squeeze=False)
    figure.subplots_adjust(
        left=_LEFT / width,
        right=1.0 - _RIGHT / width,
        bottom=(below + 0.45) / height,
        top=1.0 - (above + 0.25) / height,
        wspace=(_LEFT + _RIGHT) / (each - _LEFT - _RIGHT),
        hspace=0.85 / (_FRONTIER_HEIGHT - 0.85),
    )
    title = f"{'QUICK, not for quoting: ' if summary.study.quick else ''}{summary.study.experiment.title}"
    figure.suptitle(title, fontsize=10.5, x=0.01, ha="left", y=1.0 - 0.1 / height, va="top")
    figure.text(0.01, 0.08 / height, caption, fontsize=7.5, color=_INK, va="bottom", linespacing=1.35)
    for row, drawn in zip(places, rows or [[]], strict=True):
        for axes, (panel, metric) in zip(row, drawn, strict=False):
            _frontier_axes(axes, panel, metric, summary, fewest)
        for axes in row[len(drawn) :]:
            axes.set_visible(False)
    return figure


def _caption(summary: StudySummary, panels: Sequence[PanelResults], columns: int, fewest: int) -> str:
    """Describe the terms of every epsilon, the protocols, the seeds and the standard errors."""
    usual, *others = sorted(terms_of(panels).items(), key=lambda found: -len(found[1])) or [("nothing is private", [])]
    said = [f"Epsilon: {usual[0]}."]
    said += [f"Not comparable, epsilon of {'; '.join(names)}: {meant}." for meant, names in others]
    protocols = dict.fromkeys(panel.protocol for panel in panels)
    said += [f"{name}: {PROTOCOLS[name]}." for name in protocols]
    counts = {line.seeds for panel in panels for line in panel.lines if line.measured}
    seeds = f"{min(counts)} to {max(counts)} seeds" if len(counts) > 1 else counted(max(counts, default=0), "seed")
    said.append(f"Points: mean over {seeds}; bars: lowest and highest. Grey: no privacy; dotted: reads the order.")
    errors = _errors(panels, summary.study.experiment.metrics[0])
    said += [f"Standard error of {spelt(summary.study.experiment.metrics[0])} over users: {errors}."] if errors else []
    few = dict.fromkeys(
        name for panel in panels for name in panel.families() if name not in _shown(panel, fewest) and _ran(panel, name)
    )
    said += [f"In the tables alone, of one or two epsilons: {', '.join(few)}."] if few else []
    if any(_fails(line) for panel in panels for line in panel.lines):
        said.append(f"A cross at the bottom: a run that {FAILED}.")
    return "\n".join(fill(line, 64 * columns) for line in said)


def _errors(panels: Sequence[PanelResults], metric: str) -> str:
    """Name the largest standard error over users of every data set."""
    found: dict[str, float] = {}
    for panel in panels:
        if panel.protocol == "loo-99":
            errors = [error_over_users(line, metric) or 0.0 for line in panel.lines]
            found[panel.panel.data.partition(":")[0]] = max(errors, default=0.0)
    return ", ".join(f"{name} up to {error:.3f}" for name, error in found.items() if error)


def _fails(line: ResultLine) -> bool:
    return not line.measured and line.problem.startswith(FAILED)


def _frontier_axes(axes: Axes, panel: PanelResults, metric: str, summary: StudySummary, fewest: int) -> None:
    bold = summary.study.experiment.bold
    axes.set_title(panel.panel.source, loc="left", fontsize=9)
    axes.set_xscale("log")
    shown = _shown(panel, fewest)
    names = _levels(axes, panel, metric)
    ours = [name for name, lines in shown.items() if lines[0].variant.row.method == bold]
    others = [name for name in shown if name not in ours]
    styles = {name: _bold(ours.index(name)) for name in ours}
    styles |= {name: _frontier_style(shown[name][0], number) for number, name in enumerate(others)}
    for name, lines in shown.items():
        names += _frontier_curve(axes, name, lines, metric, styles[name])
    places = sorted({line.variant.row.at or 0.0 for lines in shown.values() for line in lines})
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2f}"))
    axes.tick_params(labelsize=8)
    axes.set_xlabel("epsilon", fontsize=8.5)
    axes.set_ylabel(spelt(metric), fontsize=8.5)
    _crosses(axes, shown, styles)
    _write(axes, names)


def _shown(panel: PanelResults, fewest: int) -> dict[str, list[ResultLine]]:
    """Select the curves with enough points, or with as many as any curve has."""
    curves = panel.families()
    most = max((len(lines) for lines in curves.values()), default=0)
    return {name: lines for name, lines in curves.items() if len(lines) >= min(fewest, most)}


def _ran(panel: PanelResults, name: str) -> bool:
    return any(line.measured for line in panel.families()[name])


def _bold(number: int) -> dict[str, Any]:
    """Style of our method: thick and in one colour, the first form solid and others dashed."""
    dashes = "-" if number == 0 else (0, (4, 1.5))
    return {"color": _OURS, "marker": "o", "linewidth": 2.6, "linestyle": dashes, "zorder": 4}


def _frontier_style(line: ResultLine, number: int) -> dict[str, Any]:
    """Style of other methods; what is only claimed is dashed and hollow."""
    hollow = line.guarantee is not None and line.guarantee.basis != "proven"
    return {
        "color": _RIVALS[number % len(_RIVALS)],
        "marker": _FRONTIER_MARKERS[number % len(_FRONTIER_MARKERS)],
        "linewidth": 1.1,
        "linestyle": (0, (2, 1.5)) if hollow else "-",
        "markerfacecolor": "none" if hollow else None,
        "zorder": 3,
    }


def _frontier_curve(
    axes: Axes, name: str, lines: Sequence[ResultLine], metric: str, style: dict[str, Any]
) -> list[_LineName]:
    points = [(line.epsilon, line.measured[metric]) for line in lines if metric in line.measured]
    if not points:
        return []
    means = [found.mean for _, found in points]
    low = [found.mean - min(found.values) for _, found in points]
    high = [max(found.values) - found.mean for _, found in points]
    kept = {key: value for key, value in style.items() if value is not None}
    axes.errorbar(
        [at for at, _ in points], means, yerr=[low, high], markersize=3.6, capsize=1.5, elinewidth=0.9, **kept
    )
    return [
        _LineName(name, means[-1], {"color": style["color"], "weight": "bold" if style["zorder"] > 3 else "normal"})
    ]


def _levels(axes: Axes, panel: PanelResults, metric: str) -> list[_LineName]:
    """Draw methods without privacy, and popularity, as levels."""
    levels = [
        (line.variant.row.label, line.measured[metric].mean, line.variant.row.reads_order)
        for line in panel.references()
        if metric in line.measured
    ]
    popularity = panel.baselines.get("popularity", {})
    if metric in popularity:
        levels.append(("popularity", popularity[metric].mean, False))
    for _, height, reads_order in levels:
        axes.axhline(height, color=_GREY, linewidth=0.9, linestyle=":" if reads_order else "-", zorder=1)
    return [_LineName(name, height, {"color": _GREY, "weight": "normal"}) for name, height, _ in levels]


def _crosses(axes: Axes, shown: dict[str, list[ResultLine]], styles: dict[str, dict[str, Any]]) -> None:
    """Mark failed runs at the bottom, at their epsilon."""
    bottom = axes.get_ylim()[0]
    for name, lines in shown.items():
        for line in lines:
            if _fails(line):
                style = {"marker": "x", "color": styles[name]["color"], "clip_on": False, "zorder": 5}
                axes.plot(line.variant.row.at or 0.0, bottom, **style)
    axes.set_ylim(bottom=bottom)


def _write(axes: Axes, names: Sequence[_LineName]) -> None:
    """Write names on the right at the ends of their lines, never over one another, each with a thin line to its end."""
    low, high = axes.get_ylim()
    length = axes.bbox.height * 72.0 / axes.figure.dpi  # in points
    step = _NAME / length
    wanted = sorted(names, key=lambda name: name.height)
    heights = spread([(name.height - low) / (high - low) for name in wanted], step)
    for name, height in zip(wanted, heights, strict=True):
        axes.annotate(
            name.text,
            xy=(1.0, (name.height - low) / (high - low)),
            xytext=(1.06, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            fontsize=8,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": name.style["color"], "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0},
            **name.style,
        )


def spread(heights: Sequence[float], step: float) -> list[float]:
    """Move sorted heights as little as keeps neighbours a step apart, none above 1: crowds share their mean.

    Blocks that touch are merged, as in isotonic regression.
    """
    blocks: list[tuple[float, int]] = []  # mean of (height - place in block * step), how many
    for height in heights:
        mean, count = height, 1
        while blocks and blocks[-1][0] + blocks[-1][1] * step > mean:
            before, many = blocks.pop()
            mean, count = (before * many + (mean - many * step) * count) / (many + count), many + count
        blocks.append((mean, count))
    apart = [mean + place * step for mean, count in blocks for place in range(count)]
    return [min(height, 1.0 - left * step) for height, left in zip(apart, reversed(range(len(apart))), strict=True)]
