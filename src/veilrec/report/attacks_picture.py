"""The picture of attacks on a training: for every method, a bar for what each adversary got."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from veilrec.report.attack_picture import save_picture
from veilrec.report.plots import COLOURS

if TYPE_CHECKING:
    from veilrec.runs.attacking_training import Result

_INK, _TRUSTED = "#22262e", "#9aa1ac"
_BASES = {"proven": COLOURS[2], "as published": COLOURS[1], "none": COLOURS[0]}
_AXES = {
    "membership": ("AUC of telling who was there, with a 95 % interval; the dotted line is guessing", 0.3, 1.0),
    "row-support": ("share of a history found by its rows, at 1 % false; the dotted stroke is chance", 0.0, 1.0),
    "inversion": ("share of a history worked out from numbers, at 1 % false; the dotted stroke is chance", 0.0, 1.0),
    "poisoning": ("exposure: share of honest users with the promoted item among their first ten", 0.0, 1.0),
}
_BAR, _LINE, _LETTERS = 0.24, 0.16, 50
_UNPROTECTED = ("update", "secure sum")  # seen by a server that a method trusts, or before its noise


@dataclass(frozen=True)
class Bar:
    """One finding."""

    value: float
    interval: tuple[float, float] | None
    chance: float | None
    text: str
    colour: str


def save(found: Sequence[Result], path: Path) -> None:
    """Write the bars as SVG or PNG, by the name of the file."""
    save_picture(draw, found, path)


def draw(found: Sequence[Result]) -> Figure:
    """A group of bars for every subject."""
    groups = [(_name(one), list(_bars(one))) for one in found]
    rooms = [0.14 + max(_LINE * (name.count("\n") + 1), _BAR * len(bars)) for name, bars in groups]
    title, low, high = _AXES[found[0].attack]
    figure = Figure(figsize=(9.0, 1.1 + sum(rooms)), layout="constrained")
    axes = figure.add_subplot()
    centres, at = [], 0.0
    for (_, bars), room in zip(groups, rooms, strict=True):
        centres.append(at + room / 2)
        top = centres[-1] - _BAR * (len(bars) - 1) / 2
        for number, bar in enumerate(bars):
            place = top + number * _BAR
            axes.barh(place, bar.value - low, left=low, height=0.16, color=bar.colour)
            if bar.interval is not None:
                reach = [[max(0.0, bar.value - bar.interval[0])], [max(0.0, bar.interval[1] - bar.value)]]
                axes.errorbar(bar.value, place, xerr=reach, color=_INK, capsize=2, linewidth=1.0)
            if bar.chance is not None:
                axes.plot([bar.chance] * 2, [place - 0.1, place + 0.1], color=_INK, linewidth=1.1, linestyle=":")
            right = bar.value if bar.interval is None else bar.interval[1]
            axes.text(max(right, low) + 0.012 * (high - low), place, bar.text, va="center", fontsize=7.5)
        at += room
    axes.set_yticks(centres, [name for name, _ in groups], fontsize=7.5)
    axes.tick_params(axis="y", length=0)
    axes.set(ylim=(at + 0.03, -0.03), xlim=(low, high + 0.55 * (high - low)))
    axes.set_xticks([tick / 10 for tick in range(int(10 * low), int(10 * high) + 1, 1 if low > 0.0 else 2)])
    axes.set_xlabel(title, fontsize=9)
    axes.grid(axis="x", alpha=0.18)
    axes.set_axisbelow(True)
    data = ", ".join(dict.fromkeys(Path(one.subject.data).name for one in found))
    axes.set_title(f"{found[0].attack}: {data}", loc="left", fontsize=10)
    return figure


def _name(one: Result) -> str:
    """The label, and the guarantee in full: an epsilon alone says nothing."""
    lines = [one.subject.label, one.subject.claimed.line()]
    return "\n".join(part for line in lines for part in textwrap.wrap(line, _LETTERS))


def _bars(one: Result) -> Iterator[Bar]:
    usual = _BASES[one.subject.claimed.basis]
    for finding in one.findings:
        f: Any = finding
        if one.attack == "membership":
            text = f"{f.auc:.3f} {f.view}, {f.kind}; epsilon ≥ {f.epsilon_lower:.2f}"
            yield Bar(f.auc, f.interval, 0.5, text, usual)
        elif one.attack == "poisoning":
            if f.poison is not None and f.exposure is not None:
                text = f"{f.exposure:.3f} {f.poison}, {f.share:.1%}, {f.defence}; {f.metric.upper()} {f.quality:.3f}"
                yield Bar(f.exposure, None, None, text, usual if f.defence != "none" else _TRUSTED)
        else:
            r = f.recovery
            protects = one.subject.claimed.trust == "server"
            open_to = f.view in _UNPROTECTED or (protects and f.view == "message")
            shown = f"{r.recall:.3f} {f.view}" + ("" if one.attack == "inversion" else f", {f.by}")
            yield Bar(r.recall, r.interval, r.chance, shown, _TRUSTED if open_to else usual)
