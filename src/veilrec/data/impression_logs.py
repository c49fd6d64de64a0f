"""Your own log of lists that were shown and what was clicked: JSON lines, UTF-8, plain or `.gz`.

A line is an impression or describes an item.

    {"user": "u1", "time": "2026-01-31T10:00:00Z", "shown": ["a", "b"], "clicked": ["b"], "history": ["c"]}
    {"item": "a", "title": "Rain by noon", "category": "weather", "subcategory": "local", "abstract": "..."}

Of an impression, `user`, `time` (ISO 8601, UTC without a zone; or seconds since 1970) and `shown` are
required. `clicked` lists those of the shown items that were clicked; without it nothing was. `history`
lists what the user had clicked before, oldest first; without it, it is made of his clicks at earlier times
in the log, the latest 200. Of an item only `item` is required. The lines of items are the table of items: others, that
are shown or clicked and have no line, are known as well, but are not public. Other keys are passed over.

The impressions from a given public moment on become "dev"; without one, the last fifth of each user's own, and at least
one of somebody who has two. The rest is "train": where it ends for one user never depends on another. Impressions that
repeat another exactly are merged and counted, and so are ids with blanks around them, which are taken off.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from veilrec.core.arrays import Bools, Bytes, Indices, Offsets
from veilrec.core.csr import Csr, csr_from_pairs, offsets_of
from veilrec.core.errors import BadInput
from veilrec.data.delimited import plain_times
from veilrec.data.population import Impressions, Interactions, ItemTable, Population, Strings, chosen_impressions
from veilrec.data.text_files import (
    TEXT,
    TEXTS,
    JsonLines,
    LineFaults,
    encode_together,
    pack,
    read_json_lines,
    read_text,
    rows_of,
)


def interactions_of(impressions: Mapping[str, Impressions], n_users: int) -> Interactions:
    """Return what every user used: the history before the first training impression, then the training clicks.

    Users who only occur in "dev" have the history before their first impression there. Clicks of "dev" are
    never among them.
    """
    history_rows = np.full(n_users, -1, np.int64)
    parts = [impressions[split] for split in ("train", "dev") if split in impressions]
    before = np.cumsum([0, *(len(part.histories) for part in parts)])
    for part, shift in zip(parts, before, strict=False):
        first = _first_impressions(part)
        first = first[history_rows[part.users[first]] < 0]
        history_rows[part.users[first]] = shift + part.history_of[first]
    lengths = np.concatenate([part.histories.lengths() for part in parts])
    stacked = Csr(offsets_of(lengths), np.concatenate([part.histories.items for part in parts]))
    return uses(stacked.take(history_rows), impressions["train"])


def uses(histories: Csr, train: Impressions) -> Interactions:
    """Join each user's history (a row per user) with the clicks; an item counts once, at its first use."""
    clickers, clicked = _clicks_in_time(train)
    rows = np.concatenate([histories.row_numbers(), clickers])
    packed = csr_from_pairs(rows, np.concatenate([histories.items, clicked]), len(histories))
    owners = packed.row_numbers()
    _, first = np.unique(owners * (int(packed.items.max(initial=0)) + 1) + packed.items, return_index=True)
    kept = np.sort(first)
    return Interactions(offsets_of(np.bincount(owners[kept], minlength=len(packed))), packed.items[kept])


def count_facts(impressions: Mapping[str, Impressions]) -> dict[str, int]:
    """Counts over all splits that `data check` shows."""
    facts = dict.fromkeys(("rows", "shown", "clicks", "impressions_without_both_labels", "empty_histories"), 0)
    for part in impressions.values():
        clicks = clicks_per_impression(part)
        facts["rows"] += len(part)
        facts["shown"] += len(part.clicked)
        facts["clicks"] += int(clicks.sum())
        facts["impressions_without_both_labels"] += int(((clicks == 0) | (clicks == part.shown.lengths())).sum())
        facts["empty_histories"] += int((part.histories.lengths()[part.history_of] == 0).sum())
    return facts


