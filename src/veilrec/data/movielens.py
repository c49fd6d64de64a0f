"""MovieLens 100K and 1M in GroupLens' own formats, and the leave-one-out test published with NCF for 1M."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import yaml

from veilrec.core.arrays import Indices
from veilrec.core.errors import BadInput
from veilrec.core.features import Feature, Features, Side, without_rows
from veilrec.data.own_features import side_of
from veilrec.data.population import Interactions, ItemTable, Population, Strings, pack_interactions
from veilrec.data.text_files import (
    TextTable,
    encode,
    encode_together,
    find_file,
    find_optional,
    pack,
    read_table,
    rows_of,
    unpack,
)

_VALUES: dict[str, tuple[str, ...]] = {
    name: tuple(map(str, values))
    for name, values in yaml.safe_load(Path(__file__).with_name("movielens.yaml").read_text("utf-8")).items()
}
STARS = (1.0, 5.0)
_YEARS = tuple(f"{year}-{year + 4}" for year in range(1915, 2005, 5))
_FILM = (Feature("genres", "categories", _VALUES["genres"]), Feature("year", "category", _YEARS))


def film_side(catalogue: ItemTable) -> Side:
    """Genres, and the year that ends the title."""
    titles = unpack(catalogue.titles)
    year = titles.str.extract(r"\((\d{4})\)[^()]*(?:\([^()]*\))?\s*$").cast(pl.Int64)
    first = year // 5 * 5
    bins = pl.select(pl.format("{}-{}", pl.lit(first), pl.lit(first + 4))).to_series()
    return side_of(pl.DataFrame({"genres": unpack(catalogue.categories), "year": bins}), _FILM)


def _people(path: Path | None, separator: str, columns: Sequence[str], users: Strings) -> Side | None:
    """Age group, gender and occupation of the users; None without the file."""
    if path is None:
        return None
    listing = read_table(path, columns, separator=separator, encoding="latin-1")
    occupations, known = listing.frame["occupation"], _VALUES["occupations_100k"]
    if separator == "::":  # 1M has numbers
        known = _VALUES["occupations_1m"]
        names = {str(number): name for number, name in enumerate(known)}
        occupations = occupations.replace_strict(names, default="", return_dtype=pl.String)
    group = pl.lit(None, pl.String)
    age = pl.Series(listing.integers("age", low=0))
    for begins in _VALUES["ages"]:
        group = pl.when(age >= (int(begins) if begins != "1" else 0)).then(pl.lit(begins)).otherwise(group)
    people = pl.DataFrame({"user": listing.frame["user"].str.strip_chars(), "gender": listing.frame["gender"]})
    people = people.with_columns(group.alias("age"), occupations.alias("occupation"))
    twice = people["user"].is_duplicated()
    if twice.any():
        row = int(twice.arg_true()[1])
        raise listing.error(row, f"user {people['user'][row]} is listed twice")
    features = (
        Feature("age", "category", _VALUES["ages"]),
        Feature("gender", "category", ("F", "M")),
        Feature("occupation", "category", known),
    )
    return side_of(rows_of(users, people, "user"), features)


_FLAGS = ("unknown", *_VALUES["genres"])  # of u.item, in the order of u.genre
_ROW = ("user", "item", "rating", "time")
_NEGATIVES = 99


def read_100k(folder: Path) -> Population:
    """MovieLens 100K."""
    rows = read_table(find_file(folder, "u.data"), _ROW, separator="\t")
    table = rows.without_duplicates()
    catalogue, films, listing = None, None, find_optional(folder, "u.item")
    if listing is not None:
        names = ("item", "title", "release", "video_release", "url", *_FLAGS)
        films = read_table(listing, names, separator="|", encoding="latin-1")
    item_codes, items = _items(table, films)
    if films is not None:
        flags = np.stack([films.integers(genre, low=0, high=1) for genre in _FLAGS], axis=1)
        genres = pl.Series(["|".join(np.array(_FLAGS)[row == 1]) for row in flags])
        catalogue = _catalogue(films, genres, items)
    population = _population("ml-100k", rows, table, items, item_codes, films, catalogue)
    columns = ("user", "age", "gender", "occupation", "zip")
    return _described(population, _people(find_optional(folder, "u.user"), "|", columns, population.users))


def read_1m(folder: Path) -> Population:
    """MovieLens 1M."""
    rows = read_table(find_file(folder, "ratings.dat"), _ROW, separator="::")
    table = rows.without_duplicates()
    films, listing = None, find_optional(folder, "movies.dat")
    if listing is not None:
        films = read_table(listing, ("item", "title", "genres"), separator="::", encoding="latin-1")
    item_codes, items = _items(table, films)
    catalogue = None if films is None else _catalogue(films, films.frame["genres"], items)
    population = _population("ml-1m", rows, table, items, item_codes, films, catalogue)
    columns = ("user", "gender", "age", "occupation", "zip")
    population = _described(population, _people(find_optional(folder, "users.dat"), "::", columns, population.users))
    rated, first = np.unique(item_codes, return_index=True)
    by_appearance = rated[np.argsort(first)]
    fixed_test = _published_test(folder / "ncf", population, by_appearance)
    if fixed_test is None:
        return population
    # 156 users of the published files have their test item among their own negatives
    repeated = int((fixed_test[1] == fixed_test[0][:, None]).sum())
    counted = {**population.facts, "test_items_among_negatives": repeated}
    return replace(population, fixed_test=fixed_test, facts=counted)


def _population(
    name: str,
    rows: TextTable,
    table: TextTable,
    items: Strings,
    item_codes: Indices,
    films: TextTable | None,
    catalogue: ItemTable | None,
) -> Population:
    user_codes, users = encode(pl.Series(table.integers("user", low=1)))
    ratings = table.integers("rating", low=1, high=5).astype(np.float64)
    times = table.integers("time", low=0)
    interactions = pack_interactions(user_codes, item_codes, len(users), ratings=ratings, times=times)
    counted = {"rows": len(rows), "duplicates_merged": len(rows) - len(table)}
    return Population(
        name,
        users,
        items,
        interactions,
        catalogue=catalogue,
        facts=counted,
        rating_scale=STARS,
        unlisted_items=len(items) - (0 if films is None else len(films)),
    )


def _items(table: TextTable, films: TextTable | None) -> tuple[Indices, Strings]:
    """Codes of the rated films, and all films: those of the listing, whether anybody has rated them or not."""
    columns = [pl.Series(some.integers("item", low=1)) for some in (table, films) if some is not None]
    codes, items = encode_together(columns)
    return codes[0], items


def _described(population: Population, people: Side | None) -> Population:
    """Add features of users and films where their files exist."""
    films = None if population.catalogue is None else film_side(population.catalogue)
    if people is None and films is None:
        return population
    nothing = [without_rows((), count) for count in (population.n_users, population.n_items)]
    return replace(population, features=Features(people or nothing[0], films or nothing[1]))


def _catalogue(films: TextTable, genres: pl.Series, items: Strings) -> ItemTable:
    """Titles and genres of the given items; "" for an item that the listing does not have."""
    listing = pl.DataFrame({"item": films.integers("item"), "title": films.frame["title"], "genres": genres})
    repeated = np.flatnonzero(listing["item"].is_duplicated().to_numpy())
    if len(repeated):
        raise films.error(int(repeated[1]), f"item {films.frame['item'][int(repeated[1])]} is listed twice")
    wanted = rows_of(items, listing, "item")
    return ItemTable(titles=pack(wanted["title"]), categories=pack(wanted["genres"]))


def _published_test(folder: Path, population: Population, by_appearance: Indices) -> tuple[Indices, Indices] | None:
    """The test items and negatives published with NCF (He et al. 2017), if the folder has them.

    Their user is UserID - 1, and their item the place in `by_appearance`: items as they first appear in ratings.dat.
    """
    if find_optional(folder, "ml-1m.test.rating") is None:
        return None
    positives = read_table(find_file(folder, "ml-1m.test.rating"), _ROW, separator="\t")
    names = ("pair", *(f"negative {number}" for number in range(1, _NEGATIVES + 1)))
    negatives = read_table(find_file(folder, "ml-1m.test.negative"), names, separator="\t")
    last = len(by_appearance) - 1
    users = positives.integers("user", low=0, high=population.n_users - 1)
    items = positives.integers("item", low=0, high=last)
    sampled = np.stack([negatives.integers(name, low=0, high=last) for name in names[1:]], axis=1)
    if not np.array_equal(users, np.arange(population.n_users)):
        raise BadInput(f"{positives.path} must have one line for each of the {population.n_users} users, in order")
    if [f"({user},{item})" for user, item in zip(users, items, strict=True)] != negatives.frame["pair"].to_list():
        raise BadInput(f"{negatives.path} does not name the pairs of {positives.path}: get both files again")
    found = by_appearance[items], by_appearance[sampled]
    _check_fit(positives, negatives, *found, population.interactions)
    return found


def _check_fit(
    positives: TextTable, negatives: TextTable, items: Indices, sampled: Indices, interactions: Interactions
) -> None:
    n_items = int(interactions.items.max()) + 1
    n_users = len(interactions.offsets) - 1
    owners = np.arange(n_users, dtype=np.int64)
    rated = np.zeros(n_users * n_items, np.bool_)  # 22 MB for MovieLens 1M
    rated[np.repeat(owners, np.diff(interactions.offsets)) * n_items + interactions.items] = True
    strangers = np.flatnonzero(~rated[owners * n_items + items])
    if len(strangers):
        raise positives.error(int(strangers[0]), "the test item is not among the user's ratings in ratings.dat")
    used = rated[owners[:, None] * n_items + sampled] & (sampled != items[:, None])
    known = np.flatnonzero(used.any(axis=1))
    if len(known):
        raise negatives.error(int(known[0]), "a negative is among the user's other ratings in ratings.dat")
