"""Every plot of veilrec in one style, safe for colour-blind readers and reproducible byte for byte.

Charts of runs are data (`Chart`) that `picture`, `inline` and `save` draw; comparisons, attacks, audits and serving
modes have a `draw_...` function each, which share the bars of `_draw_bars`, for `save_figure`.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from veilrec.core.errors import BadInput
from veilrec.core.files import replacing
from veilrec.privacy.guarantee import Guarantee
from veilrec.report.labels import byte_scale, spelt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from veilrec.attacks.coordinator import CoordinatorAttack
    from veilrec.attacks.running import QueryAttack, Result
    from veilrec.audit.auditor import AuditVerdict
    from veilrec.report.page import EvaluationPoint, RunSummary
    from veilrec.runs.comparison import ComparisonEntry, MethodComparison

P = ParamSpec("P")

# Okabe and Ito's palette without its yellow and black, which vanish on light and on dark pages.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# What methods are compared with has a colour of its own in every chart; methods share the others.
_BESIDE = {"popularity": COLOURS[5], "random": "#8a8f98"}
_METHODS = COLOURS[:5]
_MARKERS = ("o", "s", "^", "D", "v", "P")
_DASHES = ((0, (6, 2)), (0, (2, 2)), (0, (6, 2, 1.5, 2)), (0, (1, 2.5)), (0, (9, 3)))
_INK = "#3d4451"  # of the style; replaced by the page's own text colour where the picture is part of a page
_STYLE = Path(__file__).with_name("veilrec.mplstyle")
_TITLE, _LABEL, _SMALL = 12, 9, 8  # font sizes: of titles, of axes and legends of wide plots, of texts beside bars
_GREY = "#9aa1ac"
_BASES = {"proven": COLOURS[2], "as published": COLOURS[1], "none": COLOURS[0]}
PLOT_ENDINGS = (".svg", ".png")
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
    """A labelled line through points."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Chart:
    """A line chart: curves, and horizontal levels that they are compared with."""

    name: str  # of its elements in a page that holds several charts
    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    levels: Mapping[str, float] = field(default_factory=dict)  # label -> height of a horizontal line
    numbers: Mapping[str, int] = field(default_factory=dict)  # method -> number of its colour, the same in all charts
    ticks: Sequence[str] = ()  # names of the places 0, 1, 2, ... where x is no number


def picture(chart: Chart) -> str:
    """Draw a chart as the text of an SVG file, on white."""
    return _svg(_draw(chart), background="white")


def save(chart: Chart, path: Path) -> None:
    """Write a chart as SVG or PNG, by the ending of the path."""
    save_figure(_draw(chart), path)


def inline(chart: Chart) -> str:
    """Draw a chart as an SVG element for a page: in the page's text colour, with unique ids."""
    svg = _svg(_draw(chart), background="none")
    body = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    body = re.sub(r'\b(id|xlink:href)="(#?)', rf'\1="\2{chart.name}-', body)
    return body.replace("url(#", f"url(#{chart.name}-")


def _styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorate a function that draws a figure: it draws in the style of veilrec."""

    @wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with mpl.rc_context(fname=_STYLE):
            return draw(*args, **kwargs)

    return styled


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as SVG or PNG, by the ending of the path, without the date."""
    ending = path.suffix.removeprefix(".")
    metadata: Any = {"Date": None, "Creator": None} if ending == "svg" else None
    with mpl.rc_context(fname=_STYLE), replacing(path) as part:
        figure.savefig(part, format=ending, facecolor="white", dpi=140, metadata=metadata)


@_styled
def _draw(chart: Chart) -> Figure:
    """Draw a chart: narrow, with the legend below, so that its letters are readable on a phone."""
    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.add_subplot()
    final = _draw_curves(axes, chart) | dict(chart.levels)
    for position, (label, height) in enumerate(chart.levels.items()):
        axes.axhline(height, label=label, color=_level_colour(chart, label), linestyle=_DASHES[position % len(_DASHES)])
    axes.set_title(chart.title, loc="left", fontsize=_TITLE)
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


