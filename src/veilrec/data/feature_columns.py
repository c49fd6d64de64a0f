"""Columns of text or numbers as features: what a row of users or items holds, by the names of the features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from veilrec._arrays import Floats, Indices, Offsets
from veilrec.data.text_files import encode
from veilrec.features import Entries, Feature, Kind, Side, assembled, text_entries

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
    everybody = pl.DataFrame({"owner": np.arange(count, dtype=np.int64)})
    return everybody.join(first, on="owner", how="left", maintain_order="left")["value"]
