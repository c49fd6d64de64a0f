"""Your own impression log: JSON lines, plain or `.gz`; a line is an impression or describes an item.

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
from veilrec._csr import Csr
from veilrec.data._impression_builder import (
    chosen_impressions,
    count_facts,
    encode_together,
    interactions_of,
    labels,
    offsets_of,
    refuse_unlearnable,
)
from veilrec.data._json_lines import TEXT, TEXTS, JsonLines, read_json_lines
from veilrec.data.population import Catalogue, Impressions, Population
from veilrec.data.text_files import pack
from veilrec.errors import BadInput, bad_line

_ITEM_COLUMNS = ("title", "category", "subcategory", "abstract")
_SCHEMA = {
    **dict.fromkeys(("user", "time", "item", *_ITEM_COLUMNS), TEXT),
    **dict.fromkeys(("shown", "clicked", "history"), TEXTS),
}
LONGEST_HISTORY = 200  # of those that are made of earlier clicks
_DAY = 86_400


def read(path: Path) -> Population:
    """Read a log of impressions."""
    everything = read_json_lines(path, _SCHEMA)
    described, log = _kinds(everything)
    times = _times(log)
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
    _refuse_clicks_elsewhere(log, shown, clicked)

    histories, history_of = _histories(
        user_codes, times, shown, marked, given, log.frame["history"].is_not_null().to_numpy()
    )
    impressions = _split(Impressions(user_codes, times, shown, marked, histories, history_of))
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


def _kinds(everything: JsonLines) -> tuple[JsonLines, JsonLines]:
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


def _times(log: JsonLines) -> Offsets:
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


def _refuse_clicks_elsewhere(log: JsonLines, shown: Csr, clicked: Csr) -> None:
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


def _split(log: Impressions) -> dict[str, Impressions]:
    days = log.times // _DAY
    if days.max() - days.min() >= 2:
        last = days == days.max()
    else:
        last = np.zeros(len(log), np.bool_)
        last[np.argsort(log.times, kind="stable")[len(log) - len(log) // 5 :]] = True
    splits = {"train": chosen_impressions(log, ~last), "dev": chosen_impressions(log, last)}
    return {name: part for name, part in splits.items() if len(part)}


def _catalogue(described: pl.DataFrame, n_items: int) -> Catalogue:
    unknown = pl.Series([""], dtype=pl.String).new_from_index(0, n_items - len(described))
    columns = {name: pack(pl.concat([described[name].fill_null(""), unknown])) for name in _ITEM_COLUMNS}
    return Catalogue(columns["title"], columns["category"], columns["subcategory"], columns["abstract"])