def _level_colour(chart: Chart, label: str) -> str:
    if label == BEST_POSSIBLE:
        return _INK
    number = chart.numbers.get(label.removesuffix(_CENTRALISED), len(chart.curves))
    return _BESIDE.get(label, _METHODS[number % len(_METHODS)])


def _svg(figure: Figure, background: str) -> str:
    target = io.StringIO()
    with mpl.rc_context(fname=_STYLE):
        figure.savefig(target, format="svg", facecolor=background, metadata={"Date": None, "Creator": None})
    return target.getvalue()


def colour_numbers(runs: Iterable[RunSummary]) -> dict[str, int]:
    """Number the methods of a page, so that a method has one colour in all charts."""
    return {label: number for number, label in enumerate(dict.fromkeys(run.label for run in runs))}


def over_bytes(
    runs: Sequence[RunSummary],
    metric: str,
    best_possible: Mapping[str, float],
    numbers: Mapping[str, int] | None = None,
) -> Chart | None:
    """Chart the metric of each federated method over the bytes sent; None without a federated run.

    Args:
        runs: federated runs become curves, centralised ones levels.
        metric: name of the metric.
        best_possible: upper bounds of metrics, where data is synthetic.
        numbers: of `colour_numbers`, where a page has several charts.
    """
    learning = [run for run in runs if run.kind == "federated" and run.points]
    if not learning:
        return None
    (size, unit), split = byte_scale(max(_sent(run.points[-1]) for run in learning)), learning[0].split
    return Chart(
        f"{_name(runs[0].dataset)}-bytes",
        f"{spelt(metric)} by what was sent",
        f"Sent so far, both ways, all clients ({unit})",
        f"{spelt(metric)} on the {_SPLITS.get(split, split)}",
        [
            Curve(run.label, [_sent(p) / size for p in run.points], [p.metrics[metric] for p in run.points])
            for run in learning
        ],
        _levels(runs, metric, best_possible),
        colour_numbers(runs) if numbers is None else numbers,
    )


def _name(dataset: str) -> str:
    """Turn a dataset's name into a part of an id."""
    return re.sub(r"[^a-z0-9]+", "-", dataset.lower()).strip("-") or "data"


def _levels(runs: Sequence[RunSummary], metric: str, best_possible: Mapping[str, float]) -> dict[str, float]:
    levels = {f"{run.label}{_CENTRALISED}": run.metrics[metric] for run in runs if run.kind == "centralised"}
    levels |= {name: values[metric] for name, values in runs[0].baselines.items()}
    return levels | ({BEST_POSSIBLE: best_possible[metric]} if metric in best_possible else {})


def _sent(point: EvaluationPoint) -> int:
    return point.down_bytes + point.up_bytes


_SAME = ("dataset", "protocol", "seed")  # or runs were asked other questions


def personalisation_chart(found: Sequence[Mapping[str, Any]], metric: str = "hr@10") -> Chart:
    """Chart the metric of new users over how many of their items the model was given; baselines as levels.

    Args:
        found: what `evaluate_run(..., personalisation=True)` returns, for one run or several.
        metric: name of the metric.
    """
    if not found:
        raise BadInput("a plot of personalisation needs at least one run")
    first = found[0]
    seen: Counter[str] = Counter()
    curves = []
    for result in found:
        differing = next((name for name in _SAME if result[name] != first[name]), None)
        if differing is not None:
            raise BadInput(
                f"{result['method']} has {differing} {result[differing]} and {first['method']} has {first[differing]}:"
                " one plot compares runs of the same questions"
            )
        method, points = result["method"], result["personalisation"]
        seen[method] += 1
        label = method if seen[method] == 1 else f"{method} ({seen[method]})"
        curves.append(Curve(label, list(range(len(points))), [point["metrics"][metric] for point in points]))
    points = first["personalisation"]
    return Chart(
        "personalisation",
        f"{spelt(metric)} by what is known of a new user",
        "Items that the client trained on",
        f"{spelt(metric)}, {first['dataset']}, {first['protocol']}",
        curves,
        {name: values[metric] for name, values in points[-1]["baselines"].items()},
        {curve.label: number for number, curve in enumerate(curves)},
        [point["given"] for point in points],
    )


