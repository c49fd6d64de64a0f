"""What MovieLens says of people (age group, gender, occupation) and of films (genres, years by fives)."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from veilrec.data.feature_columns import side_of
from veilrec.data.population import Catalogue, Strings
from veilrec.data.text_files import Table, read_table, unpack
from veilrec.features import Feature, Side

GENRES = (
    *("Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy"),
    *("Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
AGES = (1, 18, 25, 35, 45, 50, 56)  # where the age groups of 1M begin
OCCUPATIONS_1M = (  # by their numbers
    *("other", "academic/educator", "artist", "clerical/admin", "college/grad student", "customer service"),
    *("doctor/health care", "executive/managerial", "farmer", "homemaker", "K-12 student", "lawyer", "programmer"),
    *("retired", "sales/marketing", "scientist", "self-employed", "technician/engineer", "tradesman/craftsman"),
    *("unemployed", "writer"),
)
OCCUPATIONS_100K = (  # u.occupation
    *("administrator", "artist", "doctor", "educator", "engineer", "entertainment", "executive", "healthcare"),
    *("homemaker", "lawyer", "librarian", "marketing", "none", "other", "programmer", "retired", "salesman"),
    *("scientist", "student", "technician", "writer"),
)
_YEARS = tuple(f"{year}-{year + 4}" for year in range(1915, 2005, 5))
_FILM = (Feature("genres", "categories", GENRES), Feature("year", "category", _YEARS))


def people_of_1m(path: Path | None, users: Strings) -> Side | None:
    """Those of users.dat; None without the file."""
    if path is None:
        return None
    listing = read_table(path, ("user", "gender", "age", "occupation", "zip"), separator="::", encoding="latin-1")
    names = {str(number): name for number, name in enumerate(OCCUPATIONS_1M)}
    occupations = listing.frame["occupation"].replace_strict(names, default="", return_dtype=pl.String)
    return _people(listing, occupations, OCCUPATIONS_1M, users)


def people_of_100k(path: Path | None, users: Strings) -> Side | None:
    """Those of u.user; None without the file."""
    if path is None:
        return None
    listing = read_table(path, ("user", "age", "gender", "occupation", "zip"), separator="|", encoding="latin-1")
    return _people(listing, listing.frame["occupation"], OCCUPATIONS_100K, users)


def film_side(catalogue: Catalogue) -> Side:
    """Genres, and the year that ends the title."""
    titles = unpack(catalogue.titles)
    year = titles.str.extract(r"\((\d{4})\)[^()]*(?:\([^()]*\))?\s*$").cast(pl.Int64)
    first = year // 5 * 5
    bins = pl.select(pl.format("{}-{}", pl.lit(first), pl.lit(first + 4))).to_series()
    return side_of(pl.DataFrame({"genres": unpack(catalogue.categories), "year": bins}), _FILM)


def _people(listing: Table, occupations: pl.Series, known: tuple[str, ...], users: Strings) -> Side:
    group = pl.lit(None, pl.String)
    age = pl.Series(listing.integers("age", low=0))
    for begins in AGES:
        group = pl.when(age >= (begins if begins > 1 else 0)).then(pl.lit(str(begins))).otherwise(group)
    people = pl.DataFrame({"user": listing.frame["user"].str.strip_chars(), "gender": listing.frame["gender"]})
    people = people.with_columns(group.alias("age"), occupations.alias("occupation"))
    twice = people["user"].is_duplicated()
    if twice.any():
        row = int(twice.arg_true()[1])
        raise listing.error(row, f"user {people['user'][row]} is listed twice")
    wanted = pl.DataFrame({"user": unpack(users)}).join(people, on="user", how="left", maintain_order="left")
    features = (
        Feature("age", "category", tuple(map(str, AGES))),
        Feature("gender", "category", ("F", "M")),
        Feature("occupation", "category", known),
    )
    return side_of(wanted, features)
