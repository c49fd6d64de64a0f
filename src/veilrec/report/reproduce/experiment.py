"""Schema of a reproduced table or figure, and the loader of its YAML file (`veilrec.papers` describes the format)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field, fields
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from veilrec import papers
from veilrec.client.queries import Serving
from veilrec.core.errors import BadInput, known_name, unknown_name
from veilrec.data.datasets import find_dataset

Picture = Literal["points", "rounds", "along", "frontier"]
"""Kind of plot: paper and ours by row, a curve over rounds, a curve over `ExperimentRow.at`, accuracy over epsilon."""
RowCalibration = Literal["as-published", "proven", "none"]
BOTH_PRESETS = ("paper", "tuned")
BOTH_CALIBRATIONS: tuple[RowCalibration, ...] = ("as-published", "proven")
CALIBRATIONS: tuple[RowCalibration, ...] = (*BOTH_CALIBRATIONS, "none")  # none: the same training without noise
TOTALS = ("paper_params", "down_bytes", "up_bytes", "selection_bytes")  # they grow with every round
_CONFIG = ConfigDict(extra="forbid")
_MERGE_KEY = "tag:yaml.org,2002:merge"


def _parse_number(given: Any) -> Any:
    """Read "58.41" or "58.41 ± 0.04"."""
    if not isinstance(given, str):
        return given
    text, _, spread = (part.strip() for part in given.partition("±"))
    return {"text": text, "spread": spread or None}


def _parse_settings(given: Any) -> Any:
    """Turn a mapping into settings as --set takes them."""
    return tuple(f"{name}={value}" for name, value in given.items()) if isinstance(given, Mapping) else given


def _parse_serving(given: Any) -> Any:
    """Refuse unknown keys, which pydantic ignores in a dataclass of the standard library."""
    if isinstance(given, Mapping):
        known = [part.name for part in fields(Serving)]
        for name in given:
            if name not in known:
                raise ValueError(str(unknown_name("option of serving", name, known)))
    return given


Settings = Annotated[tuple[str, ...], BeforeValidator(_parse_settings)]


@dataclass(frozen=True, config=_CONFIG)
class PrintedNumber:
    """A number of a paper, digit by digit, with its spread where the paper gives one."""

    text: str
    spread: str | None = None

    @model_validator(mode="after")
    def _check(self) -> PrintedNumber:
        for text in filter(None, (self.text, self.spread)):
            try:
                Decimal(text)
            except InvalidOperation:
                raise ValueError(f"{text!r} is not a number: write it as the paper prints it, such as 0.650") from None
        return self

    @property
    def value(self) -> float:
        """The number as a float."""
        return float(self.text)

    def from_percent(self) -> PrintedNumber:
        """Convert per cent to a share: the same digits, two places further right."""
        spread = None if self.spread is None else str(Decimal(self.spread).scaleb(-2))
        return PrintedNumber(str(Decimal(self.text).scaleb(-2)), spread)

    def __str__(self) -> str:
        return self.text if self.spread is None else f"{self.text} ± {self.spread}"


@dataclass(frozen=True, config=_CONFIG)
class PrintedTable:
    """The numbers that a paper prints of one panel."""

    columns: tuple[str, ...]  # metrics
    rows: Mapping[str, tuple[Annotated[PrintedNumber, BeforeValidator(_parse_number)], ...]]  # by label
    unit: Literal["", "per cent"] = ""

    @model_validator(mode="after")
    def _check(self) -> PrintedTable:
        for label, numbers in self.rows.items():
            if len(numbers) != len(self.columns):
                raise ValueError(f"row {label!r} has {len(numbers)} numbers for {len(self.columns)} columns")
        return self

    def of(self, label: str) -> dict[str, PrintedNumber]:
        """Look up a row's numbers by metric; empty where the paper prints none."""
        numbers = self.rows.get(label, ())
        shares = [number.from_percent() for number in numbers] if self.unit else numbers
        return dict(zip(self.columns, shares, strict=False))


