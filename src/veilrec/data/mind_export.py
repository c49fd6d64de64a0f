"""A population with impressions, written in MIND's format: behaviors.tsv and news.tsv in train/ and dev/."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from veilrec._csr import Csr
from veilrec.data.folders import new_folder
from veilrec.data.population import Impressions, Population
from veilrec.data.strings import Strings
from veilrec.errors import BadInput

_ROWS_AT_ONCE = 50_000  # impressions in memory as text
_TIME_FORMAT = "%-m/%-d/%Y %-I:%M:%S %p"


def write(population: Population, folder: Path) -> None:
    """Write a new folder, whole or not at all; `mind.read` reads the same impressions back."""
    if "train" not in population.impressions:
        raise BadInput(f"{population.name} has no impressions: MIND's format is for logs of what was shown")
    users, items = _ids("user", population.users), _ids("item", population.items)
    news = _news(population, items)
    first = 1
    with new_folder(folder) as part:
        for split, impressions in population.impressions.items():
            (part / split).mkdir()
            _write_rows(part / split / "news.tsv", iter([news]))
            _write_rows(part / split / "behaviors.tsv", _behaviours(impressions, users, items, first))
            first += len(impressions)


def _ids(kind: str, ids: Strings) -> pl.Series:
    column = _column(ids)
    faulty = column.str.contains(r"\s") | (column == "")
    if faulty.any():
        value = column[int(faulty.arg_max() or 0)]
        raise BadInput(f"{kind} id {value!r} cannot be written in MIND's format: ids there have no blanks")
    return column


def _column(strings: Strings) -> pl.Series:
    return pl.Series(list(strings), dtype=pl.String)


def _news(population: Population, items: pl.Series) -> pl.DataFrame:
    catalogue = population.catalogue
    columns = {"id": items}
    for name in ("categories", "subcategories", "titles", "abstracts"):
        strings: Strings | None = getattr(catalogue, name, None)
        columns[name] = _blank(items) if strings is None else _column(strings).str.replace_all(r"[\t\r\n]", " ")
    columns["url"] = _blank(items)
    given = None if catalogue is None else catalogue.entities
    entities = _blank(items) if given is None else _column(given)
    columns["title_entities"] = entities.replace("", "[]")
    columns["abstract_entities"] = _blank(items).replace("", "[]")
    return pl.DataFrame(columns)


def _blank(items: pl.Series) -> pl.Series:
    return pl.Series([""], dtype=pl.String).new_from_index(0, len(items))


def _behaviours(impressions: Impressions, users: pl.Series, items: pl.Series, first: int) -> Iterator[pl.DataFrame]:
    for low in range(0, len(impressions), _ROWS_AT_ONCE):
        rows = np.arange(low, min(low + _ROWS_AT_ONCE, len(impressions)))
        shown = impressions.shown.take(rows)
        begin = impressions.shown.offsets[low]
        clicked = pl.Series(impressions.clicked[begin : begin + len(shown.items)])
        candidates = items.gather(shown.items) + "-" + clicked.cast(pl.String)
        histories = impressions.histories.take(impressions.history_of[rows].astype(np.int64))
        moments = pl.from_epoch(pl.Series(impressions.times[rows]), time_unit="s")
        yield pl.DataFrame(
            {
                "id": rows + first,
                "user": users.gather(impressions.users[rows]),
                "time": moments.dt.strftime(_TIME_FORMAT),
                "history": _joined(histories, items.gather(histories.items)),
                "candidates": _joined(shown, candidates),
            }
        )


def _joined(rows: Csr, words: pl.Series) -> pl.Series:
    """The words of each row with blanks between them; "" for an empty row."""
    grouped = pl.DataFrame({"row": rows.row_numbers(), "word": words}).group_by("row").agg(pl.col("word").str.join(" "))
    every = pl.DataFrame({"row": np.arange(len(rows), dtype=np.int64)})
    return every.join(grouped, on="row", how="left", maintain_order="left")["word"].fill_null("")


def _write_rows(path: Path, frames: Iterator[pl.DataFrame]) -> None:
    with path.open("wb") as target:
        for frame in frames:
            frame.write_csv(target, separator="\t", include_header=False, quote_style="never")
