"""Which columns of your own data are features, and which hold titles, as a YAML file says it.

    users:
      file: people.csv          # optional: a second table; without it the columns are those of the log
      key: customer             # its column of ids; default: user, or item
      features:
        age: {kind: number, low: 0, high: 100}
        country: {kind: category, values: [DE, FR, PE]}
    items:
      file: films.csv
      title: name               # of items only, optional: its columns of titles, and of longer texts
      abstract: plot
      features:                 # may be left out beside a title
        genres: {kind: categories, separator: "|"}

What is not given (values; low and high) is taken from the data, and is then as public as the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import polars as pl
import yaml

from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.errors import BadInput, bad_line, unknown_name
from veilrec.core.features import MIDDLE, Entries, Feature, Features, Kind, Side, assembled, text_entries, without_rows
from veilrec.data.delimited import CsvOptions, FaultyFile, RawRows, read_rows, refusal, with_point
from veilrec.data.population import ItemTable, Strings
from veilrec.data.text_files import encode, unpack

SIDES = {"users": "user", "items": "item"}  # and what their ids are called
ITEM_TEXTS = ("title", "abstract")  # of items
_OF_A_SIDE = {"users": ("file", "key", "features"), "items": ("file", "key", "features", *ITEM_TEXTS)}
_OF_A_FEATURE: Mapping[str, tuple[str, ...]] = {
    "category": ("kind", "values"),
    "categories": ("kind", "values", "separator"),
    "number": ("kind", "low", "high"),
}
_ENDINGS = (".gz", ".csv", ".tsv", ".txt", ".parquet")
_EXAMPLE = "`users: {features: {age: {kind: number, low: 0, high: 100}}}`"


@dataclass(frozen=True)
class Wanted:
    """A column that becomes a feature, as far as the file says how."""

    name: str
    kind: Kind
    values: tuple[str, ...] | None = None  # None: those that occur
    low: float | None = None  # None: the lowest that occurs
    high: float | None = None
    separator: str = "|"


@dataclass(frozen=True)
class SideSchema:
    """The features of users or of items."""

    name: str  # "users" or "items"
    file: Path | None  # None: the log itself
    key: str  # the column of ids in that file
    wanted: tuple[Wanted, ...]
    texts: Mapping[str, str] = field(default_factory=dict)  # of `ITEM_TEXTS`, the columns that hold them

    @property
    def columns(self) -> tuple[str, ...]:
        """All that are read, but for the ids."""
        return tuple(dict.fromkeys((*(wanted.name for wanted in self.wanted), *self.texts.values())))


@dataclass(frozen=True)
class FeatureSchema:
    """What a file says of both sides; one that it does not name has no features."""

    path: Path
    sides: tuple[SideSchema, ...]

    @property
    def sources(self) -> list[Path]:
        """Every file that the features depend on, beside the log."""
        return [self.path, *(side.file for side in self.sides if side.file is not None)]

    @property
    def log_columns(self) -> tuple[str, ...]:
        """The columns of the log that are features or texts."""
        return tuple(dict.fromkeys(name for side in self.sides if side.file is None for name in side.columns))


def beside(log: Path) -> Path | None:
    """The schema that lies beside a log (clicks.features.yaml for clicks.csv), if there is one."""
    name = log.name
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    found = log.with_name(f"{name}.features.yaml")
    return found if found.is_file() else None


def read_schema(path: Path) -> FeatureSchema:
    """Read and check a file of features."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{path} is no YAML (not UTF-8): write a text file such as {_EXAMPLE}") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}): give a YAML file of features") from None
    return FeatureSchema(path, parse_schema(text, str(path), path.parent))


def parse_schema(text: str, where: str, folder: Path) -> tuple[SideSchema, ...]:
    """The sides that a text names; files are looked for from the folder on."""
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"{where} is no YAML ({reason}): write for instance {_EXAMPLE}") from None
    sides = _mapping(found, where, "users: and items:")
    _only(sides, SIDES, where)
    return tuple(_parse_side(name, sides[name], f"{where}, {name}", folder) for name in SIDES if name in sides)


