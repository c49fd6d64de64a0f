"""Curves as SVG text: safe for colour-blind readers, readable on light and dark pages, always the same."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette without its yellow and black, which vanish on light and on dark pages.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_DASHES = ((0, (6, 2)), (0, (2, 2)), (0, (6, 2, 1.5, 2)), (0, (1, 2.5)), (0, (9, 3)))
_INK = "#3d4451"  # replaced by the page's own text colour where the picture is part of a page
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: small, selectable, read aloud
    "svg.hashsalt": "veilrec",
    "text.parse_math": False,  # a dollar sign is a dollar sign
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _INK,
    "grid.alpha": 0.18,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 2.0,
    "lines.markersize": 4.5,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Curve:
    """A line through points."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Chart:
    """One picture: curves, and levels that they are compared with."""

    name: str  # of its elements in a page that holds several charts
    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    levels: Mapping[str, float] = field(default_factory=dict)  # label -> height of a horizontal line
    colours: Mapping[str, int] = field(default_factory=dict)  # label -> number of its colour, the same in all charts


def picture(chart: Chart) -> str:
    """An SVG file of its own, on white."""
    with _style():
        return _svg(_draw(chart), background="white")


def inline(chart: Chart) -> str:
    """An SVG element for a page: it takes the page's text colour, and its ids are its own."""
    with _style():
        svg = _svg(_draw(chart), background="none")
    body = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    body = re.sub(r'\b(id|xlink:href)="(#?)', rf'\1="\2{chart.name}-', body)
    return body.replace("url(#", f"url(#{chart.name}-")


@contextmanager
def _style() -> Iterator[None]:
    with mpl.rc_context(_STYLE):
        yield


def _draw(chart: Chart) -> Figure:
    figure = Figure(figsize=(8.4, 3.9), layout="constrained")
    axes = figure.add_subplot()
    final = _draw_curves(axes, chart) | _draw_levels(axes, chart)
    axes.set_title(chart.title, loc="left", fontsize=12)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.set_xlim(left=0.0)
    if chart.levels:
        axes.set_ylim(bottom=0.0)  # heights are compared, so they start at nothing
    handles, labels = axes.get_legend_handles_labels()
    best_first = sorted(zip(handles, labels, strict=True), key=lambda pair: -final[pair[1]])
    if best_first:
        axes.legend(*zip(*best_first, strict=True), loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=2.6)
    return figure


def _draw_curves(axes: Axes, chart: Chart) -> dict[str, float]:
    for position, curve in enumerate(chart.curves):
        number = chart.colours.get(curve.label, position)
        axes.plot(
            curve.x,
            curve.y,
            label=curve.label,
            color=COLOURS[number % len(COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)],
        )
    return {curve.label: curve.y[-1] for curve in chart.curves if curve.y}


def _draw_levels(axes: Axes, chart: Chart) -> dict[str, float]:
    for position, (label, height) in enumerate(chart.levels.items()):
        number = chart.colours.get(label, len(chart.curves) + position)
        axes.axhline(
            height, label=label, color=COLOURS[number % len(COLOURS)], linestyle=_DASHES[position % len(_DASHES)]
        )
    return dict(chart.levels)


def _svg(figure: Figure, background: str) -> str:
    target = io.StringIO()
    figure.savefig(target, format="svg", facecolor=background, metadata={"Date": None, "Creator": None})
    return target.getvalue()
