"""Pictures, safe for colour-blind readers and always the same: the curves of runs, and what an audit has found."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from veilrec._files import replacing, write_text
from veilrec.report.units import byte_scale, spelt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from veilrec.privacy.audit.auditor import Verdict
    from veilrec.report.run_summary import Point, RunSummary

# Okabe and Ito's palette without its yellow and black, which vanish on light and on dark pages.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# What methods are compared with has a colour of its own in every chart; methods share the others.
_BESIDE = {"popularity": COLOURS[5], "random": "#8a8f98"}
_METHODS = COLOURS[:5]
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
BEST_POSSIBLE = "best possible"
_CENTRALISED = " (centralised)"
_SPLITS = {"test": "test part", "valid": "validation part"}
_KINDS = {
    "proven": ("proven claim", COLOURS[2], "o"),
    "known-bad": ("published claim, known to be false", COLOURS[1], "X"),
    "planted": ("planted bug", COLOURS[3], "D"),
}
_INCHES = (4.8, 4.3)  # of a chart: 460 pixels in a page that has them
_ROW_INCHES = 0.21
_AUDIT_TITLE = "Claimed and audited epsilon, per message and trusting nobody unless a row says otherwise"


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
    numbers: Mapping[str, int] = field(default_factory=dict)  # method -> number of its colour, the same in all charts
    ticks: Sequence[str] = ()  # names of the places 0, 1, 2, ... where x is no number


def picture(chart: Chart) -> str:
    """An SVG file of its own, on white."""
    with _style():
        return _svg(_draw(chart), background="white")


def save(chart: Chart, path: Path) -> None:
    """Write it as SVG or PNG, by the ending of the path."""
    if path.suffix == ".svg":
        write_text(path, picture(chart))
        return
    with _style(), replacing(path) as part:
        _draw(chart).savefig(part, format="png", facecolor="white", dpi=150)


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
    """Narrow, with the legend below: on a phone the letters are still as large as those of a footnote."""
    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.add_subplot()
    final = _draw_curves(axes, chart) | _draw_levels(axes, chart)
    axes.set_title(chart.title, loc="left", fontsize=12)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if chart.ticks:
        axes.set_xticks(range(len(chart.ticks)), chart.ticks)
    else:
        axes.set_xlim(left=0.0)
    if chart.levels:
        axes.set_ylim(bottom=0.0)  # heights are compared, so they start at nothing
    handles, labels = axes.get_legend_handles_labels()
    best_first = sorted(zip(handles, labels, strict=True), key=lambda pair: -final[pair[1]])
    if best_first:
        figure.legend(*zip(*best_first, strict=True), loc="outside lower left", ncols=2, handlelength=2.6)
    return figure


def _draw_curves(axes: Axes, chart: Chart) -> dict[str, float]:
    for position, curve in enumerate(chart.curves):
        number = chart.numbers.get(curve.label, position)
        axes.plot(
            curve.x,
            curve.y,
            label=curve.label,
            color=_METHODS[number % len(_METHODS)],
            marker=_MARKERS[number % len(_MARKERS)],
        )
    return {curve.label: curve.y[-1] for curve in chart.curves if curve.y}


def _draw_levels(axes: Axes, chart: Chart) -> dict[str, float]:
    for position, (label, height) in enumerate(chart.levels.items()):
        axes.axhline(height, label=label, color=_level_colour(chart, label), linestyle=_DASHES[position % len(_DASHES)])
    return dict(chart.levels)


def _level_colour(chart: Chart, label: str) -> str:
    if label == BEST_POSSIBLE:
        return _INK
    number = chart.numbers.get(label.removesuffix(_CENTRALISED), len(chart.curves))
    return _BESIDE.get(label, _METHODS[number % len(_METHODS)])


def _svg(figure: Figure, background: str) -> str:
    target = io.StringIO()
    figure.savefig(target, format="svg", facecolor=background, metadata={"Date": None, "Creator": None})
    return target.getvalue()


def colour_numbers(runs: Iterable[RunSummary]) -> dict[str, int]:
    """A number for every method of a page, for all of its charts; runs of one label share it."""
    return {label: number for number, label in enumerate(dict.fromkeys(run.label for run in runs))}


def over_bytes(
    runs: Sequence[RunSummary],
    metric: str,
    best_possible: Mapping[str, float],
    numbers: Mapping[str, int] | None = None,
) -> Chart | None:
    """The metric of each federated method against what it has sent, between what it is compared with.

    Rounds of different methods are not alike, bytes are. Without a federated run there is nothing to draw. The
    numbers are those of `colour_numbers`, where a page has other charts.
    """
    learning = [run for run in runs if run.kind == "federated" and run.points]
    if not learning:
        return None
    size, unit = byte_scale(max(_sent(run.points[-1]) for run in learning))
    return Chart(
        f"{_name(runs[0].dataset)}-bytes",
        f"{spelt(metric)} by what was sent",
        f"Sent so far, both ways, all devices ({unit})",
        _y_label(learning, metric),
        [Curve(run.label, [_sent(p) / size for p in run.points], _values(run.points, metric)) for run in learning],
        _levels(runs, metric, best_possible),
        colour_numbers(runs) if numbers is None else numbers,
    )


def _name(dataset: str) -> str:
    """A data set's name as part of an id."""
    return re.sub(r"[^a-z0-9]+", "-", dataset.lower()).strip("-") or "data"


