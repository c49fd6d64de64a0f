"""Frappe: which app was used how often in which context (Baltrunas, Church, Karatzoglou and Oliver 2015)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import yaml

from veilrec.core.arrays import Indices
from veilrec.core.errors import bad_line
from veilrec.core.features import Feature, Features, Side, usual
from veilrec.data.own_features import UNSAID, found_values, modal, side_of
from veilrec.data.population import ItemTable, Population, pack_interactions
from veilrec.data.text_files import (
    TextTable,
    encode,
    encode_together,
    find_file,
    find_optional,
    pack,
    read_table,
    rows_of,
)

CONTEXT = ("daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city")
_COLUMNS = ("user", "item", "cnt", *CONTEXT)
_OF_A_USER = tuple(name for name in CONTEXT if name != "cost")  # which is the app's: free or paid
_NO_CITY = "0"
_OF_THE_LOG = "which apps are free is read off people's uses"
_STARS = tuple(f"{tenths / 10:.1f}" for tenths in range(10, 51, 5))  # where the steps of an app's rating begin

_LISTED = yaml.safe_load(Path(__file__).with_name("frappe.yaml").read_text("utf-8"))
_VALUES: dict[str, tuple[str, ...]] = {name: tuple(values) for name, values in _LISTED.items()}


def read(folder: Path) -> Population:
    """The whole log, counts as ratings."""
    path = find_file(folder, "frappe.csv")
    rows = read_table(path, separator="\t")
    if tuple(rows.frame.columns) != _COLUMNS:
        raise bad_line(path, 1, f"the header must be {' '.join(_COLUMNS)}, separated by tabs")
    table = rows.without_duplicates()
    user_codes, users = encode(pl.Series(table.integers("user", low=0)))
    store = _store(find_optional(folder, "meta.csv"))
    listed = [] if store is None else [store["item"]]
    (item_codes, *_), items = encode_together([pl.Series(table.integers("item", low=0)), *listed])
    counts = table.integers("cnt", low=1).astype(np.float64)
    by_user = np.argsort(user_codes, kind="stable")
    owners, contexts = user_codes[by_user], _contexts(table).take(by_user)
    interactions = pack_interactions(user_codes, item_codes, len(users), ratings=counts)
    meta = None if store is None else rows_of(items, store, "item")
    return Population(
        "frappe",
        users,
        items,
        interactions,
        catalogue=None if meta is None else _catalogue(meta),
        facts={"rows": len(rows), "duplicates_merged": len(rows) - len(table)},
        features=Features(usual(contexts, owners, len(users)), _apps(table, item_codes, len(items), meta)),
        unlisted_items=len(items) - (0 if store is None else len(store)),
        exact=(_OF_THE_LOG,),
        contexts=contexts,
    )


def _contexts(table: TextTable) -> Side:
    """What a row of the log says of its user; how often an app was used says nothing here."""
    said = table.frame.select(_OF_A_USER).with_columns(pl.col("city").replace(_NO_CITY, ""))
    plain = said.select(pl.when(~pl.col(name).is_in(UNSAID)).then(pl.col(name)).alias(name) for name in _OF_A_USER)
    return side_of(plain, [Feature(name, "category", _VALUES[name]) for name in _OF_A_USER])


def _apps(table: TextTable, owners: Indices, count: int, meta: pl.DataFrame | None) -> Side:
    """Free or paid, and what the store says of an app."""
    columns = {"cost": modal(owners, table.frame["cost"], count)}
    known = {"cost": _VALUES["cost"]}
    meta = pl.DataFrame() if meta is None else meta
    for name in ("category", "language"):
        if name in meta.columns:
            columns[name], known[name] = meta[name], found_values(meta[name])
    if "downloads" in meta.columns:
        columns["downloads"] = meta["downloads"].str.replace_all(",", "").str.extract(r"^(\d+)")
        known["downloads"] = tuple(sorted(columns["downloads"].drop_nulls().unique().to_list(), key=int))
    if "rating" in meta.columns:
        steps = (meta["rating"].cast(pl.Float64, strict=False) * 2).floor() / 2
        columns["rating"], known["rating"] = steps.round(1).cast(pl.String), _STARS
    return side_of(pl.DataFrame(columns), [Feature(name, "category", known[name]) for name in columns])


def _store(path: Path | None) -> pl.DataFrame | None:
    """What the store says of its apps; the file says "unknown" of those that were rarely downloaded."""
    if path is None:
        return None
    table = read_table(path, separator="\t", quoted=True)
    absent = [name for name in ("item", "category", "name", "description") if name not in table.frame.columns]
    if absent:
        raise bad_line(path, 1, f"the header lacks {', '.join(absent)}")
    numbers = pl.Series("item", table.integers("item", low=0)).cast(pl.String)
    return table.frame.with_columns(numbers).unique("item", keep="first").select(pl.all().replace({"unknown": ""}))


def _catalogue(meta: pl.DataFrame) -> ItemTable:
    return ItemTable(titles=pack(meta["name"]), categories=pack(meta["category"]), abstracts=pack(meta["description"]))
