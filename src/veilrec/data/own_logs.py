"""Your own logs: a csv file of uses, or a JSON-lines file of impressions; UTF-8, plain or `.gz`.

`read_csv` takes a file with a header line and one use of an item per line.

    user,item,rating,time
    anna,film-7,4,2024-05-01T18:30:00Z
    ben,film-2,5,1714588200

The header is required and names the columns, in any order and case: `user` and `item` must be there,
`rating` (any finite number) and `time` (whole seconds since 1970, or ISO 8601; without a zone it is UTC) may
be. Further columns are ignored, and named in the facts. The separator, comma, tab or semicolon, is taken
from the header; fields may stand in double quotes. Rows that repeat another exactly are merged and counted.

`read_impressions` takes JSON lines; a line is an impression or describes an item.

    {"user": "u1", "time": "2026-01-31T10:00:00Z", "shown": ["a", "b"], "clicked": ["b"], "history": ["c"]}
    {"item": "a", "title": "Rain by noon", "category": "weather", "subcategory": "local", "abstract": "..."}

Of an impression, `user`, `time` (ISO 8601, UTC without a zone; or seconds since 1970) and `shown` are
required. `clicked` lists those of the shown items that were clicked; without it nothing was. `history`
lists what the user had clicked before, oldest first; without it, it is made of his clicks at earlier times
in the log, the latest 200. Of an item only `item` is required; items need not be described. Other keys are
passed over.

The last calendar day (UTC) becomes "dev" when the log covers three days or more, else the last fifth of the
impressions in time; the rest is "train". Impressions that repeat another exactly are merged and counted.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from veilrec._arrays import Bools, Bytes, Indices, Offsets
from veilrec._csr import Csr, offsets_of
from veilrec.data.impression_logs import chosen_impressions, count_facts, interactions_of, labels, refuse_unlearnable
from veilrec.data.population import Catalogue, Impressions, Population, pack_interactions
from veilrec.data.text_files import (
    TEXT,
    TEXTS,
    JsonLines,
    Table,
    encode,
    encode_together,
    pack_padded,
    read_first_line,
    read_json_lines,
    read_table,
)
from veilrec.errors import BadInput, bad_line

_CSV_COLUMNS = ("user", "item", "rating", "time")
_CSV_SEPARATORS = (",", "\t", ";")
_CSV_HEADER = (
    "the first line must be a header such as user,item,rating,time, separated by commas, tabs or "
    "semicolons (rating and time may be left out)"
)

_ITEM_COLUMNS = ("title", "category", "subcategory", "abstract")
_IMPRESSION_KEYS = {
    **dict.fromkeys(("user", "time", "item", *_ITEM_COLUMNS), TEXT),
    **dict.fromkeys(("shown", "clicked", "history"), TEXTS),
}
LONGEST_HISTORY = 200  # of those that are made of earlier clicks
_DAY = 86_400


def read_csv(*paths: Path) -> Population:
    """Read files of uses as one log; users are numbered by first appearance, items by name.

    A model shows the order of its items, and whose use of an item came first is nobody's business.
    """
    parts = [_read_csv_rows(path) for path in paths]
    for path, (part, _) in zip(paths, parts, strict=True):
        if part.columns != parts[0][0].columns:
            raise BadInput(
                f"{path} has the columns {', '.join(part.columns)} and {paths[0]} has "
                f"{', '.join(parts[0][0].columns)}: files that are read together must have the same"
            )
    rows = pl.concat([part for part, _ in parts])
    user_codes, users = encode(rows["user"])
    item_codes, items = encode(rows["item"], by_name=True)
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


def _read_csv_rows(path: Path) -> tuple[pl.DataFrame, list[str]]:
    """The known columns of one file, checked, and the names of the others."""
    header = read_first_line(path)
    if not header.strip():
        raise BadInput(f"{path} is empty or starts with a blank line: {_CSV_HEADER}")
    separator = max(_CSV_SEPARATORS, key=header.count)
    names = [name.strip().strip('"').lower() for name in header.split(separator)]
    missing = [name for name in ("user", "item") if name not in names]
    if missing:
        raise bad_line(path, 1, f"no column {' and no column '.join(missing)} in {header[:80]!r}: {_CSV_HEADER}")
    repeated = [name for name in _CSV_COLUMNS if names.count(name) > 1]
    if repeated:
        raise bad_line(path, 1, f"column {repeated[0]!r} occurs more than once in the header")
    raw = read_table(path, separator=separator, quoted=True)
    own_names = {name.lower(): name for name in raw.frame.columns}
    known = [pl.col(own_names[name]).str.strip_chars().alias(name) for name in _CSV_COLUMNS if name in names]
    table = Table(path, raw.frame.select(known), raw.lines)
    columns = {"user": table.text("user"), "item": table.text("item")}
    if "rating" in names:
        columns["rating"] = pl.Series(table.numbers("rating"))
    if "time" in names:
        columns["time"] = pl.Series(_csv_times(table))
    return pl.DataFrame(columns), [name for name in names if name not in _CSV_COLUMNS]


def _csv_times(table: Table) -> Offsets:
    column = table.text("time")
    seconds = column.cast(pl.Int64, strict=False)
    if seconds.null_count():
        moments = [_iso_seconds(text) if given is None else given for text, given in zip(column, seconds, strict=True)]
        if None in moments:
            row = moments.index(None)
            raise table.error(row, f"time {column[row]!r} is neither whole seconds since 1970 nor ISO 8601")
        return np.array(moments, np.int64)
    return np.ascontiguousarray(seconds.to_numpy(), dtype=np.int64)


def read_impressions(path: Path) -> Population:
    """Read a log of impressions."""
    everything = read_json_lines(path, _IMPRESSION_KEYS)
    described, log = _items_and_impressions(everything)
    times = _impression_times(log)
    log, times, duplicates = _without_duplicates(log, times)
    items_given = described.frame.unique("item", keep="first", maintain_order=True)

    (user_codes,), users = encode_together([log.frame["user"]])
    columns = [log.frame[name].fill_null([]) for name in ("shown", "clicked", "history")]
    flat = [column.explode().drop_nulls() for column in columns]
    (_, *codes), items = encode_together([items_given["item"], *flat])
    shown, clicked, given = (
        Csr(offsets_of(column.list.len()), code) for column, code in zip(columns, codes, strict=True)
    )
    refuse_unlearnable(path, items, len(clicked.items))
    marked = labels(shown, clicked)
    _refuse_clicks_on_others(log, shown, clicked)

    histories, history_of = _histories(
        user_codes, times, shown, marked, given, log.frame["history"].is_not_null().to_numpy()
    )
    impressions = _split_by_time(Impressions(user_codes, times, shown, marked, histories, history_of))
    facts = {
        **count_facts(impressions),
        "duplicates_merged": duplicates,
        "items_described": len(items_given),
        "item_lines_merged": len(described.frame) - len(items_given),
    }
    catalogue = _catalogue(items_given, len(items)) if len(items_given) else None
    return Population(
        "impressions", users, items, interactions_of(impressions, len(users)), impressions, catalogue, facts
    )


def _items_and_impressions(everything: JsonLines) -> tuple[JsonLines, JsonLines]:
    """The lines that describe items, and those that are impressions."""
    frame = everything.frame
    item, shown = frame["item"].is_not_null(), frame["shown"].is_not_null()
    everything.refuse(item == shown, 'expected either "shown" (an impression) or "item" (a description of one)')
    described, log = everything.where(item), everything.where(shown)
    described.refuse(described.frame["item"] == "", '"item" is empty')
    for name in ("user", "time"):
        column = log.frame[name]
        log.refuse(column.is_null() | (column == ""), f"the impression has no {name!r}")
    log.refuse(log.frame["shown"].list.len() == 0, '"shown" is an empty list')
    for name in ("shown", "clicked", "history"):
        blank = log.frame[name].list.eval(pl.element().is_null() | (pl.element() == "")).list.any()
        log.refuse(blank.fill_null(False), f"{name!r} holds an empty item id")
    if not len(log.frame):
        raise BadInput(f'{everything.path} has no impressions: at least one line with "shown" is needed')
    return described, log


def _impression_times(log: JsonLines) -> Offsets:
    texts = log.frame["time"]
    distinct = texts.unique(maintain_order=True)
    known: dict[str, int] = {}
    for text in distinct:
        seconds = _seconds(text)
        if seconds is None:
            row = int((texts == text).arg_max() or 0)
            raise bad_line(log.path, int(log.lines[row]), f"time {text!r} is neither ISO 8601 nor seconds since 1970")
        known[text] = seconds
    table = pl.DataFrame(
        {"time": distinct, "seconds": list(known.values())}, schema={"time": TEXT, "seconds": pl.Int64}
    )
    joined = log.frame.select("time").join(table, on="time", how="left", maintain_order="left")
    return joined["seconds"].to_numpy()


def _seconds(text: str) -> int | None:
    try:
        seconds = float(text)
    except ValueError:
        pass
    else:
        return int(seconds) if abs(seconds) < 1e12 else None
    return _iso_seconds(text)


def _iso_seconds(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def _without_duplicates(log: JsonLines, times: Offsets) -> tuple[JsonLines, Offsets, int]:
    keys = log.frame.select(
        "user", pl.Series("time", times), *(pl.col(name).list.join("\x1f") for name in ("shown", "clicked", "history"))
    )
    first = keys.to_struct().is_first_distinct()
    return log.where(first), times[first.to_numpy()], int((~first).sum())


def _refuse_clicks_on_others(log: JsonLines, shown: Csr, clicked: Csr) -> None:
    faulty = labels(clicked, shown) == 0
    if faulty.any():
        row = int(clicked.row_numbers()[int(faulty.argmax())])
        raise bad_line(log.path, int(log.lines[row]), 'an item under "clicked" is not among those "shown"')


def _histories(
    users: Indices, times: Offsets, shown: Csr, clicked: Bytes, given: Csr, is_given: Bools
) -> tuple[Csr, Indices]:
    """The histories that the log gives, and for the other impressions the user's clicks at earlier times."""
    places = np.flatnonzero(clicked)
    impression = shown.row_numbers()[places]
    order = np.lexsort((places, times[impression], users[impression]))
    clicks, click_users, click_times = (
        column[order] for column in (shown.items[places], users[impression], times[impression])
    )
    # Clicks are sorted by (user, time): those of this user before this moment lie between `start` and `end`.
    rank = np.unique(np.concatenate([click_times, times]), return_inverse=True)[1]
    width = len(rank) + 1
    keys = click_users.astype(np.int64) * width + rank[: len(clicks)]
    end = np.searchsorted(keys, users.astype(np.int64) * width + rank[len(clicks) :])
    start = np.maximum(np.searchsorted(click_users, users), end - LONGEST_HISTORY)
    built_rows, built_of = np.unique(np.stack([start, end], 1)[~is_given], axis=0, return_inverse=True)
    lengths = built_rows[:, 1] - built_rows[:, 0]
    offsets = offsets_of(lengths)
    built = clicks[np.repeat(built_rows[:, 0] - offsets[:-1], lengths) + np.arange(offsets[-1])]

    given_rows = given.take(np.flatnonzero(is_given))
    history_of = np.empty(len(users), np.int32)
    history_of[is_given] = np.arange(len(given_rows))
    history_of[~is_given] = len(given_rows) + built_of.reshape(-1)
    all_lengths = np.concatenate([given_rows.lengths(), lengths])
    return Csr(offsets_of(all_lengths), np.concatenate([given_rows.items, built])), history_of


def _split_by_time(log: Impressions) -> dict[str, Impressions]:
    days = log.times // _DAY
    if days.max() - days.min() >= 2:
        last = days == days.max()
    else:
        last = np.zeros(len(log), np.bool_)
        last[np.argsort(log.times, kind="stable")[len(log) - len(log) // 5 :]] = True
    splits = {"train": chosen_impressions(log, ~last), "dev": chosen_impressions(log, last)}
    return {name: part for name, part in splits.items() if len(part)}


def _catalogue(described: pl.DataFrame, n_items: int) -> Catalogue:
    columns = {name: pack_padded(described[name], n_items) for name in _ITEM_COLUMNS}
    return Catalogue(columns["title"], columns["category"], columns["subcategory"], columns["abstract"])
