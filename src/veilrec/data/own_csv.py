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

from veilrec._arrays import Offsets
from veilrec.data.population import Population, pack_interactions
from veilrec.data.text_files import Table, encode, read_first_line, read_table
from veilrec.errors import BadInput, bad_line

COLUMNS = ("user", "item", "rating", "time")
_SEPARATORS = (",", "\t", ";")
_EXAMPLE = (
    "the first line must be a header such as user,item,rating,time, separated by commas, tabs or "
    "semicolons (rating and time may be left out)"
)


def read(*paths: Path) -> Population:
    """Read files of uses as one log; users and items are numbered in the order of their first appearance."""
    parts = [_read_rows(path) for path in paths]
    for path, (part, _) in zip(paths, parts, strict=True):
        if part.columns != parts[0][0].columns:
            raise BadInput(
                f"{path} has the columns {', '.join(part.columns)} and {paths[0]} has "
                f"{', '.join(parts[0][0].columns)}: files that are read together must have the same"
            )
    rows = pl.concat([part for part, _ in parts])
    user_codes, users = encode(rows["user"])
    item_codes, items = encode(rows["item"])
    if len(items) < 2:
        raise BadInput(f"{paths[0]}: every row has the item {items[0]!r}, and at least 2 items are needed")
    coded = rows.with_columns(pl.Series("user", user_codes), pl.Series("item", item_codes))
    table = coded.unique(keep="first", maintain_order=True)
    interactions = pack_interactions(
        table["user"].to_numpy(),
        table["item"].to_numpy(),
        len(users),
        ratings=table["rating"].to_numpy() if "rating" in table.columns else None,
        times=table["time"].to_numpy() if "time" in table.columns else None,
    )
    facts: dict[str, int | float | str] = {"rows": len(rows), "duplicates_merged": len(rows) - len(table)}
    ignored = sorted({name for _, names in parts for name in names})
    if ignored:
        facts["columns_ignored"] = ", ".join(ignored)
    return Population("csv", users, items, interactions, facts=facts)


def _read_rows(path: Path) -> tuple[pl.DataFrame, list[str]]:
    """The known columns of one file, checked, and the names of the others."""
    header = read_first_line(path)
    if not header.strip():
        raise BadInput(f"{path} is empty or starts with a blank line: {_EXAMPLE}")
    separator = max(_SEPARATORS, key=header.count)
    names = [name.strip().strip('"').lower() for name in header.split(separator)]
    missing = [name for name in ("user", "item") if name not in names]
    if missing:
        raise bad_line(path, 1, f"no column {' and no column '.join(missing)} in {header[:80]!r}: {_EXAMPLE}")
    repeated = [name for name in COLUMNS if names.count(name) > 1]
    if repeated:
        raise bad_line(path, 1, f"column {repeated[0]!r} occurs more than once in the header")
    raw = read_table(path, separator=separator, quoted=True)
    own_names = {name.lower(): name for name in raw.frame.columns}
    known = [pl.col(own_names[name]).str.strip_chars().alias(name) for name in COLUMNS if name in names]
    table = Table(path, raw.frame.select(known), raw.lines)
    columns = {"user": table.text("user"), "item": table.text("item")}
    if "rating" in names:
        columns["rating"] = pl.Series(table.numbers("rating"))
    if "time" in names:
        columns["time"] = pl.Series(_times(table))
    return pl.DataFrame(columns), [name for name in names if name not in COLUMNS]


def _times(table: Table) -> Offsets:
    column = table.text("time")
    seconds = column.cast(pl.Int64, strict=False)
    if seconds.null_count():
        moments = [
            _seconds(table, row, text) if given is None else given
            for row, (text, given) in enumerate(zip(column, seconds, strict=True))
        ]
        return np.array(moments, np.int64)
    return np.ascontiguousarray(seconds.to_numpy(), dtype=np.int64)


def _seconds(table: Table, row: int, text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise table.error(row, f"time {text!r} is neither whole seconds since 1970 nor ISO 8601") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