@dataclass(frozen=True, config=_CONFIG)
class ExperimentRow:
    """A row of the table, or a curve or bar of the figure."""

    label: str  # as the paper calls it
    method: str
    printed: Mapping[str, PrintedNumber] = field(default_factory=dict)  # empty: the paper prints no number
    settings: Settings = ()  # name=value, over the preset
    presets: tuple[str, ...] = BOTH_PRESETS
    calibrations: tuple[RowCalibration, ...] = BOTH_CALIBRATIONS  # of a method that has them
    at: float | None = None  # where on the x axis, for a picture "along" something
    tuned_as_published: Settings = ()  # over preset tuned where the noise is as published
    serving: Annotated[Serving | None, BeforeValidator(_parse_serving)] = None  # None: as the run measured itself
    untrained: bool = False  # the model before its first round; nothing is trained for it
    rounds: int | None = None  # how many, where the row is about that: --quick keeps them
    diverges: bool = False  # with the paper's own settings: a run that ends so is what the row shows
    reads_order: bool = False  # of histories, where that sets a row apart from others
    seeds: int | None = None  # at most so many, where a run takes very long

    @property
    def family(self) -> str:
        """Name of the curve that the row is a point of: "DP-FedMF, epsilon 8" belongs to "DP-FedMF"."""
        return self.label if self.at is None else self.label.rpartition(", ")[0]


@dataclass(frozen=True, config=_CONFIG)
class ExperimentPanel:
    """The rows on one data set."""

    source: str  # "Table 2", "Fig. 7"
    data: str
    rows: tuple[ExperimentRow, ...]
    published_on: str = ""  # the paper's name of its data; empty: no paper has it
    required: bool = True  # False: left out where the data is missing
    x_label: str = ""  # of a picture "along" something, where panels differ; empty: the experiment's
    protocol: str = ""  # where panels differ in it; empty: the experiment's
    trained_for: str = ""  # a protocol with the same training part, whose runs are measured here once more

    @property
    def dataset(self) -> str:
        """Name of the data set, without options."""
        return self.data.partition(":")[0]

    def is_other_data(self, dataset: str) -> bool:
        """Whether the paper's numbers, where it prints any, are of other data than this."""
        synthetic = find_dataset(self.dataset).kind == "synthetic"  # no paper's
        return bool(self.published_on) and (synthetic or dataset != self.dataset)


@dataclass(frozen=True, config=_CONFIG)
class QuickVersion:
    """What --quick does instead: few rounds of one seed on small data."""

    synthetic: str  # data that is generated where there is no other
    rounds: int
    data: str | None = None  # real data, taken where it is found
    epochs: int = 1  # of centralised methods
    settings: Settings = ()  # of every federated method, before those of a row
    furthest: float = math.inf  # rows that lie further along are left out: small data has fewer users
    places: tuple[float, ...] = ()  # the only points of a curve that are run; none: all
    without: tuple[str, ...] = ()  # methods that take too long


@dataclass(frozen=True, config=_CONFIG)
class ExperimentNote:
    """A remark for readers, shown only beside rows of its preset and columns of its metric, where it names any."""

    text: str
    preset: str = ""
    metric: str = ""


@dataclass(frozen=True, config=_CONFIG)
class Experiment:
    """One name that `veilrec reproduce` knows."""

    name: str
    title: str
    paper: str
    protocol: str
    metrics: tuple[str, ...]  # of result.json: metrics, or amounts of communication
    picture: Picture
    panels: tuple[ExperimentPanel, ...]
    quick: QuickVersion
    notes: tuple[
        Annotated[ExperimentNote, BeforeValidator(lambda note: {"text": note} if isinstance(note, str) else note)], ...
    ] = ()
    x_label: str = "Round"
    calculated: str | None = None  # tables that need no training, by their key in `calculated.py`
    usual_presets: tuple[str, ...] = BOTH_PRESETS  # where the user asks for no others
    minutes: int | None = None  # of all of it, with 3 seeds, on two cores with --jobs 2: an estimate
    only_the_end: bool = False  # is evaluated, where adapting to every test user takes longer than training
    source: str = ""  # "Table 2", where there are no panels that say it: an experiment that trains nothing
    bold: str = ""  # the method that a picture is about
    protocols: Mapping[str, str] = field(default_factory=dict)  # another one, by data set

    def sources(self) -> str:
        """Where in the paper it stands."""
        return self.source or ", ".join(dict.fromkeys(panel.source for panel in self.panels))

    def notes_on(self, presets: Collection[str]) -> tuple[str, ...]:
        """Select the notes that concern rows of these presets and the metrics that are shown."""
        return tuple(
            note.text
            for note in self.notes
            if note.preset in ("", *presets) and (not note.metric or note.metric in self.metrics)
        )


