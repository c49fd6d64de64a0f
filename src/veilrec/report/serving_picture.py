"""The picture of ways of serving: what users get, and what a query costs in bytes, over the epsilon of one query."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from veilrec._files import replacing
from veilrec.privacy.guarantee import Guarantee
from veilrec.report.plots import COLOURS

_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "veilrec", "font.size": 9, "text.parse_math": False}
_INK = "#22262e"
_LETTERS = 95


def save_ways(found: Mapping[str, Any], path: Path) -> None:
    """Write what `evaluate_servings` found as SVG or PNG, by the name of the file."""
    about: Any = {"Date": None} if path.suffix == ".svg" else None
    with mpl.rc_context(_STYLE), replacing(path) as part:
        draw_ways(found).savefig(part, format=path.suffix[1:], facecolor="white", dpi=130, metadata=about)


def draw_ways(found: Mapping[str, Any]) -> Figure:
    """A line for every way that has an epsilon, level lines for the others; bytes beside it."""
    figure = Figure(figsize=(10.0, 5.6), layout="constrained")
    quality, size = figure.subplots(1, 2, width_ratios=(3, 2))
    private = list(dict.fromkeys(way["serving"] for way in found["ways"] if way["epsilon"] is not None))
    for number, mode in enumerate(private):
        ways = [way for way in found["ways"] if way["serving"] == mode]
        style: Any = {"color": COLOURS[number % len(COLOURS)], "marker": "o", "markersize": 4}
        promise = Guarantee.from_json(ways[0]["guarantee"])
        label = f"{mode}: {promise.line()}" + (" (the leftmost point)" if len(ways) > 1 else "")
        epsilons = [way["epsilon"] for way in ways]
        auc = [way["metrics"]["auc"] for way in ways]
        quality.plot(epsilons, auc, label=textwrap.fill(label, _LETTERS), **style)
        size.plot(epsilons, [way["bytes_up"] + way["bytes_down"] for way in ways], **style)
    quality.axhline(found["plain"]["auc"], color=_INK, linewidth=1.0, label="the model itself: plain and none-sent")
    popularity = found["baselines"]["popularity"]["auc"]
    quality.axhline(popularity, color=_INK, linewidth=1.0, linestyle=":", label="popularity")
    for way in found["ways"]:
        if way["serving"] == "none-sent":
            size.axhline(way["bytes_down"], color=_INK, linewidth=1.0, linestyle="--")
            size.text(0.02, way["bytes_down"], "none-sent", transform=size.get_yaxis_transform(), va="bottom")
    for axes in (quality, size):
        axes.set(xscale="log", xlabel="epsilon of one query")
        axes.grid(alpha=0.18)
        axes.spines[["top", "right"]].set_visible(False)
    ticks = sorted({way["epsilon"] for way in found["ways"] if way["epsilon"] is not None})
    for axes in (quality, size):
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
        axes.set_xticks([], minor=True)
    quality.set_ylabel("AUC of the lists that were shown")
    size.set(ylabel="bytes of a query and its answer", yscale="log")
    size.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    figure.suptitle(f"{found['method']} on {found['dataset']}, seed {found['seed']}", x=0.01, ha="left", fontsize=10)
    figure.legend(loc="outside lower center", ncols=1, frameon=False, fontsize=8)
    return figure