def _levels(runs: Sequence[RunSummary], metric: str, best_possible: Mapping[str, float]) -> dict[str, float]:
    levels = {f"{run.label}{_CENTRALISED}": run.metrics[metric] for run in runs if run.kind == "centralised"}
    levels |= {name: values[metric] for name, values in runs[0].baselines.items()}
    return levels | ({BEST_POSSIBLE: best_possible[metric]} if metric in best_possible else {})


def _values(points: Sequence[Point], metric: str) -> list[float]:
    return [point.metrics[metric] for point in points]


def _sent(point: Point) -> int:
    return point.down_bytes + point.up_bytes


def _y_label(runs: Sequence[RunSummary], metric: str) -> str:
    part = runs[0].split if runs else "test"
    return f"{spelt(metric)} on the {_SPLITS.get(part, part)}"


def save_audit(verdicts: Sequence[Verdict], path: Path) -> None:
    """Write claimed against audited epsilon as SVG or PNG, by the ending of the path."""
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "veilrec", "text.parse_math": False, "font.size": 9}
    ending = path.suffix.removeprefix(".")
    with mpl.rc_context(style), replacing(path) as part:
        metadata: Any = {"Date": None, "Creator": None} if ending == "svg" else None
        draw_audit(verdicts).savefig(part, format=ending, facecolor="white", dpi=150, metadata=metadata)


def draw_audit(verdicts: Sequence[Verdict]) -> Figure:
    """A row per claim on a logarithmic axis, refuted where the audited point lies right of the claim."""
    figure = Figure(figsize=(9.4, 1.3 + _ROW_INCHES * len(verdicts)), layout="constrained")
    axes = figure.add_subplot()
    for row, verdict in enumerate(verdicts):
        _draw_claim(axes, row, verdict)
    axes.set(xscale="log", xlim=_limits(verdicts), ylim=(len(verdicts) - 0.4, -0.6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(verdicts)), [_claim(verdict) for verdict in verdicts], fontsize=7.5)
    figure.suptitle(_AUDIT_TITLE, x=0.01, horizontalalignment="left", fontsize=10)
    axes.set_xlabel("epsilon: the bar is what is claimed, the point is what an attack has proven")
    axes.grid(axis="x", alpha=0.18)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(*_legend(axes, verdicts), loc="outside lower center", ncols=3, frameon=False)
    return figure


def _draw_claim(axes: Axes, row: int, verdict: Verdict) -> None:
    _, colour, marker = _KINDS[verdict.kind]
    claimed, audited = verdict.claimed_epsilon, verdict.lower_bound
    axes.plot((claimed, max(audited, 1e-9)), (row, row), color=colour, linewidth=1.0, alpha=0.6)
    axes.plot(claimed, row, marker="|", markersize=9, markeredgewidth=2.0, color=_INK)
    axes.plot(max(audited, 1e-9), row, marker=marker, markersize=6, color=colour, linestyle="none")


def _legend(axes: Axes, verdicts: Sequence[Verdict]) -> tuple[list[Any], list[str]]:
    shown = [kind for kind in _KINDS if any(verdict.kind == kind for verdict in verdicts)]
    handles = [axes.plot([], [], marker=_KINDS[kind][2], color=_KINDS[kind][1], linestyle="none")[0] for kind in shown]
    return handles, [_KINDS[kind][0] for kind in shown]


def _claim(verdict: Verdict) -> str:
    usual = (verdict.scope, verdict.trust) == ("per message", "nobody")
    other = "" if usual else f", {verdict.scope}, trusting: {verdict.trust}"
    terms = f"{verdict.unit}, {verdict.adjacency}{other}, {verdict.delta:g}"
    return f"{verdict.name} {verdict.size}".strip() + f" ({terms})"


def _limits(verdicts: Sequence[Verdict]) -> tuple[float, float]:
    seen = [value for verdict in verdicts for value in (verdict.claimed_epsilon, verdict.lower_bound) if value > 0.0]
    return max(min(seen) / 1.5, 1e-3), max(seen) * 1.5
