"""What privacy costs, as a picture: accuracy against epsilon, names at the ends of lines, no privacy in grey."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from veilrec._words import counted
from veilrec.evaluate.protocols import PROTOCOLS
from veilrec.report.plots import COLOURS
from veilrec.report.reproduce.price import (
    FAILED,
    epsilon_of,
    error_over_users,
    families,
    references,
    seeds_of,
    terms_of,
)
from veilrec.report.units import spelt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from veilrec.report.reproduce.summary import Line, PanelSummary, Summary

_OURS, _GREY, _INK = COLOURS[1], "#8a8f98", "#3d4451"
_RIVALS = (COLOURS[0], COLOURS[2], COLOURS[3], COLOURS[4], COLOURS[5], "#6b4c9a", "#7f6000", "#444444")
_MARKERS = ("s", "^", "D", "v", "P", "X", "o", "*")
_WIDTH, _HEIGHT, _LINE = 4.2, 4.1, 0.15  # inches of an axes with its names, and of a line under the picture
_LEFT, _RIGHT, _NARROWEST = 0.6, 1.65, 6.5  # inches for numbers, for names, and of a picture
_NAME = 9.5  # points between two names
_FEWEST = 3  # points of a curve that the first picture shows


@dataclass(frozen=True)
class _Name:
    """At the right end of a line."""

    text: str
    height: float  # where the line ends
    style: dict[str, Any]


def draw(summary: Summary) -> Figure:
    """The first metric by the first protocol, an axes for each data set; curves of a point or two are left out."""
    first = summary.panels[0].protocol if summary.panels else ""
    metric = summary.study.experiment.metrics[0]
    return _figure(summary, _rows(summary, [(first, metric)]), _FEWEST)


def draw_more(summary: Summary) -> Figure:
    """Everything else: a row for each protocol and metric, a column for each data set, with every curve."""
    metrics = summary.study.experiment.metrics
    protocols = dict.fromkeys(panel.protocol for panel in summary.panels)
    every = [(protocol, metric) for protocol in protocols for metric in metrics]
    return _figure(summary, _rows(summary, every[1:] or every), 1)


def _rows(summary: Summary, asked: Sequence[tuple[str, str]]) -> list[list[tuple[PanelSummary, str]]]:
    """Of what was measured."""
    panels = [panel for panel in summary.panels if any(line.measured for line in panel.lines)]
    rows = [[(panel, metric) for panel in panels if panel.protocol == protocol] for protocol, metric in asked]
    return [row for row in rows if row]


def _figure(summary: Summary, rows: list[list[tuple[PanelSummary, str]]], fewest: int) -> Figure:
    columns = max((len(row) for row in rows), default=1)
    caption = _caption(summary, [panel for row in rows for panel, _ in row], max(2, columns), fewest)
    below, above = _LINE * (caption.count("\n") + 2), 0.35
    each = max(_WIDTH, _NARROWEST / columns)
    width, height = each * columns, _HEIGHT * max(1, len(rows)) + below + above
    figure = Figure(figsize=(width, height))
    places = figure.subplots(max(1, len(rows)), columns, squeeze=False)
    figure.subplots_adjust(
        left=_LEFT / width,
        right=1.0 - _RIGHT / width,
        bottom=(below + 0.45) / height,
        top=1.0 - (above + 0.25) / height,
        wspace=(_LEFT + _RIGHT) / (each - _LEFT - _RIGHT),
        hspace=0.85 / (_HEIGHT - 0.85),
    )
    figure.suptitle(_title(summary), fontsize=10.5, x=0.01, ha="left", y=1.0 - 0.1 / height, va="top")
    figure.text(0.01, 0.08 / height, caption, fontsize=7.5, color=_INK, va="bottom", linespacing=1.35)
    for row, drawn in zip(places, rows or [[]], strict=True):
        for axes, (panel, metric) in zip(row, drawn, strict=False):
            _axes(axes, panel, metric, summary, fewest)
        for axes in row[len(drawn) :]:
            axes.set_visible(False)
    return figure


def _title(summary: Summary) -> str:
    quick = "QUICK, not for quoting: " if summary.study.quick else ""
    return f"{quick}{summary.study.experiment.title}"


def _caption(summary: Summary, panels: Sequence[PanelSummary], columns: int, fewest: int) -> str:
    """The terms of every epsilon, the protocols, the seeds, and how sure a number is."""
    usual, *others = sorted(terms_of(panels).items(), key=lambda found: -len(found[1])) or [("nothing is private", [])]
    said = [f"Epsilon: {usual[0]}."]
    said += [f"Not comparable, epsilon of {'; '.join(names)}: {meant}." for meant, names in others]
    protocols = dict.fromkeys(panel.protocol for panel in panels)
    said += [f"{name}: {PROTOCOLS[name]}." for name in protocols]
    counts = {seeds_of(line) for panel in panels for line in panel.lines if line.measured}
    seeds = f"{min(counts)} to {max(counts)} seeds" if len(counts) > 1 else counted(max(counts, default=0), "seed")
    said.append(f"Points: mean over {seeds}; bars: lowest and highest. Grey: no privacy; dotted: reads the order.")
    errors = _errors(panels, summary.study.experiment.metrics[0])
    said += [f"Standard error of {spelt(summary.study.experiment.metrics[0])} over users: {errors}."] if errors else []
    few = dict.fromkeys(
        name for panel in panels for name in families(panel) if name not in _shown(panel, fewest) and _ran(panel, name)
    )
    said += [f"In the tables alone, of one or two epsilons: {', '.join(few)}."] if few else []
    if any(_fails(line) for panel in panels for line in panel.lines):
        said.append(f"A cross at the bottom: a run that {FAILED}.")
    return "\n".join(fill(line, 64 * columns) for line in said)


def _errors(panels: Sequence[PanelSummary], metric: str) -> str:
    """The largest of every data set."""
    found: dict[str, float] = {}
    for panel in panels:
        if panel.protocol == "loo-99":
            errors = [error_over_users(line, metric) or 0.0 for line in panel.lines]
            found[panel.panel.data.partition(":")[0]] = max(errors, default=0.0)
    return ", ".join(f"{name} up to {error:.3f}" for name, error in found.items() if error)


def _fails(line: Line) -> bool:
    return not line.measured and line.problem.startswith(FAILED)


def _axes(axes: Axes, panel: PanelSummary, metric: str, summary: Summary, fewest: int) -> None:
    bold = summary.study.experiment.bold
    axes.set_title(panel.panel.source, loc="left", fontsize=9)
    axes.set_xscale("log")
    shown = _shown(panel, fewest)
    names = _levels(axes, panel, metric)
    ours = [name for name, lines in shown.items() if lines[0].variant.row.method == bold]
    others = [name for name in shown if name not in ours]
    styles = {name: _bold(ours.index(name)) for name in ours}
    styles |= {name: _style(shown[name][0], number) for number, name in enumerate(others)}
    for name, lines in shown.items():
        names += _curve(axes, name, lines, metric, styles[name])
    places = sorted({line.variant.row.at or 0.0 for lines in shown.values() for line in lines})
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2f}"))
    axes.tick_params(labelsize=8)
    axes.set_xlabel("epsilon", fontsize=8.5)
    axes.set_ylabel(spelt(metric), fontsize=8.5)
    _crosses(axes, shown, styles)
    _write(axes, names)


def _shown(panel: PanelSummary, fewest: int) -> dict[str, list[Line]]:
    """The curves of an axes: of so many points, or of as many as any curve has."""
    curves = families(panel)
    most = max((len(lines) for lines in curves.values()), default=0)
    return {name: lines for name, lines in curves.items() if len(lines) >= min(fewest, most)}


def _ran(panel: PanelSummary, name: str) -> bool:
    return any(line.measured for line in families(panel)[name])


def _bold(number: int) -> dict[str, Any]:
    """Ours: thick and in one colour, the first form solid and others dashed."""
    dashes = "-" if number == 0 else (0, (4, 1.5))
    return {"color": _OURS, "marker": "o", "linewidth": 2.6, "linestyle": dashes, "zorder": 4}


def _style(line: Line, number: int) -> dict[str, Any]:
    """Of rivals; what is only claimed is dashed and hollow."""
    hollow = line.guarantee is not None and line.guarantee.basis != "proven"
    return {
        "color": _RIVALS[number % len(_RIVALS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linewidth": 1.1,
        "linestyle": (0, (2, 1.5)) if hollow else "-",
        "markerfacecolor": "none" if hollow else None,
        "zorder": 3,
    }


def _curve(axes: Axes, name: str, lines: Sequence[Line], metric: str, style: dict[str, Any]) -> list[_Name]:
    points = [(epsilon_of(line), line.measured[metric]) for line in lines if metric in line.measured]
    if not points:
        return []
    means = [found.mean for _, found in points]
    low = [found.mean - min(found.values) for _, found in points]
    high = [max(found.values) - found.mean for _, found in points]
    kept = {key: value for key, value in style.items() if value is not None}
    axes.errorbar(
        [at for at, _ in points], means, yerr=[low, high], markersize=3.6, capsize=1.5, elinewidth=0.9, **kept
    )
    return [_Name(name, means[-1], {"color": style["color"], "weight": "bold" if style["zorder"] > 3 else "normal"})]


def _levels(axes: Axes, panel: PanelSummary, metric: str) -> list[_Name]:
    """What there is without privacy, and popularity."""
    levels = [
        (line.variant.row.label, line.measured[metric].mean, line.variant.row.reads_order)
        for line in references(panel)
        if metric in line.measured
    ]
    popularity = panel.baselines.get("popularity", {})
    if metric in popularity:
        levels.append(("popularity", popularity[metric].mean, False))
    for _, height, reads_order in levels:
        axes.axhline(height, color=_GREY, linewidth=0.9, linestyle=":" if reads_order else "-", zorder=1)
    return [_Name(name, height, {"color": _GREY, "weight": "normal"}) for name, height, _ in levels]


def _crosses(axes: Axes, shown: dict[str, list[Line]], styles: dict[str, dict[str, Any]]) -> None:
    """A run that failed is shown where it would have been, at the bottom."""
    bottom = axes.get_ylim()[0]
    for name, lines in shown.items():
        for line in lines:
            if _fails(line):
                style = {"marker": "x", "color": styles[name]["color"], "clip_on": False, "zorder": 5}
                axes.plot(line.variant.row.at or 0.0, bottom, **style)
    axes.set_ylim(bottom=bottom)


def _write(axes: Axes, names: Sequence[_Name]) -> None:
    """All names on the right, as high as their lines end but never over one another, with a thin line to it."""
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
    """Growing heights moved as little as keeps neighbours a step apart, none above 1: crowds share their mean.

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
