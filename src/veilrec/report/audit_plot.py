"""Claimed against audited epsilon: a row per claim, refuted where the audited point lies right of the claim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from veilrec.report.plots import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from veilrec.privacy.audit.auditor import Verdict

_INK = "#3d4451"
_KINDS = {
    "proven": ("proven claim", COLOURS[2], "o"),
    "known-bad": ("published claim, known to be false", COLOURS[1], "X"),
    "planted": ("planted bug", COLOURS[3], "D"),
}
_ROW_INCHES = 0.21
_TITLE = "Claimed and audited epsilon, per message and trusting nobody unless a row says otherwise"


def save(verdicts: Sequence[Verdict], path: Path) -> None:
    """Write the picture as SVG or PNG, by the ending of the path."""
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "veilrec", "text.parse_math": False, "font.size": 9}
    with mpl.rc_context(style):
        metadata: Any = {"Date": None, "Creator": None} if path.suffix == ".svg" else None
        draw(verdicts).savefig(path, facecolor="white", dpi=150, metadata=metadata)


def draw(verdicts: Sequence[Verdict]) -> Figure:
    """The rows in the order of the verdicts, on a logarithmic axis."""
    figure = Figure(figsize=(9.4, 1.3 + _ROW_INCHES * len(verdicts)), layout="constrained")
    axes = figure.add_subplot()
    for row, verdict in enumerate(verdicts):
        _draw_row(axes, row, verdict)
    axes.set(xscale="log", xlim=_limits(verdicts), ylim=(len(verdicts) - 0.4, -0.6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(verdicts)), [_label(verdict) for verdict in verdicts], fontsize=7.5)
    figure.suptitle(_TITLE, x=0.01, horizontalalignment="left", fontsize=10)
    axes.set_xlabel("epsilon: the bar is what is claimed, the point is what an attack has proven")
    axes.grid(axis="x", alpha=0.18)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(*_legend(axes, verdicts), loc="outside lower center", ncols=3, frameon=False)
    return figure


def _draw_row(axes: Axes, row: int, verdict: Verdict) -> None:
    _, colour, marker = _KINDS[verdict.kind]
    claimed, audited = verdict.claimed_epsilon, verdict.lower_bound
    axes.plot((claimed, max(audited, 1e-9)), (row, row), color=colour, linewidth=1.0, alpha=0.6)
    axes.plot(claimed, row, marker="|", markersize=9, markeredgewidth=2.0, color=_INK)
    axes.plot(max(audited, 1e-9), row, marker=marker, markersize=6, color=colour, linestyle="none")


def _legend(axes: Axes, verdicts: Sequence[Verdict]) -> tuple[list[Any], list[str]]:
    shown = [kind for kind in _KINDS if any(verdict.kind == kind for verdict in verdicts)]
    handles = [axes.plot([], [], marker=_KINDS[kind][2], color=_KINDS[kind][1], linestyle="none")[0] for kind in shown]
    return handles, [_KINDS[kind][0] for kind in shown]


def _label(verdict: Verdict) -> str:
    usual = (verdict.scope, verdict.trust) == ("per message", "nobody")
    other = "" if usual else f", {verdict.scope}, trusting: {verdict.trust}"
    terms = f"{verdict.unit}, {verdict.adjacency}{other}, {verdict.delta:g}"
    return f"{verdict.name} {verdict.size}".strip() + f" ({terms})"


def _limits(verdicts: Sequence[Verdict]) -> tuple[float, float]:
    seen = [value for verdict in verdicts for value in (verdict.claimed_epsilon, verdict.lower_bound) if value > 0.0]
    return max(min(seen) / 1.5, 1e-3), max(seen) * 1.5
