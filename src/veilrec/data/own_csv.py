"""Your own log of uses: delimited text or parquet, one use of an item a row, as shops and services export it.

    user,item,rating,time
    anna,film-7,4,2024-05-01T18:30:00Z
    ben,film-2,5,1714588200

The header names the columns, in any order and case; names that are common elsewhere (userId, product_id,
user_id:token, Kunde) are known, others are given. A user and an item must be there; a rating (any finite number) and a
time (seconds since 1970, ISO 8601, or a given format; without a zone it is UTC) may be. Further columns are ignored.
What ratings mean is said by their scale, which is given and not what occurs: from 1 to 5 unless told otherwise.
Blanks around ids are taken off. Rows that repeat another exactly are merged. All of it is counted in the facts. Items
are those of the log and of the table of items, if a file of features (own_features) names one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import yaml

from veilrec.core.arrays import Bools
from veilrec.core.errors import BadInput, bad_line, unknown_name
from veilrec.data.delimited import (
    CsvOptions,
    Fault,
    FaultyFile,
    RawRows,
    Wrong,
    iso_seconds,
    read_rows,
    read_times,
    refusal,
    with_point,
)
from veilrec.data.own_features import (
    NOTHING_DESCRIBED,
    FeatureSchema,
    own_features,
    read_listings,
    read_schema,
    text_column,
)
from veilrec.data.population import Population, pack_interactions
from veilrec.data.text_files import encode, encode_together

NO_COLUMN = "none"  # the value of an option: leave the column out, whatever it is called
LEFT_OUT = "left_out: "  # how the facts about rows that were left out begin
_NO_HEADER = (
    "without a header, what splits the rows and what their columns are is read off somebody's row: write a header into"
    " the log"
)

_KNOWN: dict[str, list[str]] = {  # names of columns, by what they hold; the first that is found counts
    role: names.split()
    for role, names in yaml.safe_load(Path(__file__).with_name("columns.yaml").read_text("utf-8")).items()
}
_NEEDED = ("user", "item")
_LARGEST_RATING = 1e6  # of a column without a name; a larger number is a time


@dataclass(frozen=True)
class _Part(FaultyFile):
    """One file: its good rows, faults and counts."""

    frame: pl.DataFrame  # user, item and what else there is
    blank_lines: int
    stripped: int  # ids
    used: Mapping[str, str]  # columns by what they are
    time_unit: str  # of times that are numbers; "": seconds
    ignored: tuple[str, ...]
    described: pl.DataFrame  # the columns that are features, a row for each of `frame`


def read_csv(
    *paths: Path, options: CsvOptions | None = None, features: Path | None = None, cut: int | None = None
) -> Population:
    """Read files of uses as one log.

    `features` is a YAML file that names columns: see own_features. `cut` is a public moment that the log may be cut at.
    """
    chosen = options or CsvOptions()
    schema = None if features is None else read_schema(features)
    parts = [_read_part(path, chosen, schema) for path in paths]
    if not chosen.skip_bad and any(part.faults for part in parts):
        raise refusal(parts)
    for part in parts:
        if part.frame.columns != parts[0].frame.columns:
            raise BadInput(
                f"{part.path} has the columns {', '.join(part.frame.columns)} and {paths[0]} has "
                f"{', '.join(parts[0].frame.columns)}: files that are read together must have the same"
            )
    rows = pl.concat([part.frame for part in parts])
    if not len(rows):
        faults = "; ".join(fault.summary() for part in parts for fault in part.faults)
        raise BadInput(f"{paths[0]}: no row is left without its bad ones ({faults}): give other options, or other data")
    listings = {} if schema is None else read_listings(schema)
    listed = [listings["items"].ids] if "items" in listings else []
    user_codes, users = encode(rows["user"])
    (item_codes, *_), items = encode_together([rows["item"], *listed])
    unlisted = len(items) - sum(map(len, listed))
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
    facts |= _noticed(parts)
    scale, guessed = None if interactions.ratings is None else chosen.scale, () if chosen.header else (_NO_HEADER,)
    if cut is not None and interactions.times is None:
        raise BadInput(f"--cut is a moment, and {paths[0]} has no times: name their column with --time-column")
    known = NOTHING_DESCRIBED
    if schema is not None:
        log, owners = pl.concat([part.described for part in parts]), {"users": user_codes, "items": item_codes}
        ids = {"users": users, "items": items}
        known = own_features(schema, listings, log, owners, ids, chosen.decimal or ".")
    return Population(
        "csv",
        users,
        items,
        interactions,
        catalogue=known.catalogue,
        facts=facts | known.facts,
        features=known.features,
        cut=cut,
        rating_scale=scale,
        unlisted_items=unlisted,
        exact=(*guessed, *known.exact),
    )


def _noticed(parts: list[_Part]) -> dict[str, int | float | str]:
    """Facts about how the files were read."""
    facts: dict[str, int | float | str] = {}
    used = {role: name for part in parts for role, name in part.used.items()}
    if any(name.lower() != role for role, name in used.items()):
        facts["columns_used"] = ", ".join(f"{name!r} as {role}" for role, name in used.items())
    ignored = sorted({name for part in parts for name in part.ignored})
    if ignored:
        facts["columns_ignored"] = ", ".join(ignored)
    units = sorted({part.time_unit for part in parts if part.time_unit})
    if units:
        facts["times_in"] = " and ".join(units)
    counts = {
        "blank_lines": sum(part.blank_lines for part in parts),
        "ids_stripped": sum(part.stripped for part in parts),
        "rows_left_out": sum(part.bad_rows for part in parts),
    }
    for part in parts:
        for fault in part.faults:
            key = LEFT_OUT + fault.kind
            counts[key] = counts.get(key, 0) + len(fault.lines)
    return facts | {name: count for name, count in counts.items() if count}


def _read_part(path: Path, options: CsvOptions, schema: FeatureSchema | None) -> _Part:
    raw = read_rows(path, options)
    places = _find_columns(raw, options)
    texts = {role: raw.text(place) for role, place in places.items()}
    if options.rating_scale is not None and "rating" not in places:
        raise BadInput(f"--rating-scale is for ratings, and {raw.path} has none: name them with --rating-column")
    if options.decimal is not None and not {"rating", "time"} & set(places):
        raise BadInput(
            f"--decimal {options.decimal!r} is for ratings, and {raw.path} has no column that is known as one"
            f" ({', '.join(raw.names)[:120]}): name it with --rating-column, or leave --decimal out"
        )
    columns, faults, stripped, time_unit = {}, list(raw.faults), 0, ""
    bad: Bools = np.zeros(len(raw.lines), np.bool_)
    for role, given in texts.items():
        column = given.str.strip_chars()
        if role in _NEEDED:
            stripped += int((given != column).sum())
            values, wrong = column, {"is empty": (column == "", "")}
        elif role == "rating":
            values, wrong = _ratings(column, options.decimal or ".")
        else:
            values, wrong, time_unit = read_times(column, options.time_format, options.decimal or ".")
        for what, (mask, advice) in wrong.items():
            rows = mask.to_numpy()
            if rows.any():
                faults.append(Fault(raw.names[places[role]], what, raw.lines[rows], column.filter(mask), advice))
                bad |= rows
        columns[role] = values
    asked = () if schema is None else schema.log_columns
    described = pl.DataFrame([text_column(raw, name, f"feature {name!r} of the log") for name in asked])
    return _Part(
        path=path,
        faults=tuple(faults),
        bad_rows=int(bad.sum()) + sum(len(fault.lines) for fault in raw.faults),
        good_rows=int((~bad).sum()),
        frame=pl.DataFrame(columns).filter(~bad),
        blank_lines=raw.blank_lines,
        stripped=stripped,
        used={role: raw.names[place] for role, place in places.items()},
        time_unit=time_unit,
        ignored=tuple(n for place, n in enumerate(raw.names) if place not in places.values() and n not in asked),
        described=described.filter(~bad) if asked else described,
    )


def _find_columns(raw: RawRows, options: CsvOptions) -> dict[str, int]:
    """Where each column stands, by what it is."""
    given = (options.user_column, options.item_column, options.rating_column, options.time_column)
    asked = {role: name for role, name in zip(_KNOWN, given, strict=True) if name is not None}
    found = {role: _asked_column(raw, role, name) for role, name in asked.items() if name != NO_COLUMN}
    if options.header:
        plain = [_plain(name) for name in raw.names]
        usual = {role: _known_column(raw, plain, role) for role in _KNOWN if role not in asked}
    else:
        usual = {role: place for role, place in _usual_places(raw, options).items() if place not in found.values()}
    found |= {role: place for role, place in usual.items() if place is not None and role not in asked}
    missing = [role for role in _NEEDED if role not in found]
    if missing:
        raise _missing(raw, missing)
    for role, place in found.items():
        twin = next(other for other in found if found[other] == place)
        if twin != role:
            raise BadInput(
                f"{raw.path}: column {raw.names[place]!r} cannot be both {twin} and {role}: give two columns"
            )
    return {role: found[role] for role in _KNOWN if role in found}


def _usual_places(raw: RawRows, options: CsvOptions) -> dict[str, int]:
    """Where columns stand in a file without a header: user, item, rating, time, as many as there are.

    Of three, the last is a rating or a time by its first value.
    """
    width = len(raw.names)
    if width != len(_NEEDED) + 1 or not len(raw.frame):
        return dict(zip(_KNOWN, range(width if width == len(_KNOWN) else min(width, len(_NEEDED))), strict=False))
    places, value = {role: place for place, role in enumerate(_NEEDED)}, raw.text(len(_NEEDED))[0].strip()
    if options.time_format is not None or iso_seconds(value) is not None:
        return places | {"time": len(_NEEDED)}
    try:
        number = float(value.replace(",", ".") if options.decimal == "," else value)
    except ValueError:
        return places
    return places | {"rating" if abs(number) < _LARGEST_RATING else "time": len(_NEEDED)}


def _plain(name: str) -> str:
    """A name without case, type (RecBole's user_id:token) and whatever joins words."""
    return re.sub(r"[\W_]", "", name.rpartition(":")[0].lower() or name.lower())


def _asked_column(raw: RawRows, role: str, asked: str) -> int:
    option = f"--{role}-column"
    exact = [place for place, name in enumerate(raw.names) if name == asked]
    places = exact or [place for place, name in enumerate(raw.names) if name.lower() == asked.strip().lower()]
    if len(places) > 1:
        raise BadInput(f"{raw.path}: column {asked!r} occurs {len(places)} times in the header: rename all but one")
    if not places:
        raise BadInput(f"{option} {asked}: {raw.path} has no such column; {unknown_name('column', asked, raw.names)}")
    return places[0]


def _known_column(raw: RawRows, plain: list[str], role: str) -> int | None:
    candidates = [name for name in _KNOWN[role] if name in plain]
    if not candidates:
        return None
    if plain.count(candidates[0]) > 1:
        raise bad_line(raw.path, 1, f"column {candidates[0]!r} occurs more than once in the header: rename all but one")
    if len(candidates) > 1 and role in _NEEDED and (candidates[0] != role or f"{role}id" in candidates):
        names = [raw.names[plain.index(name)] for name in candidates]
        raise BadInput(
            f"{raw.path}: {' and '.join(names)} may each be the {role}: say which with --{role}-column"
            " (`veilrec data import`)"
        )
    return plain.index(candidates[0])


def _missing(raw: RawRows, roles: list[str]) -> BadInput:
    header = ", ".join(raw.names)[:120]
    options = " and ".join(f"--{role}-column NAME" for role in roles)
    looks_like_data = any(re.fullmatch(r"[-+]?\d[\d.,:/ TZ-]*", name) for name in raw.names)
    no_header = "; a file without a header is read with --no-header" if looks_like_data else ""
    split = "" if len(raw.names) > 1 else "; if nothing was split, give --separator"
    return bad_line(
        raw.path,
        1,
        f"no column {' and no column '.join(roles)} in the header ({header}): give {options} (`veilrec data import`),"
        f" or a header such as user,item,rating,time{split}{no_header}",
    )


def _ratings(column: pl.Series, decimal: str) -> tuple[pl.Series, Wrong]:
    text = with_point(column, decimal)
    values = text.cast(pl.Float64, strict=False)
    empty, nothing = column == "", values.is_null()
    # ratings end up in float32, where a larger one would become infinite
    infinite = ~values.cast(pl.Float32, strict=False).is_finite().fill_null(True)
    advice = "expected is a number such as 4.5"
    if decimal == "," or column.filter(nothing).str.contains(r"^-?\d+,\d+$").any():
        advice = "expected is a number such as 4,5" if decimal == "," else f"{advice}; for 4,5 give --decimal ','"
    wrong = {
        "is empty": (empty, "without ratings give --rating-column none"),
        "is not a number": (nothing & ~empty, advice),
        "is not a finite number": (infinite, "expected is a number such as 4.5"),
    }
    return values.fill_null(0.0), wrong
