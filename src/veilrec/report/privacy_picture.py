"""The picture of a privacy statement: what stays on a device, what leaves it, what is released, and who sees what."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from veilrec.privacy.guarantee import Guarantee
from veilrec.report.html import Markup, join, tag

Where = Literal["devices", "one place", "nowhere"]
"""Where people's data is used: on their devices, all of it in one place, or none of it at all."""

_WIDTH, _MARGIN, _LINE, _SIZE = 360, 8, 17, 13  # drawn for a telephone; larger screens leave it as it is
_LETTERS = 44  # that fit into a line of a box: 0.55 of the size each, on average, and some to spare
_BESIDE = 38  # and beside an arrow
_INK, _NOISE, _OPEN = "#1c2028", "#0b5cad", "#a33a00"


@dataclass(frozen=True)
class Station:
    """Somebody, what they have, and what they see of a person."""

    name: str
    lines: tuple[str, ...]
    adds_noise: bool = False
    sees_everything: bool = False


@dataclass(frozen=True)
class Flow:
    """From station to station, with what passes between them."""

    stations: tuple[Station, ...]
    passes: tuple[str, ...]  # one fewer

    def words(self) -> str:
        """The picture for whoever cannot see it."""
        told = []
        for station, passing in zip(self.stations, (*self.passes, ""), strict=True):
            told.append(f"{station.name}: {' '.join(station.lines)}")
            if passing:
                told.append(f"From there to the next: {passing}.")
        return " ".join(told)


_MASKED = "messages that only their sum can be read of"
_CUTS = ("Keeps what was used and shown.", "Cuts its message to a fixed size.")


def flow_of(g: Guarantee, where: Where, *, adds_noise: bool = False) -> Flow:
    """What passes between whom under a guarantee; all data in one place is a picture of its own.

    `adds_noise` is for a run that promises nothing although it adds noise to its sums.
    """
    reader = _reader(g)
    if where == "nowhere":
        person = Station("A person", ("Keeps everything: nobody's data is used.",))
        return Flow((person, Station("Whoever gets the model", ("Gets chance, and learns nothing.",))), ("nothing",))
    if where == "one place":
        server = Station(
            "The operator", ("Has everybody's data in one place and sees all of it.",), sees_everything=True
        )
        person = Station("A person", ("Nothing stays with the person.",))
        return Flow((person, server, reader), ("everything that the person used", "the trained model, exact"))
    if g.basis == "none" and adds_noise:
        return _trusted(reader)
    if g.basis == "none" or (g.honest_epsilon is None and g.basis == "as published"):
        device = Station("A person's device", ("Keeps what was used and shown, and learns from it.",))
        server = Station(
            "The operator of the server",
            ("Sees every message as it is, and can read from it what the person used.",),
            sees_everything=True,
        )
        return Flow((device, server, reader), ("messages that no noise protects", "the trained model"))
    if g.trust == "nobody":
        device = Station(
            "A person's device",
            ("Keeps what was used and shown.", "Cuts its message to a fixed size and adds noise."),
            adds_noise=True,
        )
        server = Station("The operator of the server", ("Sees messages with noise only.", *reader.lines))
        return Flow((device, server, reader), ("messages with noise", "the trained model"))
    if g.trust == "server sees only noisy sums":
        device = Station("A person's device", (*_CUTS, "Adds its part of the noise."), adds_noise=True)
        server = Station("The operator of the server", ("Sees only the sum over many devices, with noise.",))
        return Flow((device, server, reader), (_MASKED, "the sum with noise"))
    if g.trust == "server sees only sums":
        device = Station("A person's device", _CUTS)
        server = Station(
            "The operator of the server",
            ("Sees the exact sum over many devices, and no single message.", "Adds noise to it: trusted with that."),
            adds_noise=True,
        )
        return Flow((device, server, reader), (_MASKED, "the sum with noise"))
    return _trusted(reader)


def _trusted(reader: Station) -> Flow:
    """A server that adds the noise."""
    device = Station("A person's device", _CUTS)
    server = Station(
        "The operator of the server",
        ("Sees every message, and has to be trusted.", "Adds them up and adds noise to the sum."),
        adds_noise=True,
        sees_everything=True,
    )
    return Flow((device, server, reader), ("messages, one a round at most", "sums with noise: the trained model"))


def _reader(g: Guarantee) -> Station:
    name = "Whoever gets the model"
    if g.basis == "none":
        return Station(name, ("Nothing is promised about what it gives away.",), sees_everything=True)
    if g.basis == "as published":
        return Station(name, ("May learn far more about a person than the paper claims: see below.",))
    return Station(name, ("Learns no more about any one person than the statement allows.",))


def draw(flow: Flow) -> Markup:
    """The picture as SVG, with its words for those who do not see it."""
    parts: list[Markup] = []
    y = _MARGIN
    for number, station in enumerate(flow.stations):
        if number:
            drawn, y = _arrow(flow.passes[number - 1], y)
            parts.append(drawn)
        drawn, y = _box(station, y)
        parts.append(drawn)
    height = y + _MARGIN
    title = tag("title", "What leaves a device, what is released, and who sees what", id="picture-title")
    described = tag("desc", flow.words(), id="picture-words")
    head = Markup(
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 Z" fill="{_INK}"/></marker></defs>'
    )
    return tag(
        "svg",
        join([title, described, head, *parts]),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {height}",
        role="img",
        aria_labelledby="picture-title picture-words",
        font_family="system-ui, sans-serif",
        font_size=str(_SIZE),
    )


def _box(station: Station, top: int) -> tuple[Markup, int]:
    lines = [wrapped for line in station.lines for wrapped in textwrap.wrap(line, _LETTERS)]
    marks = [
        ("noise is added here", _NOISE) if station.adds_noise else None,
        ("sees single people's data", _OPEN) if station.sees_everything else None,
    ]
    notes = [mark for mark in marks if mark is not None]
    height = _LINE * (1 + len(lines) + len(notes)) + 12
    edge = _OPEN if station.sees_everything else _NOISE if station.adds_noise else _INK
    box = tag(
        "rect",
        x=str(_MARGIN),
        y=str(top),
        width=str(_WIDTH - 2 * _MARGIN),
        height=str(height),
        rx="6",
        fill="#ffffff",
        stroke=edge,
        stroke_width="1.6",
    )
    left, baseline = _MARGIN + 10, top + _LINE + 2
    texts = [_text(station.name, left, baseline, font_weight="700")]
    texts += _column(lines, left, baseline + _LINE)
    below = baseline + _LINE * (1 + len(lines))
    texts += [
        _text(words, left, below + _LINE * place, fill=colour, font_weight="600")
        for place, (words, colour) in enumerate(notes)
    ]
    return join([box, *texts]), top + height


def _arrow(passing: str, top: int) -> tuple[Markup, int]:
    lines = textwrap.wrap(passing, _BESIDE)
    height = _LINE * len(lines) + 22
    line = tag(
        "line",
        x1="40",
        y1=str(top + 3),
        x2="40",
        y2=str(top + height - 3),
        stroke=_INK,
        stroke_width="1.6",
        marker_end="url(#tip)",
    )
    return join([line, *_column(lines, 56, top + 9 + _SIZE)]), top + height


def _column(lines: Sequence[str], x: int, y: int) -> list[Markup]:
    return [_text(line, x, y + _LINE * number) for number, line in enumerate(lines)]


def _text(words: str, x: int, y: int, **attributes: str) -> Markup:
    return tag("text", words, x=str(x), y=str(y), **({"fill": _INK} | attributes))