@_styled
def draw_audit(verdicts: Sequence[AuditVerdict]) -> Figure:
    """Draw a row per claim on a logarithmic axis; a claim is refuted where the audited point lies right of it."""
    figure = Figure(figsize=(9.4, 1.3 + _ROW_INCHES * len(verdicts)), layout="constrained")
    axes = figure.add_subplot()
    for row, verdict in enumerate(verdicts):
        _draw_claim(axes, row, verdict)
    axes.set(xscale="log", xlim=_limits(verdicts), ylim=(len(verdicts) - 0.4, -0.6))
    _plain_log_axis(axes)
    axes.set_yticks(range(len(verdicts)), [_claim(verdict) for verdict in verdicts], fontsize=_SMALL)
    figure.suptitle(_AUDIT_TITLE, x=0.01, horizontalalignment="left", fontsize=_TITLE)
    axes.set_xlabel("epsilon: the bar is what is claimed, the point is what an attack has proven")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    figure.legend(*_legend(axes, verdicts), loc="outside lower center", ncols=3, fontsize=_SMALL)
    return figure


def _draw_claim(axes: Axes, row: int, verdict: AuditVerdict) -> None:
    _, colour, marker = _KINDS[verdict.kind]
    claimed, audited = verdict.claimed_epsilon, verdict.lower_bound
    axes.plot((claimed, max(audited, 1e-9)), (row, row), color=colour, linewidth=1.0, alpha=0.6)
    axes.plot(claimed, row, marker="|", markersize=9, markeredgewidth=2.0, color=_INK)
    axes.plot(max(audited, 1e-9), row, marker=marker, markersize=6, color=colour, linestyle="none")


def _legend(axes: Axes, verdicts: Sequence[AuditVerdict]) -> tuple[list[Any], list[str]]:
    shown = [kind for kind in _KINDS if any(verdict.kind == kind for verdict in verdicts)]
    handles = [axes.plot([], [], marker=_KINDS[kind][2], color=_KINDS[kind][1], linestyle="none")[0] for kind in shown]
    return handles, [_KINDS[kind][0] for kind in shown]


def _claim(verdict: AuditVerdict) -> str:
    usual = (verdict.scope, verdict.trust) == ("per message", "nobody")
    other = "" if usual else f", {verdict.scope}, trusting: {verdict.trust}"
    terms = f"{verdict.unit}, {verdict.adjacency}{other}, {verdict.delta:g}"
    return f"{verdict.name} {verdict.size}".strip() + f" ({terms})"


def _limits(verdicts: Sequence[AuditVerdict]) -> tuple[float, float]:
    seen = [value for verdict in verdicts for value in (verdict.claimed_epsilon, verdict.lower_bound) if value > 0.0]
    return max(min(seen) / 1.5, 1e-3), max(seen) * 1.5


def _plain_log_axis(axes: Axes) -> None:
    """Label a logarithmic x axis with plain numbers."""
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


@dataclass(frozen=True)
class PlotBar:
    """A horizontal bar: its value, an interval, the level of chance, the text beside it."""

    value: float
    text: str
    colour: str
    kind: str = ""  # in the legend
    interval: tuple[float, float] | None = None
    chance: float | None = None  # or another level that a dotted line marks


_BAR, _LINE, _LETTERS = 0.26, 0.17, 50  # inches of a bar and of a line of its label; letters of such a line


def _bar_label(label: str, guarantee: Guarantee) -> str:
    """Label a group of bars by a name and the whole guarantee: an epsilon alone says nothing."""
    lines = [label] if guarantee.basis == "none" else [label, guarantee.line()]
    return "\n".join(part for line in lines for part in textwrap.wrap(line, _LETTERS))


