"""What an experiment is: a table or figure of a paper as data, with the numbers that the paper prints."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

from veilrec.data.datasets import find_dataset
from veilrec.device.ways import Serving
from veilrec.report.plots import Curve

Picture = Literal["points", "rounds", "along", "frontier"]
"""What is drawn: theirs and ours by method, a curve over rounds, a curve over `Row.at`, or what privacy costs."""

BOTH_PRESETS = ("paper", "tuned")
BOTH_CALIBRATIONS = ("as-published", "proven")
TOTALS = ("paper_params", "down_bytes", "up_bytes", "selection_bytes")  # they grow with every round
CALIBRATIONS = (*BOTH_CALIBRATIONS, "none")  # none: the same training without noise, where a row asks for it


@dataclass(frozen=True)
class Printed:
    """A number of a paper, digit by digit, with its spread where the paper gives one."""

    text: str
    spread: str | None = None

    @property
    def value(self) -> float:
        """The number."""
        return float(self.text)

    def __str__(self) -> str:
        return self.text if self.spread is None else f"{self.text} ± {self.spread}"


def percent(text: str, spread: str) -> Printed:
    """A number printed in per cent, as a share: the same digits, two places further right."""
    return Printed(str(Decimal(text).scaleb(-2)), str(Decimal(spread).scaleb(-2)))


@dataclass(frozen=True)
class Row:
    """A row of the table, or a curve or bar of the figure."""

    label: str  # as the paper calls it
    method: str
    printed: Mapping[str, Printed] = field(default_factory=dict)  # empty: the paper prints no number
    settings: tuple[str, ...] = ()  # name=value, over the preset
    presets: tuple[str, ...] = BOTH_PRESETS
    calibrations: tuple[str, ...] = BOTH_CALIBRATIONS  # of a method that has them
    at: float | None = None  # where on the x axis, for a picture "along" something
    tuned_as_published: tuple[str, ...] = ()  # settings over preset tuned where the noise is as published
    serving: Serving | None = None  # measured as it is asked so; None: as the run itself measured it
    untrained: bool = False  # the model before its first round; nothing is trained for it
    rounds: int | None = None  # how many, where the row is about that: --quick keeps them
    diverges: bool = False  # with the paper's own settings: a run that ends so is what the row shows
    reads_order: bool = False  # of histories, where that sets a row apart from others
    seeds: int | None = None  # at most so many, where a run takes very long

    @property
    def family(self) -> str:
        """What it is called without where it lies: "DP-FedMF, epsilon 8" is of the curve "DP-FedMF"."""
        return self.label if self.at is None else self.label.rpartition(", ")[0]


@dataclass(frozen=True)
class Panel:
    """The rows on one data set."""

    source: str  # "Table 2", "Fig. 7"
    data: str
    rows: tuple[Row, ...]
    published_on: str  # the paper's name of its data; empty: it is no paper's
    required: bool = True  # False: left out where the data is missing
    x_label: str = ""  # of a picture "along" something, where panels differ; empty: the experiment's
    protocol: str = ""  # where panels differ in it; empty: the experiment's
    trained_for: str = ""  # a protocol with the same training part, whose runs are measured here once more

    @property
    def dataset(self) -> str:
        """The name of its data, without options."""
        return self.data.partition(":")[0]

    def is_other_data(self, dataset: str) -> bool:
        """Whether the paper's numbers, where it prints any, are of other data than this."""
        made_up = find_dataset(self.dataset).kind == "synthetic"  # no paper's
        return bool(self.published_on) and (made_up or dataset != self.dataset)


@dataclass(frozen=True)
class Quick:
    """What --quick does instead: few rounds of one seed on small data."""

    data: str | None  # real data, taken where it is found
    made_up: str  # taken otherwise
    rounds: int
    epochs: int = 1  # of centralised methods
    settings: tuple[str, ...] = ()  # of every federated method, before those of a row
    furthest: float = math.inf  # rows that lie further along are left out: small data has no such many
    places: tuple[float, ...] = ()  # the only ones of a curve that are run; none: all
    without: tuple[str, ...] = ()  # methods that take too long


@dataclass(frozen=True)
class Grid:
    """A table of words; the command line and the page print the same one."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[int] = frozenset({0})  # columns that are read, not compared: they stand to the left


@dataclass(frozen=True)
class Calculated:
    """What an experiment shows that needs no training."""

    grids: Sequence[Grid] = ()
    curves: Sequence[Curve] = ()
    x_label: str = ""
    y_label: str = ""


@dataclass(frozen=True)
class Note:
    """What a reader has to know of rows of one preset, or of a column; said only where there are such."""

    text: str
    preset: str = ""
    metric: str = ""


@dataclass(frozen=True)
class Experiment:
    """One name that `veilrec reproduce` knows."""

    name: str
    title: str
    paper: str
    protocol: str
    protocols: Mapping[str, str] = field(default_factory=dict, kw_only=True)  # another one, by data set
    metrics: tuple[str, ...]  # of result.json: metrics, or amounts of communication
    picture: Picture
    panels: tuple[Panel, ...]
    quick: Quick
    notes: tuple[str | Note, ...] = ()
    x_label: str = "Round"
    calculated: Callable[[], Calculated] = Calculated
    usual_presets: tuple[str, ...] = BOTH_PRESETS  # where nobody asks for others
    minutes: int | None = None  # of all of it, with 3 seeds, on two cores with --jobs 2: an estimate
    only_the_end: bool = False  # is evaluated, where adapting to every test user takes longer than training
    source: str = ""  # "Table 2", where there are no panels that say it: an experiment that trains nothing
    bold: str = ""  # the method that a picture is about

    def sources(self) -> str:
        """Where in the paper it stands."""
        return self.source or ", ".join(dict.fromkeys(panel.source for panel in self.panels))

    def notes_on(self, presets: Collection[str]) -> tuple[str, ...]:
        """The notes that concern what is shown, where rows of these presets are."""
        every = (note if isinstance(note, Note) else Note(note) for note in self.notes)
        return tuple(
            note.text
            for note in every
            if note.preset in ("", *presets) and (not note.metric or note.metric in self.metrics)
        )
