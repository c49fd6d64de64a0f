"""Claimed against audited epsilon: above the diagonal a claim is refuted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

from veilrec.report.plots import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from veilrec.privacy.audit.auditor import Verdict

_LOOKS = {
    "proven": ("proven claim", COLOURS[2], "o"),
    "known-bad": ("published claim, known to be false", COLOURS[1], "X"),
    "planted": ("planted bug", COLOURS[3], "D"),
}


def save(verdicts: Sequence[Verdict], path: Path) -> None:
    """Write the picture as SVG or PNG, by the ending of the path."""
    style: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "veilrec",
        "text.parse_math": False,
        "font.size": 10,
    }
    with mpl.rc_context(style):
        metadata: Any = {"Date": None, "Creator": None} if path.suffix == ".svg" else None
        draw(verdicts).savefig(path, facecolor="white", dpi=150, metadata=metadata)


def draw(verdicts: Sequence[Verdict]) -> Figure:
    """A point per claim; both axes logarithmic."""
    figure = Figure(figsize=(8.4, 5.6), layout="constrained")
    axes = figure.add_subplot()
    low, high = _limits(verdicts)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes.plot((low, high), (low, high), color="#3d4451", linewidth=1.0)
    axes.fill_between((low, high), (low, high), (high, high), color=COLOURS[1], alpha=0.07, linewidth=0)
    axes.text(low * 1.2, high / 1.2, "refuted: more is given away than claimed", va="top", color="#3d4451")
    for kind, (label, colour, marker) in _LOOKS.items():
        _points(axes, [verdict for verdict in verdicts if verdict.kind == kind], label, colour, marker, low)
    axes.set_title("Claimed and audited epsilon, per message", loc="left")
    axes.set_xlabel("claimed epsilon (each at its own delta, unit and adjacency)")
    axes.set_ylabel("audited epsilon: at least")
    axes.grid(alpha=0.18)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    return figure


def _points(
    axes: Axes, verdicts: Sequence[Verdict], label: str, colour: str, marker: str, low: float
) -> None:
    if not verdicts:
        return
    claimed = [verdict.claimed_epsilon for verdict in verdicts]
    audited = [max(verdict.lower_bound, low) for verdict in verdicts]
    axes.scatter(claimed, audited, label=label, color=colour, marker=marker, s=42, alpha=0.85, linewidths=0)
    for verdict, x, y in zip(verdicts, claimed, audited, strict=True):
        if verdict.verdict == "refuted":
            axes.annotate(verdict.name, (x, y), (5, 3), textcoords="offset points", fontsize=7)


def _limits(verdicts: Sequence[Verdict]) -> tuple[float, float]:
    claimed = [verdict.claimed_epsilon for verdict in verdicts]
    audited = [verdict.lower_bound for verdict in verdicts]
    return max(min(claimed) / 2, 1e-3), max(*claimed, *audited) * 2