def _draw_bars(
    groups: Sequence[tuple[str, Sequence[PlotBar]]],
    title: str,
    x_label: str,
    limits: tuple[float, float],
    *,
    mark: str = "chance",
) -> Figure:
    """Draw labelled groups of horizontal bars; the space right of the upper limit is for the texts."""
    low, high = limits
    heights = [0.16 + max(_LINE * (label.count("\n") + 1), _BAR * len(bars)) for label, bars in groups]
    figure = Figure(figsize=(9.0, 1.4 + _LINE * title.count("\n") + sum(heights)), layout="constrained")
    axes = figure.add_subplot()
    centres, top = [], 0.0
    for (_, bars), height in zip(groups, heights, strict=True):
        centres.append(top + height / 2)
        for number, bar in enumerate(bars):
            _draw_bar(axes, centres[-1] + _BAR * (number - (len(bars) - 1) / 2), bar, low, 0.012 * (high - low))
        top += height
    axes.set_yticks(centres, [label for label, _ in groups], fontsize=_SMALL)
    axes.tick_params(axis="y", length=0)
    axes.set(ylim=(top + 0.04, -0.04), xlim=(low, high + 0.5 * (high - low)))
    axes.set_xticks([tick for tick in axes.get_xticks() if low <= tick <= high + 1e-9])
    axes.set_xlabel(x_label, fontsize=_LABEL)
    axes.grid(visible=False, axis="y")
    axes.set_title(title, loc="left", fontsize=_TITLE)
    kinds = {bar.kind: bar.colour for _, bars in groups for bar in bars if bar.kind}
    handles: list[Any] = [Patch(color=colour) for colour in kinds.values()]
    if any(bar.chance is not None for _, bars in groups for bar in bars):
        handles.append(Line2D([], [], color=_INK, linewidth=1.2, linestyle=":"))
        kinds[mark] = _INK
    if kinds:
        figure.legend(handles, list(kinds), loc="outside lower center", ncols=min(3, len(kinds)), fontsize=_SMALL)
    return figure


def _draw_bar(axes: Axes, at: float, bar: PlotBar, low: float, gap: float) -> None:
    axes.barh(at, bar.value - low, left=low, height=0.18, color=bar.colour)
    right = bar.value
    if bar.interval is not None:
        right = max(right, bar.interval[1])
        reach = [[max(0.0, bar.value - bar.interval[0])], [max(0.0, bar.interval[1] - bar.value)]]
        axes.errorbar(bar.value, at, xerr=reach, color=_INK, capsize=2, linewidth=1.1, marker="none")
    if bar.chance is not None:
        axes.plot([bar.chance] * 2, [at - 0.12, at + 0.12], color=_INK, linewidth=1.2, linestyle=":", marker="none")
        right = max(right, bar.chance)
    axes.text(max(right, low) + gap, at, bar.text, verticalalignment="center", fontsize=_SMALL)


_KIND_COLOURS = {"federated": COLOURS[0], "centralised": COLOURS[4], "baseline": _GREY}


@_styled
def draw_comparison(comparison: MethodComparison) -> Figure:
    """Draw a bar per method, best first, with the spread over seeds and the guarantee."""
    metric = comparison.metric
    entries = sorted(comparison.measured, key=lambda entry: -entry.metrics[metric].mean)
    groups = [(_bar_label(entry.label, entry.guarantee), [_entry_bar(entry, metric)]) for entry in entries]
    spreads = [entry.metrics[metric] for entry in entries]
    where = f"{comparison.dataset}, {comparison.protocol}, {comparison.cases:,} cases a seed"
    title = "\n".join([f"{spelt(metric)} on {where}", *textwrap.wrap(comparison.how_long(), 80)])
    widest = max(spread.mean + (spread.sd or 0.0) for spread in spreads)
    return _draw_bars(groups, title, f"{spelt(metric)}. {comparison.how_spread()}", (0.0, widest))


def _entry_bar(entry: ComparisonEntry, metric: str) -> PlotBar:
    spread, basis = entry.metrics[metric], entry.guarantee.basis
    private = basis != "none"
    return PlotBar(
        spread.mean,
        f"{spread.mean:.4f}" + ("" if spread.sd is None else f" ± {spread.sd:.4f}"),
        _BASES[basis] if private else _KIND_COLOURS[entry.kind],
        f"{entry.kind}, privacy {basis}" if private else entry.kind,
        None if spread.sd is None else (spread.mean - spread.sd, spread.mean + spread.sd),
    )


