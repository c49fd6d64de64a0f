"""Features and titles of your own data: columns of the log, or of a second table of users or items by their ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from veilrec._arrays import Floats, Indices
from veilrec.data.csv_faults import FaultyFile, refusal
from veilrec.data.csv_rows import Layout, RawRows, read_rows
from veilrec.data.csv_times import with_point
from veilrec.data.feature_columns import as_numbers, found_values, modal
from veilrec.data.feature_schema import Schema, SideSchema, Wanted
from veilrec.data.population import Catalogue, Strings
from veilrec.data.text_files import encode, unpack
from veilrec.errors import BadInput, bad_line, unknown_name
from veilrec.features import MIDDLE, Entries, Feature, Features, Side, assembled, text_entries, without_rows

UNKNOWN_NUMBERS = "unknown_numbers: "  # how the facts begin that say how many rows lack a number
Facts = dict[str, int | float | str]


@dataclass(frozen=True)
class Described:
    """What is known of people and items beside their ids."""

    features: Features | None  # None: the schema names texts alone
    catalogue: Catalogue | None  # None: it names no titles
    facts: Facts  # what is worth saying of it


@dataclass(frozen=True)
class _Columns:
    """The columns of a side, and whose each row is."""

    where: str
    frame: pl.DataFrame  # texts, by the names of the features
    owners: Indices  # [rows], -1 for one that the log does not have: its values exist, and are nobody's
    ids: Strings

    @property
    def count(self) -> int:
        """How many users or items there are."""
        return len(self.ids)


def own_features(
    schema: Schema, log: pl.DataFrame, owners: Mapping[str, Indices], ids: Mapping[str, Strings], decimal: str
) -> Described:
    """What a schema asks for; `log` has its columns of the log."""
    sides = {name: without_rows((), len(some)) for name, some in ids.items()}
    catalogue = None
    facts: Facts = {"features_from": schema.path.name}
    for asked in schema.sides:
        if asked.file is None:
            columns = _Columns(f"{schema.path}, {asked.name}", log, owners[asked.name], ids[asked.name])
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


def _catalogue(asked: SideSchema, columns: _Columns) -> Catalogue:
    """The texts of items; of several in a log the most frequent."""
    texts = {
        text: Strings.of(modal(columns.owners, columns.frame[column], columns.count).fill_null(""))
        for text, column in asked.texts.items()
    }
    return Catalogue(texts["title"], Strings.of("" for _ in range(columns.count)), abstracts=texts.get("abstract"))


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


def _second_file(asked: SideSchema, path: Path, ids: Strings) -> tuple[_Columns, int]:
    """The rows of a table that lists users or items, and how many of those in the log it lacks."""
    raw = read_rows(path, Layout())
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
    columns = _Columns(str(path), frame, owners.fill_null(-1).to_numpy(), ids)
    return columns, len(ids) - int(owners.is_not_null().sum())


def _side(asked: SideSchema, columns: _Columns, decimal: str) -> tuple[Side, Facts]:
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


def _number(wanted: Wanted, columns: _Columns, decimal: str) -> tuple[Feature, Floats]:
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
