"""Every data set that veilrec knows: what it is, whose it is, which files it has, and who reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from veilrec.errors import unknown_name

Kind = Literal["ratings", "news", "own file", "made up"]

_MOVIELENS_LICENCE = (
    "MovieLens (GroupLens, University of Minnesota): research use; acknowledge it in publications; "
    "no redistribution and no commercial use without permission; do not imply an endorsement."
)
_FRAPPE_LICENCE = (
    "Frappe (Baltrunas et al. 2015): research use; acknowledge it; no redistribution and no commercial use "
    "without permission; do not try to find out who the users are."
)
_MIND_LICENCE = (
    "MIND (Microsoft Research License Terms): non-commercial research only, as is, no redistribution; "
    "the terms are shown and accepted on its site."
)
_ADRESSA_LICENCE = (
    "Adressa (Adresseavisen and NTNU): CC BY-NC-SA 4.0, non-commercial, attribution, share alike; the whole "
    "terms stand on its site."
)
_EBNERD_LICENCE = "EB-NeRD (JP/Politikens Media Group): research only, under the terms that its site shows."


@dataclass(frozen=True)
class Dataset:
    """One data set, as `veilrec data list` shows it."""

    name: str
    title: str
    kind: Kind
    module: str  # of veilrec.data, imported only when the set is read
    function: str  # read(path) or generate(**options), giving a Population
    licence: str
    how_to_get: str
    files: tuple[str, ...] = ()  # official names that the reader uses, plain or with .gz; may be globs
    marks: tuple[str, ...] = ()  # one of these makes a folder the data set's; the first is tried first


DATASETS: Mapping[str, Dataset] = {
    "ml-100k": Dataset(
        name="ml-100k",
        title="MovieLens 100K: 943 users, 1,682 films, 100,000 ratings",
        kind="ratings",
        module="movielens",
        function="read_100k",
        licence=_MOVIELENS_LICENCE,
        how_to_get="`veilrec data fetch ml-100k`, or ml-100k.zip from https://grouplens.org/datasets/movielens/100k/",
        files=("u.data", "u.item"),
        marks=("u.data",),
    ),
    "ml-1m": Dataset(
        name="ml-1m",
        title="MovieLens 1M: 6,040 users, 3,706 rated films, 1,000,209 ratings",
        kind="ratings",
        module="movielens",
        function="read_1m",
        licence=_MOVIELENS_LICENCE,
        how_to_get="`veilrec data fetch ml-1m`, or ml-1m.zip from https://grouplens.org/datasets/movielens/1m/",
        files=("ratings.dat", "movies.dat", "ncf/ml-1m.test.rating", "ncf/ml-1m.test.negative"),
        marks=("ratings.dat",),
    ),
    "frappe": Dataset(
        name="frappe",
        title="Frappe: 957 users, 4,082 apps, 96,203 uses with their context",
        kind="ratings",
        module="frappe",
        function="read",
        licence=_FRAPPE_LICENCE,
        how_to_get="the archive on https://www.baltrunas.info/context-aware/frappe, by hand",
        files=("frappe.csv", "meta.csv"),
        marks=("frappe.csv",),
    ),
    "mind": Dataset(
        name="mind",
        title="MIND (small or large): news impressions of Microsoft News, train and dev",
        kind="news",
        module="mind",
        function="read",
        licence=_MIND_LICENCE,
        how_to_get="MINDsmall_train.zip and MINDsmall_dev.zip, by hand: accept the terms on https://msnews.github.io",
        files=("**/behaviors.tsv", "**/news.tsv", "**/entity_embedding.vec"),
        marks=("train/behaviors.tsv", "MIND*_train/behaviors.tsv", "behaviors.tsv"),
    ),
    "adressa": Dataset(
        name="adressa",
        title="Adressa light: a week of reading logs of a Norwegian newspaper",
        kind="news",
        module="adressa",
        function="read",
        licence=_ADRESSA_LICENCE,
        how_to_get="`veilrec data fetch adressa`, or one_week.tar.gz from https://reclab.idi.ntnu.no/dataset/",
        files=("**/2017*",),
        marks=("2017*",),
    ),
    "ebnerd": Dataset(
        name="ebnerd",
        title="EB-NeRD: news impressions of Ekstra Bladet, train and validation",
        kind="news",
        module="ebnerd",
        function="read",
        licence=_EBNERD_LICENCE,
        how_to_get="ebnerd_demo.zip or ebnerd_small.zip, by hand: accept the terms on https://recsys.eb.dk/dataset/",
        files=("**/behaviors.parquet", "**/history.parquet", "**/articles.parquet"),
        marks=("train/behaviors.parquet",),
    ),
    "csv": Dataset(
        name="csv",
        title="your own user,item[,rating][,time] file: csv:PATH",
        kind="own file",
        module="own_csv",
        function="read",
        licence="yours",
        how_to_get="write a file with a header line that names at least user and item, then csv:PATH",
    ),
    "impressions": Dataset(
        name="impressions",
        title="your own log of lists that were shown and what was clicked: impressions:PATH",
        kind="own file",
        module="own_impressions",
        function="read",
        licence="yours",
        how_to_get="see `veilrec data import --help` for the format, then impressions:PATH",
    ),
    "synthetic-news": Dataset(
        name="synthetic-news",
        title="made-up news with impressions and a known best score: synthetic-news:users=5000,seed=1",
        kind="made up",
        module="synthetic_news",
        function="generate",
        licence="none needed",
        how_to_get="nothing to get",
    ),
    "synthetic-ratings": Dataset(
        name="synthetic-ratings",
        title="made-up uses of items with a known best score: synthetic-ratings:users=5000,items=2000,seed=1",
        kind="made up",
        module="synthetic_ratings",
        function="generate",
        licence="none needed",
        how_to_get="nothing to get",
    ),
}


def find_dataset(name: str) -> Dataset:
    """The data set of that name."""
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    return DATASETS[name]