def _parse_side(name: str, given: Any, where: str, folder: Path) -> SideSchema:
    side = _mapping(given, where, "features:")
    _only(side, _OF_A_SIDE[name], where)
    texts = {text: _column_of(side[text], text, where) for text in ITEM_TEXTS if side.get(text) is not None}
    if "abstract" in texts and "title" not in texts:
        raise BadInput(f"{where}: abstract is given and title is not: name the column of titles, too")
    columns = side.get("features")
    if columns is not None or not texts:
        columns = _mapping(columns, f"{where}, features", "columns such as age: {kind: number}")
    file = side.get("file")
    if file is not None and not (isinstance(file, str) and file):
        raise BadInput(f"{where}: file is {file!r}: give the name of a file")
    key = side.get("key", SIDES[name])
    if not isinstance(key, str | int) or key == "":
        raise BadInput(f"{where}: key is {key!r}: give the name of the column with the ids")
    if "key" in side and file is None:
        raise BadInput(f"{where}: key is for a second file, and none is given: add file:, or leave key: out")
    place = None if file is None else folder / Path(file).expanduser()
    if place is not None and not place.is_file():
        raise BadInput(f"{where}: {place} is not there: give file: as seen from the folder of the YAML file")
    wanted = tuple(_wanted(str(name), column, f"{where}, {name}") for name, column in (columns or {}).items())
    return SideSchema(name, place, str(key), wanted, texts)


def _column_of(given: Any, what: str, where: str) -> str:
    if not isinstance(given, str | int) or isinstance(given, bool) or given == "":
        raise BadInput(f"{where}: {what} is {given!r}: give the name of the column that holds it")
    return str(given)


def _wanted(name: str, given: Any, where: str) -> Wanted:
    column = _mapping(given, where, "kind: category, categories or number")
    kind: Any = column.get("kind")
    if not isinstance(kind, str) or kind not in _OF_A_FEATURE:
        raise BadInput(f"{where}: {unknown_name('kind', str(kind), get_args(Kind))}")
    _only(column, _OF_A_FEATURE[kind], f"{where} (a {kind})" if kind != "categories" else f"{where} (categories)")
    separator = column.get("separator", "|")
    if not isinstance(separator, str) or not separator:
        raise BadInput(f"{where}: separator is {separator!r}: give what stands between values, such as '|'")
    low, high = (_bound(column.get(end), end, where) for end in ("low", "high"))
    values = None if column.get("values") is None else _values(column["values"], where)
    if low is not None and high is not None:
        try:
            Feature(name, "number", low=low, high=high)
        except BadInput as error:
            raise BadInput(f"{where}: {error}") from None
    return Wanted(name, cast(Kind, kind), values, low, high, separator)


def _values(given: Any, where: str) -> tuple[str, ...]:
    if not isinstance(given, list) or not given:
        raise BadInput(f"{where}: values is {given!r}: give a list such as [DE, FR], or leave it out")
    for value in given:
        if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
            raise BadInput(f"{where}: {value!r} in values is neither a text nor a number: put it in quotes")
    values = tuple(str(value).strip() for value in given)
    twice = [value for value in values if values.count(value) > 1]
    if twice:
        raise BadInput(f"{where}: {twice[0]!r} stands twice in values: list every value once")
    return values


def _bound(given: Any, end: str, where: str) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not _finite(given):
        raise BadInput(f"{where}: {end} is {given!r}: give a finite number")
    return float(given)


def _finite(number: float) -> bool:
    try:
        return math.isfinite(float(number))
    except OverflowError:
        return False


def _mapping(given: Any, where: str, expected: str) -> dict[Any, Any]:
    if not isinstance(given, dict) or not given:
        raise BadInput(f"{where}: expected is {expected}, found {_shown(given)}; write for instance {_EXAMPLE}")
    return given


def _only(given: Mapping[Any, Any], known: Mapping[str, Any] | tuple[str, ...], where: str) -> None:
    for key in given:
        if key not in known:
            raise BadInput(f"{where}: {unknown_name('key', str(key), known)}")


def _shown(given: Any) -> str:
    return "nothing" if given is None or given == {} else repr(given)[:60]


MOST_VALUES = 1000  # of a category whose values are not given: the most frequent ones
UNSAID = ("", "unknown")  # what files write where they know nothing


def side_of(frame: pl.DataFrame, features: Sequence[Feature]) -> Side:
    """A side from the columns that are called like its features, a row for each row."""
    entries: list[Entries] = []
    numbers: list[Floats] = []
    for feature in features:
        column = frame[feature.name]
        if feature.kind == "number":
            numbers.append(feature.scaled(as_numbers(column).fill_null(float("nan")).to_numpy()))
        else:
            codes, distinct = encode(column.cast(pl.String).fill_null(""))
            entries.append(text_entries(feature, distinct, codes))
    return assembled(features, len(frame), entries, numbers)


