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

What is not given (values; low and high) is taken from the data, and is then as public as the model. What is read off
people's own data so, of people or of items that columns of the log describe, keeps a run from being published. A file
of items says which items there are, whether anybody used them or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from veilrec.core.arrays import Floats, Indices, Offsets
from veilrec.core.errors import BadInput, bad_line, unknown_name
from veilrec.core.features import MIDDLE, Entries, Feature, Features, Kind, Side, assembled, text_entries, without_rows
from veilrec.data.delimited import CsvOptions, FaultyFile, RawRows, read_rows, refusal, with_point
from veilrec.data.population import ItemTable, Strings
from veilrec.data.text_files import encode, unpack

SIDES = {"users": "user", "items": "item"}  # and what their ids are called
_ENDINGS = (".gz", ".csv", ".tsv", ".txt", ".parquet")
_EXAMPLE = "`users: {features: {age: {kind: number, low: 0, high: 100}}}`"
_Text = Annotated[str, Field(min_length=1, coerce_numbers_to_str=True)]
_Bound = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_checked = pydantic_dataclass(frozen=True, config=ConfigDict(extra="forbid", str_strip_whitespace=True))


@_checked
class Wanted:
    """A column that becomes a feature, as far as the file says how."""

    kind: Kind
    values: Annotated[tuple[_Text, ...], Field(min_length=1)] | None = None  # None: those that occur
    low: _Bound | None = None  # None: the lowest that occurs
    high: _Bound | None = None
    separator: Annotated[str, Field(min_length=1)] | None = None  # None: |

    def __post_init__(self) -> None:
        allowed = {"number": ("low", "high"), "category": ("values",), "categories": ("values", "separator")}[self.kind]
        for name in ("values", "low", "high", "separator"):
            if name not in allowed and getattr(self, name) is not None:
                raise ValueError(f"{name} is not for a {self.kind}, which has {' and '.join(allowed)}")
        if self.values is not None and len(set(self.values)) < len(self.values):
            raise ValueError("a value stands twice in values: list every value once")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError("low must be below high")


@_checked
class SideSchema:
    """The features of users or of items, and of items the columns of their texts."""

    file: Path | None = None  # None: the log itself
    key: _Text | None = None  # the column of ids in that file; None: user, or item
    features: dict[_Text, Wanted] | None = None
    title: _Text | None = None
    abstract: _Text | None = None

    def __post_init__(self) -> None:
        if self.abstract is not None and self.title is None:
            raise ValueError("abstract is given and title is not: name the column of titles, too")
        if not self.features and self.title is None and self.file is None:
            raise ValueError("features: is needed, with columns such as age: {kind: number}")
        if self.key is not None and self.file is None:
            raise ValueError("key is for a second file, and none is given: add file:, or leave key: out")

    @property
    def wanted(self) -> Mapping[str, Wanted]:
        """Features by the names of their columns."""
        return self.features or {}

    @property
    def texts(self) -> dict[str, str]:
        """The columns of titles and abstracts."""
        given = {"title": self.title, "abstract": self.abstract}
        return {text: column for text, column in given.items() if column is not None}

    @property
    def columns(self) -> tuple[str, ...]:
        """All that are read, but for the ids."""
        return tuple(dict.fromkeys((*self.wanted, *self.texts.values())))


@_checked
class _Document:
    users: SideSchema | None = None
    items: SideSchema | None = None


@dataclass(frozen=True)
class FeatureSchema:
    """What a file says of both sides; one that it does not name has no features."""

    path: Path
    sides: Mapping[str, SideSchema]

    @property
    def sources(self) -> list[Path]:
        """Every file that the features depend on, beside the log."""
        return [self.path, *(side.file for side in self.sides.values() if side.file is not None)]

    @property
    def log_columns(self) -> tuple[str, ...]:
        """The columns of the log that are features or texts."""
        columns = (side.columns for side in self.sides.values() if side.file is None)
        return tuple(dict.fromkeys(name for some in columns for name in some))


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