def refuse_unlearnable(source: Path, items: Strings, clicks: int) -> None:
    """Raise for a log that nothing can be learnt from: fewer than two items, or no click."""
    if len(items) < 2:
        raise BadInput(f"{source}: the only item is {items[0]!r}, and at least 2 items are needed")
    if not clicks:
        raise BadInput(f"{source}: no impression has a click, so there is nothing to learn; give a log with clicks")


def clicks_per_impression(impressions: Impressions) -> Offsets:
    """How many of the shown items were clicked, per impression."""
    running = offsets_of(impressions.clicked.astype(np.int64))
    return np.diff(running[impressions.shown.offsets])


def labels(shown: Csr, clicked: Csr) -> Bytes:
    """1 for every shown item that is among the clicked items of the same row."""
    n_items = int(max(shown.items.max(initial=0), clicked.items.max(initial=0))) + 1
    keys, wanted = (rows.row_numbers() * n_items + rows.items for rows in (shown, clicked))
    return np.isin(keys, wanted).astype(np.uint8)


def _first_impressions(part: Impressions) -> Offsets:
    order = np.lexsort((part.times, part.users))
    users = part.users[order]
    return order[np.concatenate([[True], users[1:] != users[:-1]])] if len(order) else order


def _clicks_in_time(part: Impressions) -> tuple[Indices, Indices]:
    places = np.flatnonzero(part.clicked)
    impression = np.searchsorted(part.shown.offsets, places, side="right") - 1
    users = part.users[impression]
    order = np.lexsort((places, part.times[impression], users))
    return users[order], part.shown.items[places[order]]


_ITEM_COLUMNS = ("title", "category", "subcategory", "abstract")
_IMPRESSION_KEYS = {
    **dict.fromkeys(("user", "time", "item", *_ITEM_COLUMNS), TEXT),
    **dict.fromkeys(("shown", "clicked", "history"), TEXTS),
}
LONGEST_HISTORY = 200  # of those that are made of earlier clicks
_HELD_OUT = 5  # one in so many impressions of a user is for "dev"
_LATEST = 10**12  # seconds: beyond, a time is in a smaller unit
_NO_TIME = "neither ISO 8601 nor seconds since 1970 (milliseconds have to be divided by 1000)"


def read_impressions(path: Path, *, cut: int | None = None) -> Population:
    """Read a log of impressions; `cut` is a public moment from which on they are "dev"."""
    _refuse_tables(path)
    faults = LineFaults(path)
    everything, stripped = _without_blanks(read_json_lines(path, _IMPRESSION_KEYS, faults))
    described, log = _items_and_impressions(everything, faults)
    times = _impression_times(log, faults)
    faults.refuse()
    if not len(log.frame):
        raise BadInput(f'{path} has no impressions: at least one line with "shown" is needed')
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
    _check_clicks(log, shown, clicked, faults)
    faults.refuse()

    histories, history_of = _histories(
        user_codes, times, shown, marked, given, log.frame["history"].is_not_null().to_numpy()
    )
    impressions = _parted(Impressions(user_codes, times, shown, marked, histories, history_of), cut, path)
    facts = {
        **count_facts(impressions),
        **({} if cut is not None else {"cut": "the last fifth of each user's impressions"}),
        "duplicates_merged": duplicates,
        "items_described": len(items_given),
        "item_lines_merged": len(described.frame) - len(items_given),
        **({"ids_stripped": stripped} if stripped else {}),
    }
    catalogue = _catalogue(rows_of(items, items_given, "item")) if len(items_given) else None
    return Population(
        "impressions",
        users,
        items,
        interactions_of(impressions, len(users)),
        impressions,
        catalogue,
        facts,
        cut=cut,
        unlisted_items=len(items) - len(items_given),
    )


def _without_blanks(log: JsonLines) -> tuple[JsonLines, int]:
    """Strip blanks around ids; return how many ids had some."""
    singles = [pl.col(name).str.strip_chars() for name in ("user", "item")]
    lists = [pl.col(name).list.eval(pl.element().str.strip_chars()) for name in ("shown", "clicked", "history")]
    clean = log.frame.with_columns(*singles, *lists)
    count = 0
    for name in ("user", "item", "shown", "clicked", "history"):
        before, after = log.frame[name], clean[name]
        if before.dtype == TEXTS:
            before, after = before.explode(), after.explode()
        count += int((before != after).sum())
    return JsonLines(log.path, clean, log.lines), count