_ATTACK_AXES = {
    "gradient-rows": ("share of clicked news that are found, with a 95 % interval", (0.0, 1.0)),
    "membership": ("AUC of membership inference, with a 95 % interval", (0.3, 1.0)),
    "row-support": ("share of a history found by its rows, at 1 % false-positive rate", (0.0, 1.0)),
    "inversion": ("share of a history inverted from updates, at 1 % false-positive rate", (0.0, 1.0)),
    "poisoning": ("exposure: share of honest users with the promoted item among their first ten", (0.0, 1.0)),
}
_BASIS_NAMES = {"proven": "privacy proven", "as published": "privacy as published", "none": "no formal guarantee"}
_TRUSTED = "what a trusted server sees before the noise"
_UNPROTECTED = ("update", "secure sum")  # views of a server that a method trusts, or before its noise


@_styled
def draw_attack(found: Sequence[Result]) -> Figure:
    """Draw a group of bars per attacked subject, one for each finding of the adversaries."""
    attack = found[0].attack
    data = ", ".join(dict.fromkeys(Path(one.subject.data).name for one in found))
    title = f"{attack}: {data}"
    if attack == "gradient-rows":
        rounds = found[0].about["rounds"]
        updates = "one update" if rounds == 1 else f"{rounds} updates of a client"
        title = f"Clicked news recovered from {updates}: {data}"
    groups = []
    for one in found:
        claimed = one.subject.claimed
        bars = [bar for finding in one.findings if (bar := _finding_bar(attack, finding, claimed)) is not None]
        groups.append((_bar_label(one.subject.label, claimed), bars))
    return _draw_bars(groups, title, *_ATTACK_AXES[attack])


def _finding_bar(attack: str, finding: Any, claimed: Guarantee) -> PlotBar | None:
    """Draw one finding; None for a poisoning finding without an attack."""
    f, colour, kind = finding, _BASES[claimed.basis], _BASIS_NAMES[claimed.basis]
    if attack == "membership":
        text = f"{f.auc:.3f} {f.view}, {f.kind}; epsilon ≥ {f.epsilon_lower:.2f}"
        return PlotBar(f.auc, text, colour, kind, f.interval, 0.5)
    if attack == "poisoning":
        if f.poison is None or f.exposure is None:
            return None
        text = f"{f.exposure:.3f} {f.poison}, {f.share:.1%}, {f.defence}; {f.metric.upper()} {f.quality:.3f}"
        return PlotBar(f.exposure, text, *((_GREY, "no defence") if f.defence == "none" else (colour, kind)))
    r = f.recovery
    if attack == "gradient-rows":
        text = f"{r.recall:.3f} at {100 * r.false_positive_rate:.2g} % false positives, by {f.by}"
        trusted = f.view == "update"
    else:
        text = f"{r.recall:.3f} {f.view}" + ("" if attack == "inversion" else f", {f.by}")
        trusted = f.view in _UNPROTECTED or (claimed.trust == "server" and f.view == "message")
    return PlotBar(r.recall, text, *((_GREY, _TRUSTED) if trusted else (colour, kind)), r.interval, r.chance)


def save_coordinator(attacked: Sequence[CoordinatorAttack], path: Path) -> None:
    """Plot what a malicious coordinator found to SVG or PNG, by the ending of the path."""
    save_figure(draw_coordinator(attacked), path)


@_styled
def draw_coordinator(attacked: Sequence[CoordinatorAttack]) -> Figure:
    """Draw a group of bars per attack, one for each federation: what was found, or that nothing came out."""
    made = list(dict.fromkeys(f"{one.method}, {one.secagg}" for one in attacked))
    groups = []
    for play in dict.fromkeys(finding.play for one in attacked for finding in one.findings):
        bars = []
        for one in attacked:
            for f in (finding for finding in one.findings if finding.play == play):
                r, colour = f.recovery, _GREY if one.noise == "masks only" else COLOURS[2]
                text = f"{r.recall:.3f}" + (f" {one.method}, {one.secagg}" if made[1:] else "")
                text += "" if f.opened else ", refused"
                bars.append(PlotBar(r.recall, text, colour, one.noise, r.interval if f.opened else None, f.bound))
        groups.append((play, bars))
    data = ", ".join(dict.fromkeys(Path(one.data).name for one in attacked))
    title = f"Malicious coordinator: {data if made[1:] else f'{made[0]}; {data}'}"
    x_label = "share of a history found, at 1 % false-positive rate"
    return _draw_bars(groups, title, x_label, (0.0, 1.0), mark="most that the noise allows")