@plain_dataclass(frozen=True)
class ResultTable:
    """A table of text cells; the command line and the page print the same one."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[int] = frozenset({0})  # columns of text, which are aligned to the left


class _TextLoader(yaml.SafeLoader):
    """Read every scalar as text, so that a printed 0.650 keeps its last digit; pydantic converts what is no text."""


_TextLoader.yaml_implicit_resolvers = {  # anchors may be merged by <<, and nothing else has a meaning of its own
    first: [pair for pair in resolvers if pair[0] == _MERGE_KEY]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@cache
def load_experiment(name: str) -> Experiment:
    """Load the experiment of that name.

    Raises:
        BadInput: There is no such name, or its file is malformed.
    """
    name = known_name("table or figure", name, papers.NAMES)
    return parse_experiment(name, papers.read_text(name))


def parse_experiment(name: str, text: str) -> Experiment:
    """Parse and validate the text of a YAML file.

    Raises:
        BadInput: It is no YAML, or a key is unknown, missing or has a wrong value.
    """
    where = f"papers/{name}.yaml"
    try:
        document = yaml.load(text, Loader=_TextLoader)  # noqa: S506  a SafeLoader
    except yaml.YAMLError as error:
        raise BadInput(f"{where} is no YAML ({' '.join(str(error).split())})") from None
    if not isinstance(document, dict):
        raise BadInput(f"{where} has no keys and values: it has lines such as `title: Accuracy over rounds`")
    defaults = document.pop("defaults", {})
    document.pop("parts", None)
    try:
        panels = [_panel(panel, defaults) for panel in document.pop("panels", [])]
        found: Experiment = TypeAdapter(Experiment).validate_python({"name": name, "panels": panels, **document})
    except ValidationError as error:
        raise BadInput(f"{where}: {_describe(error)}") from None
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    return found


def _describe(error: ValidationError) -> str:
    """Say where the first problem is and how many more there are."""
    first, *others = error.errors()
    unknown = first["type"] == "unexpected_keyword_argument"
    place = ".".join(str(part) for part in first["loc"])
    problem = "unknown key" if unknown else f"{first['msg']} (it is {first['input']!r})"
    return f"{place}: {problem}" + (f"; and {len(others)} more" if others else "")


def _panel(given: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Expand the rows of a panel and put the paper's numbers beside them."""
    if not isinstance(given, dict) or not isinstance(given.get("rows"), list):
        raise BadInput(f"a panel has a list of rows, and this one has none: {given!r:.80}")
    panel = {**given, "rows": list(_expand(given["rows"], defaults))}
    printed = panel.pop("printed", None)
    if printed is None:
        return panel
    table = TypeAdapter(PrintedTable).validate_python(printed)
    labels = [row.get("label", "") for row in panel["rows"]]
    for label in table.rows:
        if label not in labels:
            raise unknown_name(f"row among the printed numbers of {panel.get('source')}", label, labels)
    panel["rows"] = [{**row, "printed": table.of(row.get("label", ""))} for row in panel["rows"]]
    return panel


def _expand(entry: Any, inherited: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Flatten nested lists and groups; a list of places `at` gives a row for each."""
    if isinstance(entry, list):
        for one in entry:
            yield from _expand(one, inherited)
        return
    if not isinstance(entry, dict):
        raise BadInput(f"a row has keys and values, such as label and method; this is {entry!r}")
    row = {**inherited, **entry}
    if "settings" in inherited and "settings" in entry:
        row["settings"] = {**inherited["settings"], **entry["settings"]}
    nested = row.pop("rows", None)
    if isinstance(row.get("at"), list):
        for place in row["at"]:
            for one in [{}] if nested is None else nested:
                yield from _expand(_put(place, one), _put(place, {**row, "at": place}))
    elif nested is not None:
        yield from _expand(nested, row)
    else:
        yield row


def _put(place: str, value: Any) -> Any:
    """Replace $at in all texts."""
    if isinstance(value, dict):
        return {_put(place, name): _put(place, one) for name, one in value.items()}
    if isinstance(value, list):
        return [_put(place, one) for one in value]
    return value.replace("$at", place)
