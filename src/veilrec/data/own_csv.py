"""Your own interactions: a text file with a header line and one use of an item per line.

    user,item,rating,time
    anna,film-7,4,2024-05-01T18:30:00Z
    ben,film-2,5,1714588200

The header is required and names the columns, in any order and case: `user` and `item` must be there,
`rating` (any finite number) and `time` (whole seconds since 1970, or ISO 8601; without a zone it is UTC) may
be. Further columns are ignored, and named in the facts. The separator, comma, tab or semicolon, is taken
from the header; fields may stand in double quotes. UTF-8, plain or `.gz`. Rows that repeat another exactly
are merged and counted.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from veilrec._arrays import Doubles, Offsets
from veilrec.data.population import Population, pack_interactions
from veilrec.data.text_files import Table, read_table, read_utf8
from veilrec.errors import BadInput, bad_line

COLUMNS = ("user", "item", "rating", "time")
_SEPARATORS = (",", "\t", ";")
_EXAMPLE = "the first line must be a header such as user,item,rating,time (rating and time may be left out)"


def read(path: Path) -> Population:
    """Read a file of uses; users and items are numbered in the order of their first appearance."""
    rows, ignored = _read_rows(path)
    table = rows.without_duplicates()
    user_codes, users = table.codes("user")
    item_codes, items = table.codes("item")
    if len(items) < 2:
        raise BadInput(f"{path}: every row has the item {items[0]!r}, and at least 2 items are needed")
    given = table.frame.columns
    ratings: Doubles | None = table.numbers("rating") if "rating" in given else None
    interactions = pack_interactions(
        user_codes,
        item_codes,
        len(users),
        ratings=ratings,
        times=_times(table) if "time" in given else None,
    )
    facts: dict[str, int | float | str] = {"rows": len(rows), "duplicates_merged": len(rows) - len(table)}
    if ignored:
        facts["columns_ignored"] = ", ".join(ignored)
    return Population("csv", users, items, interactions, facts=facts)


def _read_rows(path: Path) -> tuple[Table, list[str]]:
    """The known columns, without blanks around the fields, and the names of the others."""
    header = read_utf8(path).partition(b"\n")[0].decode()
    if not header.strip():
        raise BadInput(f"{path} is empty or starts with a blank line: {_EXAMPLE}")
    separator = max(_SEPARATORS, key=header.count)
    names = [name.strip().strip('"').lower() for name in header.split(separator)]
    missing = [name for name in ("user", "item") if name not in names]
    if missing:
        raise bad_line(path, 1, f"no column {' and no column '.join(missing)} in {header[:80]!r}: {_EXAMPLE}")
    table = read_table(path, separator=separator, quoted=True)
    frame = table.frame.rename({name: name.lower() for name in table.frame.columns})
    known = [name for name in COLUMNS if name in names]
    ignored = [name for name in names if name not in COLUMNS]
    return Table(path, frame.select(pl.col(known).str.strip_chars()), table.lines), ignored


def _times(table: Table) -> Offsets:
    column = table.text("time")
    seconds = column.cast(pl.Int64, strict=False)
    if seconds.null_count():
        return np.array([_seconds(table, row, value) for row, value in enumerate(column)], np.int64)
    return np.ascontiguousarray(seconds.to_numpy(), dtype=np.int64)


def _seconds(table: Table, row: int, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise table.error(row, f"time {value!r} is neither whole seconds since 1970 nor ISO 8601") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
