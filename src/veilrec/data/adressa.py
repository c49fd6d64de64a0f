"""Adressa, reading logs of a Norwegian newspaper (light version): a JSON-lines file per day, like `20170101`.

An event has `userId`, `time` (seconds since 1970) and, when it is about an article, `id`, `title` and
`category1` (levels separated by `|`); an event without `id` is a visit of a front page. There is no record
of what was shown, so the population has no impressions. It is cut at the last day that was published, by the names of
the files: whoever has read something when moves nothing.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from veilrec.core.errors import BadInput
from veilrec.data.population import ItemTable, Population, Strings, pack_interactions
from veilrec.data.text_files import TEXT, JsonLines, encode, pack, read_json_lines, rows_of

_SCHEMA = dict.fromkeys(("userId", "id", "time", "title", "category1"), TEXT)
_DAY_FILE = re.compile(r"\d{8}(\.gz)?")


def read(folder: Path) -> Population:
    """Read every day in a folder, or in the one folder within it that has such files."""
    paths = _day_files(folder)
    days = [_read_day(path) for path in paths]
    events = pl.concat([day for day, _ in days])
    clicks = events.unique(["userId", "id", "time"], keep="first", maintain_order=True)
    if clicks["id"].n_unique() < 2:
        raise BadInput(
            f"{folder}: events with at least 2 different articles are needed, found {clicks['id'].n_unique()}"
        )
    user_codes, users = encode(clicks["userId"])
    item_codes, items = encode(clicks["id"])
    log = pack_interactions(user_codes, item_codes, len(users), times=clicks["time"].to_numpy())
    rows = sum(rows for _, rows in days)
    merged = len(events) - len(clicks)
    facts = {"rows": rows, "events_without_article": rows - len(events), "duplicates_merged": merged}
    return Population(
        "adressa",
        users,
        items,
        log,
        catalogue=_catalogue(clicks, items),
        facts=facts,
        cut=_day_of(paths[-1]),
        unlisted_items=len(items),
    )


def _day_files(folder: Path) -> list[Path]:
    places = [folder, *sorted(child for child in folder.iterdir() if child.is_dir())] if folder.is_dir() else []
    found = {place: [path for path in sorted(place.iterdir()) if _is_day(path)] for place in places}
    holders = [place for place, paths in found.items() if paths]
    if not holders:
        raise BadInput(f"no day file such as 20170101 (or 20170101.gz) in {folder}: unpack one_week.tar.gz there")
    if holders[0] != folder and len(holders) > 1:
        raise BadInput(f"{folder} holds several logs: name one of {', '.join(map(str, holders))}")
    return found[holders[0]]


def _day_of(path: Path) -> int:
    """Where the day of a file begins, in seconds since 1970."""
    try:
        return int(datetime.strptime(path.name[:8], "%Y%m%d").replace(tzinfo=UTC).timestamp())
    except ValueError:
        raise BadInput(
            f"{path} is named after no day: names are those of the published files, such as 20170101"
        ) from None


def _is_day(path: Path) -> bool:
    return path.is_file() and _DAY_FILE.fullmatch(path.name) is not None


def _read_day(path: Path) -> tuple[pl.DataFrame, int]:
    """The events about articles, and how many events there are in all."""
    everything = read_json_lines(path, _SCHEMA)
    events = everything.where(everything.frame["id"].fill_null("") != "")
    events.refuse(events.frame["userId"].fill_null("") == "", "the event has no userId")
    return events.frame.with_columns(time=_times(events)), len(everything.frame)


def _times(events: JsonLines) -> pl.Series:
    times = events.frame["time"].cast(pl.Float64, strict=False)
    events.refuse(times.is_null() | (times.abs() > 1e12).fill_null(False), "time is not in seconds since 1970")
    return times.cast(pl.Int64)


def _catalogue(clicks: pl.DataFrame, items: Strings) -> ItemTable:
    """Title and category of every article; of several the first of the alphabet, and not of whoever read it first."""
    columns = ("title", "category1")
    found = clicks.group_by("id").agg(pl.col(name).filter(pl.col(name) != "").min() for name in columns)
    known = rows_of(items, found, "id")
    categories = known["category1"].str.split("|").list.first().fill_null("")
    return ItemTable(pack(known["title"]), pack(categories), pack(known["category1"]))