def as_numbers(column: pl.Series) -> pl.Series:
    """A column as numbers, null where it holds none; infinite ones stay."""
    plain = column.str.strip_chars() if column.dtype == pl.String else column
    return plain.cast(pl.Float64, strict=False)


def found_values(column: pl.Series, kind: Kind = "category", separator: str = "|") -> tuple[str, ...]:
    """The values that occur, sorted; of very many the most frequent."""
    texts = column.cast(pl.String).drop_nulls()
    if kind == "categories":
        texts = texts.str.split(separator).explode().drop_nulls()
    plain = texts.str.strip_chars()
    counts = plain.filter(~plain.is_in(UNSAID)).rename("value").value_counts()
    frequent = counts.sort("count", "value", descending=[True, False]).head(MOST_VALUES)
    return tuple(sorted(frequent["value"].to_list()))


def modal(owners: Offsets | Indices, column: pl.Series, count: int) -> pl.Series:
    """The text that each owner's rows have most often, of those that say something; null where none does."""
    plain = column.cast(pl.String).str.strip_chars()
    rows = pl.DataFrame({"owner": np.asarray(owners, np.int64), "value": plain})
    said = rows.filter(pl.col("value").is_not_null() & ~pl.col("value").is_in(UNSAID))
    ranked = said.group_by("owner", "value").len().sort("owner", "len", "value", descending=[False, True, False])
    first = ranked.unique("owner", keep="first", maintain_order=True)
    owners_all = pl.DataFrame({"owner": np.arange(count, dtype=np.int64)})
    return owners_all.join(first, on="owner", how="left", maintain_order="left")["value"]


UNKNOWN_NUMBERS = "unknown_numbers: "  # how the facts begin that say how many rows lack a number
Facts = dict[str, int | float | str]


@dataclass(frozen=True)
class Described:
    """What is known of people and items beside their ids."""

    features: Features | None  # None: the schema names texts alone
    catalogue: ItemTable | None  # None: it names no titles
    facts: Facts  # what is worth saying of it


@dataclass(frozen=True)
class _SideColumns:
    """The columns of a side, and whose each row is."""

    where: str
    frame: pl.DataFrame  # texts, by the names of the features
    owners: Indices  # [rows], -1 for one that the log does not have: its values count, without an owner
    ids: Strings

    @property
    def count(self) -> int:
        """How many users or items there are."""
        return len(self.ids)


def own_features(
    schema: FeatureSchema, log: pl.DataFrame, owners: Mapping[str, Indices], ids: Mapping[str, Strings], decimal: str
) -> Described:
    """What a schema asks for; `log` has its columns of the log."""
    sides = {name: without_rows((), len(some)) for name, some in ids.items()}
    catalogue = None
    facts: Facts = {"features_from": schema.path.name}
    for asked in schema.sides:
        if asked.file is None:
            columns = _SideColumns(f"{schema.path}, {asked.name}", log, owners[asked.name], ids[asked.name])
        else:
            columns, absent = _second_file(asked, asked.file, ids[asked.name])
            facts |= {f"{asked.name}_without_features": absent} if absent else {}
        sides[asked.name], more = _side(asked, columns, decimal)
        facts |= more
        if asked.texts:
            catalogue = _catalogue(asked, columns)
            facts["titles_read"] = int((np.diff(catalogue.titles.offsets) > 0).sum())
    described = any(asked.wanted for asked in schema.sides)
    return Described(Features(sides["users"], sides["items"]) if described else None, catalogue, facts)


def _catalogue(asked: SideSchema, columns: _SideColumns) -> ItemTable:
    """The texts of items; of several in a log the most frequent."""
    texts = {
        text: Strings.of(modal(columns.owners, columns.frame[column], columns.count).fill_null(""))
        for text, column in asked.texts.items()
    }
    return ItemTable(texts["title"], Strings.of("" for _ in range(columns.count)), abstracts=texts.get("abstract"))