_QUERY_MODES = {"attention": "attention with noise", "interest": "strongest interest, k-ary response"}


@_styled
def draw_queries(attacked: Sequence[QueryAttack]) -> Figure:
    """Draw how often the strongest interest is found, and the error of the attention, over the number of queries."""
    figure = Figure(figsize=(10.0, 5.0), layout="constrained")
    found, errors = figure.subplots(1, 2)
    named = [("" if len(attacked) == 1 else f"{run.folder.name}: ", curve) for run in attacked for curve in run.curves]
    for number, (name, curve) in enumerate(named):
        style: Any = {
            "color": COLOURS[number // 2 % len(COLOURS)],
            "linestyle": "--" if curve.memoised else "-",
            "marker": "s" if curve.memoised else "o",
        }
        how = "memoised" if curve.memoised else "fresh noise"
        queries = [point.queries for point in curve.points]
        label = textwrap.fill(f"{name}{_QUERY_MODES[curve.mode]}, {how}; {curve.claimed.line()}", 95)
        found.plot(queries, [point.found for point in curve.points], label=label, **style)
        errors.plot(queries, [point.error for point in curve.points], **style)
    for level in sorted({run.chance for run in attacked}):
        found.axhline(level, color=_INK, linewidth=1.2, linestyle=":")
    found.set(ylim=(0.0, 1.03), ylabel="strongest interest found (dotted: chance)")
    errors.set(ylabel="error of the attention (half the L1 distance)")
    errors.set_ylim(bottom=0.0)
    for axes in (found, errors):
        axes.set(xscale="log", xlabel="queries of one client")
        _plain_log_axis(axes)
    figure.legend(loc="outside lower center", ncols=1, fontsize=_SMALL)
    return figure


@_styled
def draw_serving(found: Mapping[str, Any]) -> Figure:
    """Draw quality and bytes of every serving mode over the epsilon of one query; modes without one as levels."""
    figure = Figure(figsize=(10.0, 5.6), layout="constrained")
    quality, size = figure.subplots(1, 2, width_ratios=(3, 2))
    private = list(dict.fromkeys(way["serving"] for way in found["ways"] if way["epsilon"] is not None))
    for number, mode in enumerate(private):
        ways = [way for way in found["ways"] if way["serving"] == mode]
        style: Any = {"color": COLOURS[number % len(COLOURS)], "marker": _MARKERS[number % len(_MARKERS)]}
        label = f"{mode}: {Guarantee.from_json(ways[0]['guarantee']).line()}"
        label += " (the leftmost point)" if len(ways) > 1 else ""
        epsilons = [way["epsilon"] for way in ways]
        quality.plot(epsilons, [way["metrics"]["auc"] for way in ways], label=textwrap.fill(label, 95), **style)
        size.plot(epsilons, [way["bytes_up"] + way["bytes_down"] for way in ways], **style)
    line: Any = {"color": _INK, "linewidth": 1.2}
    quality.axhline(found["plain"]["auc"], label="the model itself: plain and none-sent", **line)
    quality.axhline(found["baselines"]["popularity"]["auc"], linestyle=":", label="popularity", **line)
    for way in found["ways"]:
        if way["serving"] == "none-sent":
            size.axhline(way["bytes_down"], linestyle="--", **line)
            size.text(0.02, way["bytes_down"], "none-sent", transform=size.get_yaxis_transform(), va="bottom")
    ticks = sorted({way["epsilon"] for way in found["ways"] if way["epsilon"] is not None})
    for axes in (quality, size):
        axes.set(xscale="log", xlabel="epsilon of one query")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
        axes.set_xticks([], minor=True)
    quality.set_ylabel("AUC of the lists that were shown")
    size.set(ylabel="bytes of a query and its answer", yscale="log")
    size.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    figure.suptitle(
        f"{found['method']} on {found['dataset']}, seed {found['seed']}", x=0.01, ha="left", fontsize=_TITLE
    )
    figure.legend(loc="outside lower center", ncols=1, fontsize=_SMALL)
    return figure