def parse_schema(text: str, where: str, folder: Path) -> dict[str, SideSchema]:
    """The sides that a text names; files are looked for from the folder on."""
    try:
        found = TypeAdapter(_Document).validate_python(yaml.safe_load(text) or {})
    except ValidationError as error:
        raise BadInput(f"{where}{_problem(error)}; write for instance {_EXAMPLE}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"{where} is no YAML ({reason}): write for instance {_EXAMPLE}") from None
    if found.users is not None and found.users.title is not None:
        raise BadInput(f"{where}, users: title is for items: leave it out")
    if found.users is not None and not found.users.features:
        raise BadInput(f"{where}, users: features: is needed, with columns such as age: {{kind: number}}")
    sides = {name: side for name in SIDES if (side := getattr(found, name)) is not None}
    if not sides:
        raise BadInput(f"{where}: expected is users: and items:, found nothing; write for instance {_EXAMPLE}")
    for name, side in sides.items():
        if side.file is not None:
            place = folder / side.file.expanduser()
            if not place.is_file():
                raise BadInput(
                    f"{where}, {name}: {place} is not there: give file: as seen from the folder of the YAML file"
                )
            sides[name] = replace(side, file=place)
    return sides


def _problem(error: ValidationError) -> str:
    """Where the first problem is, and what it is."""
    first = error.errors()[0]
    *above, last = ("", *(str(part) for part in first["loc"]))
    if first["type"] == "unexpected_keyword_argument":
        known: Any = {1: _Document, 2: SideSchema}.get(len(first["loc"]), Wanted)
        return f"{', '.join(above)}: {unknown_name('key', last, [part.name for part in fields(known)])}"
    said = first["msg"].removeprefix("Value error, ")
    return f"{', '.join((*above, last))}: {said} (found {first['input']!r:.60})"


MAX_VALUES = 1000  # of a category whose values are not given: the most frequent ones
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
    frequent = counts.sort("count", "value", descending=[True, False]).head(MAX_VALUES)
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
    exact: tuple[str, ...]  # what was read off people's own data and is part of a model, in words


NOTHING_DESCRIBED = Described(None, None, {}, ())


@dataclass(frozen=True)
class Listing:
    """A table of users or items."""

    path: Path
    ids: pl.Series
    frame: pl.DataFrame  # the columns that are asked for


@dataclass(frozen=True)
class _SideColumns:
    """The columns of a side, and whose each row is."""

    where: str
    frame: pl.DataFrame  # texts, by the names of the features
    owners: Indices  # [rows], -1 for one that the log does not have: its values count, without an owner
    count: int  # of users or items


def read_listings(schema: FeatureSchema) -> dict[str, Listing]:
    """Read the tables of users and items that a schema names."""
    return {name: _listing(name, side, side.file) for name, side in schema.sides.items() if side.file is not None}


def own_features(
    schema: FeatureSchema,
    listings: Mapping[str, Listing],
    log: pl.DataFrame,
    owners: Mapping[str, Indices],
    ids: Mapping[str, Strings],
    decimal: str,
) -> Described:
    """What a schema asks for; `log` has its columns of the log."""
    sides = {name: without_rows((), len(some)) for name, some in ids.items()}
    catalogue = None
    facts: Facts = {"features_from": schema.path.name}
    for name, asked in schema.sides.items():
        if name not in listings:
            columns = _SideColumns(f"{schema.path}, {name}", log, owners[name], len(ids[name]))
        else:
            columns, absent = _owned(listings[name], ids[name])
            facts |= {f"{name}_without_features": absent} if absent else {}
        sides[name], more = _side(name, asked, columns, decimal)
        facts |= more
        if asked.texts:
            catalogue = _catalogue(asked, columns)
            facts["titles_read"] = int((np.diff(catalogue.titles.offsets) > 0).sum())
    described = any(asked.wanted for asked in schema.sides.values())
    features = Features(sides["users"], sides["items"]) if described else None
    return Described(features, catalogue, facts, tuple(_exact(schema)))


def _exact(schema: FeatureSchema) -> Iterator[str]:
    """What a model would publish exactly as it was read off people's own data."""
    users, items = schema.sides.get("users"), schema.sides.get("items")
    for name, wanted in {} if users is None else users.wanted.items():
        needed = ("low", "high") if wanted.kind == "number" else ("values",)
        missing = [one for one in needed if getattr(wanted, one) is None]
        if missing:
            yield f"{' and '.join(missing)} of people's {name} are read off their data: give them in {schema.path.name}"
    if items is not None and items.file is None:
        yield (
            f"{', '.join(items.columns)} of items come from columns of the log, so that they tell what people used:"
            f" take them from a table of items (file: in {schema.path.name})"
        )


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
    return raw.text(places[0]).rename(name)


def _listing(side: str, asked: SideSchema, path: Path) -> Listing:
    """Read a table of users or items."""
    raw = read_rows(path, CsvOptions())
    if raw.faults:
        bad = sum(len(fault.lines) for fault in raw.faults)
        raise refusal([FaultyFile(path, raw.faults, bad, len(raw.lines))])
    key_name = asked.key or SIDES[side]
    key = text_column(raw, key_name, f"key of {side}").str.strip_chars()
    twice = key.is_duplicated() & (key != "")
    if twice.any():
        row = int(twice.arg_max() or 0)
        again = int(raw.lines[(key == key[row]).arg_true()[1]])
        raise bad_line(path, again, f"the {key_name} {key[row]!r} is listed twice: leave one of the lines out")
    if side == "items" and (key == "").any():
        line = int(raw.lines[int((key == "").arg_max() or 0)])
        raise bad_line(path, line, f"the {key_name} is empty: every line of the table of items needs one")
    frame = pl.DataFrame([text_column(raw, name, f"features of {side}") for name in asked.columns])
    return Listing(path, key, frame)


def _owned(listing: Listing, ids: Strings) -> tuple[_SideColumns, int]:
    """The rows of a table with whom or what each describes, and how many it lacks."""
    numbered = pl.DataFrame({"id": unpack(ids), "owner": np.arange(len(ids), dtype=np.int32)})
    owners = pl.DataFrame({"id": listing.ids}).join(numbered, on="id", how="left", maintain_order="left")["owner"]
    columns = _SideColumns(str(listing.path), listing.frame, owners.fill_null(-1).to_numpy(), len(ids))
    return columns, len(ids) - int(owners.is_not_null().sum())


def _side(side: str, asked: SideSchema, columns: _SideColumns, decimal: str) -> tuple[Side, Facts]:
    features: list[Feature] = []
    entries: list[Entries] = []
    numbers: list[Floats] = []
    facts: Facts = {}
    for name, wanted in asked.wanted.items():
        if wanted.kind == "number":
            feature, means = _number(name, wanted, columns, decimal)
            silent = int(np.isnan(means).sum())
            facts |= {f"{UNKNOWN_NUMBERS}{side}.{name}": silent} if silent else {}
            numbers.append(np.where(np.isnan(means), np.float32(MIDDLE), means))
        else:
            column, separator = columns.frame[name], wanted.separator or "|"
            values = wanted.values or found_values(column, wanted.kind, separator)
            feature = Feature(name, wanted.kind, values, separator=separator)
            codes, distinct = encode(modal(columns.owners, column, columns.count).fill_null(""))
            entries.append(text_entries(feature, distinct, codes))
        features.append(feature)
    return assembled(features, columns.count, entries, numbers), facts


def _number(name: str, wanted: Wanted, columns: _SideColumns, decimal: str) -> tuple[Feature, Floats]:
    """A number and each owner's mean of it, scaled; not a number where none is known.

    Scaled first: numbers that are finite may have a sum that is not.
    """
    given = as_numbers(with_point(columns.frame[name], decimal))
    finite = given.is_finite().fill_null(False)
    found = given.filter(finite)
    if not len(found):
        raise BadInput(f"{columns.where}: column {name!r} holds no number: use kind: category, or another column")
    low, high = _range(wanted, found)
    feature = Feature(name, "number", low=low, high=high)
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