def text_column(raw: RawRows, name: str, where: str) -> pl.Series:
    """A column as text, by the name that the header gives it."""
    places = [place for place, column in enumerate(raw.names) if column.strip() == name]
    if not places:
        raise BadInput(f"{where}: {raw.path} has no such column; {unknown_name('column', name, raw.names)}")
    if len(places) > 1:
        raise BadInput(f"{where}: column {name!r} occurs {len(places)} times in {raw.path}: rename all but one")
    column = raw.frame[str(places[0])]
    if column.dtype.is_nested():
        raise BadInput(f"{raw.path}: column {name!r} holds lists and not single values: join them with | in a text")
    return column.cast(pl.String).fill_null("").rename(name)


def _second_file(asked: SideSchema, path: Path, ids: Strings) -> tuple[_SideColumns, int]:
    """The rows of a table that lists users or items, and how many of those in the log it lacks."""
    raw = read_rows(path, CsvOptions())
    if raw.faults:
        bad = sum(len(fault.lines) for fault in raw.faults)
        raise refusal([FaultyFile(path, raw.faults, bad, len(raw.lines))])
    key = text_column(raw, asked.key, f"key of {asked.name}").str.strip_chars()
    twice = key.is_duplicated() & (key != "")
    if twice.any():
        row = int(twice.arg_max() or 0)
        again = int(raw.lines[(key == key[row]).arg_true()[1]])
        raise bad_line(path, again, f"the {asked.key} {key[row]!r} is listed twice: leave one of the lines out")
    frame = pl.DataFrame([text_column(raw, name, f"features of {asked.name}") for name in asked.columns])
    numbered = pl.DataFrame({"id": unpack(ids), "owner": np.arange(len(ids), dtype=np.int32)})
    owners = pl.DataFrame({"id": key}).join(numbered, on="id", how="left", maintain_order="left")["owner"]
    columns = _SideColumns(str(path), frame, owners.fill_null(-1).to_numpy(), ids)
    return columns, len(ids) - int(owners.is_not_null().sum())


def _side(asked: SideSchema, columns: _SideColumns, decimal: str) -> tuple[Side, Facts]:
    features: list[Feature] = []
    entries: list[Entries] = []
    numbers: list[Floats] = []
    facts: Facts = {}
    for wanted in asked.wanted:
        if wanted.kind == "number":
            feature, means = _number(wanted, columns, decimal)
            silent = int(np.isnan(means).sum())
            facts |= {f"{UNKNOWN_NUMBERS}{asked.name}.{wanted.name}": silent} if silent else {}
            numbers.append(np.where(np.isnan(means), np.float32(MIDDLE), means))
        else:
            column = columns.frame[wanted.name]
            values = wanted.values or found_values(column, wanted.kind, wanted.separator)
            feature = Feature(wanted.name, wanted.kind, values, separator=wanted.separator)
            codes, distinct = encode(modal(columns.owners, column, columns.count).fill_null(""))
            entries.append(text_entries(feature, distinct, codes))
        features.append(feature)
    return assembled(features, columns.count, entries, numbers), facts


def _number(wanted: Wanted, columns: _SideColumns, decimal: str) -> tuple[Feature, Floats]:
    """A number and each owner's mean of it, scaled; not a number where none is known.

    Scaled first: numbers that are finite may have a sum that is not.
    """
    given = as_numbers(with_point(columns.frame[wanted.name], decimal))
    finite = given.is_finite().fill_null(False)
    found = given.filter(finite)
    if not len(found):
        raise BadInput(
            f"{columns.where}: column {wanted.name!r} holds no number: use kind: category, or another column"
        )
    low, high = _range(wanted, found)
    feature = Feature(wanted.name, "number", low=low, high=high)
    used = finite.to_numpy() & (columns.owners >= 0)
    owners = columns.owners[used]
    sums = np.bincount(owners, weights=feature.scaled(given.to_numpy()[used]), minlength=columns.count)
    counts = np.bincount(owners, minlength=columns.count)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return feature, np.minimum(means, 1.0).astype(np.float32)


def _range(wanted: Wanted, found: pl.Series) -> tuple[float, float]:
    """The ends that are given, or those of what occurs; wider where all numbers are the same."""
    numbers = found.to_numpy()
    low = float(numbers.min()) if wanted.low is None else wanted.low
    high = float(numbers.max()) if wanted.high is None else wanted.high
    if low >= high and wanted.high is None:
        high = low + max(1.0, abs(low))
    elif low >= high and wanted.low is None:
        low = high - max(1.0, abs(high))
    return low, high
