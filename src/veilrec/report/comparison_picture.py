"""The picture of a comparison: a bar a method with the spread over seeds, and what a private one promises below it."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from veilrec._files import replacing
from veilrec.report.plots import COLOURS
from veilrec.report.units import spelt
from veilrec.runs.comparison import Comparison, Entry

_STYLE: Any = {"text.parse_math": False, "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
_GREY = "#9aa1ac"
_FILLS = {"federated": COLOURS[0], "centralised": COLOURS[4], "baseline": _GREY}
_PRIVATE = {"proven": COLOURS[2], "as published": COLOURS[1]}
_ROW_INCHES, _LINE_INCHES = 0.42, 0.17
_LETTERS_OF_TITLE = 80
_LETTERS = 46  # of a line of a guarantee


def save_picture(comparison: Comparison, path: Path) -> None:
    """Write it as PNG."""
    with mpl.rc_context(_STYLE), replacing(path) as part:
        draw(comparison).savefig(part, format="png", facecolor="white", dpi=130)


def draw(comparison: Comparison) -> Figure:
    """Horizontal bars, best first."""
    metric = comparison.metric
    entries = sorted(comparison.measured, key=lambda entry: -entry.metrics[metric].mean)
    names = [_name(entry) for entry in entries]
    lines = sum(name.count("\n") for name in names)
    lengths = textwrap.wrap(comparison.how_long(), _LETTERS_OF_TITLE)
    height = 1.5 + _LINE_INCHES * len(lengths) + _ROW_INCHES * len(entries) + _LINE_INCHES * lines
    figure = Figure(figsize=(9.0, height), layout="constrained")
    axes = figure.add_subplot()
    centres, edge = _centres(names)
    spreads = [entry.metrics[metric] for entry in entries]
    for centre, entry, spread in zip(centres, entries, spreads, strict=True):
        axes.barh(centre, spread.mean, height=0.3, color=_fill(entry))
        axes.text(
            spread.mean + (spread.sd or 0.0),
            centre,
            f"  {spread.mean:.4f}" + ("" if spread.sd is None else f" ± {spread.sd:.4f}"),
            verticalalignment="center",
            fontsize=9,
        )
    if len(comparison.seeds) > 1:
        axes.errorbar(
            [spread.mean for spread in spreads],
            centres,
            xerr=[spread.sd or 0.0 for spread in spreads],
            linestyle="none",
            color="#22262e",
            capsize=3,
            linewidth=1.3,
        )
    axes.set_yticks(centres, names, fontsize=8.5, linespacing=1.25)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(edge, 0.0)
    axes.set_xlim(0.0, 1.22 * max(spread.mean + (spread.sd or 0.0) for spread in spreads))
    axes.set_xlabel(f"{spelt(metric)}. {comparison.how_spread()}")
    axes.grid(axis="x", alpha=0.18)
    axes.set_axisbelow(True)
    where = f"{comparison.dataset}, {comparison.protocol}, {comparison.cases:,} cases a seed"
    axes.set_title("\n".join([f"{spelt(metric)} on {where}", *lengths]), loc="left", fontsize=11)
    kinds = {_kind(entry): _fill(entry) for entry in entries}
    handles = [Patch(color=colour) for colour in kinds.values()]
    figure.legend(handles, list(kinds), loc="outside lower right", ncols=len(kinds), frameon=False, fontsize=8.5)
    return figure


def _centres(names: list[str]) -> tuple[list[float], float]:
    """How far down the middle of each bar lies, and where the last one ends; long names take more room."""
    centres, at = [], 0.1
    for name in names:
        room = _ROW_INCHES + _LINE_INCHES * name.count("\n")
        centres.append(at + room / 2)
        at += room
    return centres, at + 0.1


def _name(entry: Entry) -> str:
    """The label, and a guarantee in full: an epsilon alone says nothing."""
    if entry.guarantee.basis == "none":
        return "\n".join(textwrap.wrap(entry.label, _LETTERS))
    return "\n".join([*textwrap.wrap(entry.label, _LETTERS), *textwrap.wrap(entry.guarantee.line(), _LETTERS)])


def _kind(entry: Entry) -> str:
    return entry.kind if entry.guarantee.basis == "none" else f"{entry.kind}, privacy {entry.guarantee.basis}"


def _fill(entry: Entry) -> str:
    return _FILLS[entry.kind] if entry.guarantee.basis == "none" else _PRIVATE[entry.guarantee.basis]