def _refuse_tables(path: Path) -> None:
    """Refuse a CSV file as a whole instead of reporting every line as invalid JSON."""
    first = next((line for line in read_text(path).split("\n") if line.strip()), "").strip()
    if first[:1] not in ("{", "[") and any(mark in first for mark in (",", ";", "\t", "|")):
        raise BadInput(
            f"{path} looks like CSV and not like JSON lines: leave out --kind impressions, or write csv:{path}"
        )


def _items_and_impressions(everything: JsonLines, faults: LineFaults) -> tuple[JsonLines, JsonLines]:
    """The lines that describe items, and those that are impressions."""
    item, shown = (everything.frame[name].is_not_null() for name in ("item", "shown"))
    neither = 'expected either "shown" (an impression) or "item" (a description of one)'
    everything.sorted_out(item == shown, neither, faults)
    described, log = everything.where(item & ~shown), everything.where(shown & ~item)
    described = described.sorted_out(described.frame["item"] == "", '"item" is empty', faults)
    for name in ("user", "time"):
        column = log.frame[name]
        log = log.sorted_out(column.is_null() | (column == ""), f"the impression has no {name!r}", faults)
    log = log.sorted_out(log.frame["shown"].list.len() == 0, '"shown" is an empty list', faults)
    for name in ("shown", "clicked", "history"):
        blank = log.frame[name].list.eval(pl.element().is_null() | (pl.element() == "")).list.any()
        log = log.sorted_out(blank.fill_null(False), f"{name!r} holds an empty item id", faults)
    return described, log


def _impression_times(log: JsonLines, faults: LineFaults) -> Offsets:
    """Seconds since 1970 of every impression; invalid ones are added to `faults` and become 0."""
    seconds = plain_times(log.frame["time"])
    bad = seconds.is_null() | (seconds.abs() >= _LATEST)
    for line, text in zip(log.lines[bad.to_numpy()].tolist(), log.frame["time"].filter(bad), strict=True):
        faults.add(line, f"time {text!r} is {_NO_TIME}")
    return seconds.fill_null(0).to_numpy()


def _without_duplicates(log: JsonLines, times: Offsets) -> tuple[JsonLines, Offsets, int]:
    keys = log.frame.select(
        "user", pl.Series("time", times), *(pl.col(name).list.join("\x1f") for name in ("shown", "clicked", "history"))
    )
    first = keys.to_struct().is_first_distinct()
    return log.where(first), times[first.to_numpy()], int((~first).sum())


def _check_clicks(log: JsonLines, shown: Csr, clicked: Csr, faults: LineFaults) -> None:
    for row in clicked.row_numbers()[labels(clicked, shown) == 0].tolist():
        faults.add(int(log.lines[row]), 'an item under "clicked" is not among those "shown"')


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


def _parted(log: Impressions, cut: int | None, path: Path) -> dict[str, Impressions]:
    last = _last_of_each(log) if cut is None else log.times >= cut
    if cut is not None and last.all() | ~last.any():
        side = "from it on" if not last.any() else "before it"
        raise BadInput(f"--cut leaves no impression {side} in {path}: give a moment within the log, or none")
    splits = {"train": chosen_impressions(log, ~last), "dev": chosen_impressions(log, last)}
    return {name: part for name, part in splits.items() if len(part)}


def _last_of_each(log: Impressions) -> Bools:
    """Mark the last impressions of every user."""
    order = np.lexsort((log.times, log.users))
    counts = np.bincount(log.users)
    held = np.where(counts > 1, np.maximum(counts // _HELD_OUT, 1), 0)
    left = np.repeat(np.cumsum(counts), counts) - np.arange(len(log))  # of a user's, this one and those behind it
    last = np.empty(len(log), np.bool_)
    last[order] = left <= held[log.users[order]]
    return last


def _catalogue(described: pl.DataFrame) -> ItemTable:
    columns = [pack(described[name]) for name in _ITEM_COLUMNS]
    return ItemTable(columns[0], columns[1], columns[2], columns[3])
