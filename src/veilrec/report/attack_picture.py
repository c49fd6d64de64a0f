"""The pictures of attacks: a bar a method with what was found, and curves over the number of queries."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from veilrec._files import replacing
from veilrec.report.plots import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from veilrec.runs.attacking import Asked, Attacked
    from veilrec.simulate.attacks.readers import Finding

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "veilrec",
    "text.parse_math": False,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_INK = "#22262e"
_BASES = {"proven": COLOURS[2], "as published": COLOURS[1], "none": COLOURS[0]}
_NAMES = {"proven": "privacy proven", "as published": "privacy as published", "none": "no privacy promised"}
_TRUSTED = "what a trusted server sees before the noise"
_TRUSTED_COLOUR = "#9aa1ac"
_MODES = {"attention": "attention with noise", "interest": "strongest interest, k-ary response"}
_ROW_INCHES, _LINE_INCHES, _LETTERS = 0.30, 0.17, 52


def save_uploads(attacked: Sequence[Attacked], path: Path) -> None:
    """Write the bars as SVG or PNG, by the name of the file."""
    save_picture(draw_uploads, attacked, path)


def save_queries(asked: Sequence[Asked], path: Path) -> None:
    """Write the curves as SVG or PNG, by the name of the file."""
    save_picture(draw_queries, asked, path)


def save_picture(draw: Any, found: Any, path: Path) -> None:
    """What `draw` makes of what was found, in a file."""
    about = {"Date": None} if path.suffix == ".svg" else None  # the same picture again from the same numbers
    with mpl.rc_context(_STYLE), replacing(path) as part:
        draw(found).savefig(part, format=path.suffix[1:], facecolor="white", dpi=130, metadata=about)


def draw_uploads(attacked: Sequence[Attacked]) -> Figure:
    """A group of bars for every subject: one for each finding, with its interval and what chance finds."""
    names = [_name(one) for one in attacked]
    rooms = [
        0.12 + max(_LINE_INCHES * (name.count("\n") + 1), _ROW_INCHES * len(one.findings))
        for name, one in zip(names, attacked, strict=True)
    ]
    figure = Figure(figsize=(9.0, 1.6 + sum(rooms)), layout="constrained")
    axes = figure.add_subplot()
    centres, at = [], 0.0
    for one, room in zip(attacked, rooms, strict=True):
        centres.append(at + room / 2)
        top = centres[-1] - _ROW_INCHES * (len(one.findings) - 1) / 2
        for number, finding in enumerate(one.findings):
            _draw_finding(axes, top + number * _ROW_INCHES, finding, _fill(one, finding))
        at += room
    axes.set_yticks(centres, names, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set(ylim=(at + 0.05, -0.05), xlim=(0.0, 1.5))
    axes.set_xticks([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    axes.set_xlabel("share of clicked news that are found, with a 95 % interval; the stroke is what chance finds")
    axes.grid(axis="x", alpha=0.18)
    axes.set_axisbelow(True)
    data = ", ".join(dict.fromkeys(Path(one.subject.data).name for one in attacked))
    rounds = attacked[0].rounds
    told = "one upload" if rounds == 1 else f"{rounds} uploads of a device"
    axes.set_title(f"Clicked news recovered from {told}: {data}", loc="left", fontsize=11)
    kinds = dict.fromkeys((_kind(one, finding), _fill(one, finding)) for one in attacked for finding in one.findings)
    handles: list[Any] = [Patch(color=colour) for _, colour in kinds]
    handles.append(Line2D([], [], color=_INK, linewidth=1.2, linestyle=(0, (2, 1))))
    labels = [*(kind for kind, _ in kinds), "chance"]
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8.5)
    return figure


def _draw_finding(axes: Axes, at: float, finding: Finding, colour: str) -> None:
    found = finding.recovery
    low, high = found.interval
    axes.barh(at, found.recall, height=0.2, color=colour)
    error = ([max(0.0, found.recall - low)], [max(0.0, high - found.recall)])
    axes.errorbar(found.recall, at, xerr=error, color=_INK, capsize=2, linewidth=1.1)
    axes.plot([found.chance] * 2, [at - 0.13, at + 0.13], color=_INK, linewidth=1.2, linestyle=(0, (2, 1)))
    told = f"{found.recall:.3f} at {100 * found.false_positive_rate:.2g} % false, by {finding.by}"
    axes.text(high + 0.015, at, told, verticalalignment="center", fontsize=8)


def _name(one: Attacked) -> str:
    """The label, and the guarantee in full: an epsilon alone says nothing."""
    lines = [one.subject.label, one.subject.claimed.line()]
    return "\n".join(part for line in lines for part in textwrap.wrap(line, _LETTERS))


def _kind(one: Attacked, finding: Finding) -> str:
    return _TRUSTED if finding.view == "update" else _NAMES[one.subject.claimed.basis]


def _fill(one: Attacked, finding: Finding) -> str:
    return _TRUSTED_COLOUR if finding.view == "update" else _BASES[one.subject.claimed.basis]


def draw_queries(asked: Sequence[Asked]) -> Figure:
    """How often the strongest interest is found, and how far off the attention is, over the number of queries."""
    figure = Figure(figsize=(10.0, 4.8), layout="constrained")
    found, errors = figure.subplots(1, 2)
    number = 0
    for run in asked:
        for curve in run.curves:
            style: Any = {
                "color": COLOURS[number // 2 % len(COLOURS)],
                "linestyle": "--" if curve.memoised else "-",
                "marker": "s" if curve.memoised else "o",
                "markersize": 4,
            }
            name = "" if len(asked) == 1 else f"{run.folder.name}: "
            how = "memoised" if curve.memoised else "fresh noise"
            n = [point.queries for point in curve.points]
            label = f"{name}{_MODES[curve.mode]}, {how}; {curve.claimed.line()}"
            found.plot(n, [point.found for point in curve.points], label="\n".join(textwrap.wrap(label, 70)), **style)
            errors.plot(n, [point.error for point in curve.points], **style)
            number += 1
    for level in sorted({run.chance for run in asked}):
        found.axhline(level, color=_INK, linewidth=1.0, linestyle=(0, (2, 1)))
    found.set(ylim=(0.0, 1.03), ylabel="strongest interest found (dotted: chance)")
    errors.set(ylabel="error of the attention (half the L1 distance)")
    errors.set_ylim(bottom=0.0)
    for axes in (found, errors):
        axes.set(xscale="log", xlabel="queries of one device")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.18)
    figure.legend(loc="outside lower center", ncols=1, frameon=False, fontsize=8)
    return figure
