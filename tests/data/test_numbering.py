"""A model publishes its items in their order: over every reader, the order says nothing of who used what, or when.

Where a table lists the items, which of them there are says nothing either.
"""

import json
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.test_adressa import event, write
from tests.data.test_ebnerd import ARTICLES, behaviours, write_split
from tests.data.test_frappe import CONTEXT_TAIL, HEADER
from tests.data.test_impression_logs import shows, write_jsonl
from tests.data.test_mind import write_split as write_mind
from veilrec.data import adressa, ebnerd, frappe, mind, packed, synthetic_news, synthetic_ratings
from veilrec.data.impression_logs import read_impressions
from veilrec.data.movielens import read_1m, read_100k
from veilrec.data.own_csv import read_csv

# Uses of items by people are pairs of these numbers, in the order of the log. A listing is the order of the rows of a
# table of items.
USERS, ITEMS = ["9", "70", "8"], ["9", "100", "20", "3", "007"]
ONCE = [0, 1, 2, 0, 1, 2], [4, 2, 0, 3, 1, 0]
LISTED = [3, 0, 4, 2, 1]


def people():
    return reversed(USERS)


def read_of_100k(folder, uses, listing):
    (folder / "u.data").write_text("".join(f"{u}\t{i}\t3\t{time}\n" for time, (u, i) in enumerate(uses)))
    flags = "|" + "|".join("1" if flag % 5 == 0 else "0" for flag in range(19))
    (folder / "u.item").write_text("".join(f"{i}|Film {i} (199{int(i) % 9})|d||u{flags}\n" for i in listing))
    (folder / "u.user").write_text("".join(f"{u}|{20 + int(u)}|F|writer|1\n" for u in people()))
    return read_100k(folder)


def read_of_1m(folder, uses, listing):
    (folder / "ratings.dat").write_text("".join(f"{u}::{i}::3::{time}\n" for time, (u, i) in enumerate(uses)))
    (folder / "movies.dat").write_text("".join(f"{i}::Film {i}::Drama\n" for i in listing))
    (folder / "users.dat").write_text("".join(f"{u}::F::25::{int(u) % 20}::1\n" for u in people()))
    return read_1m(folder)


def read_of_frappe(folder, uses, listing):
    (folder / "frappe.csv").write_text(
        HEADER + "".join(f"{u}\t{i}\t{n}{CONTEXT_TAIL}" for n, (u, i) in enumerate(uses, 1))
    )
    rows = "".join(f"{i}\tkind {i}\tApp {i}\tdoes {i}\n" for i in listing)
    (folder / "meta.csv").write_text("item\tcategory\tname\tdescription\n" + rows)
    return frappe.read(folder)


def read_of_mind(folder, uses, listing):
    rows = [
        [str(n), u, f"11/{n + 1}/2019 8:36:57 AM", " ".join(i for of, i in uses[:n] if of == u), f"{i}-1 9-0"]
        for n, (u, i) in enumerate(uses)
    ]
    news = [[i, f"kind {i}", "", f"News {i}", "", "", "[]", "[]"] for i in [*listing, "unread"]]
    write_mind(folder / "train", rows[:3], news[:2])
    write_mind(folder / "dev", rows[3:], news[1:])
    return mind.read(folder)


def read_of_adressa(folder, uses, listing):
    events = [event(u, 1483225203 + n, i, title=f"News {i}", category1=f"kind|{i}") for n, (u, i) in enumerate(uses)]
    write(folder / "20170101", events[:3])
    write(folder / "20170102", events[3:])
    return adressa.read(folder)


def read_of_ebnerd(folder, uses, listing):
    shown = [
        (n, int(u), datetime(2023, 5, 1) + timedelta(days=n), [int(i), 9], [int(i)]) for n, (u, i) in enumerate(uses)
    ]
    past = {int(u): [int(i) for of, i in uses[:2] if of == u] for u, _ in uses}
    write_split(folder / "train", behaviours(*shown[:3]), past)
    write_split(folder / "validation", behaviours(*shown[3:]), past)
    articles = [(int(i), f"News {i}", "", f"kind {i}") for i in listing]
    pl.DataFrame(articles, schema=ARTICLES.schema, orient="row").write_parquet(folder / "articles.parquet")
    return ebnerd.read(folder)


def read_of_csv(folder, uses, listing):
    (folder / "log.csv").write_text("user,item,kind\n" + "".join(f"{u},{i},kind {i}\n" for u, i in uses))
    (folder / "items.csv").write_text("item,name,size\n" + "".join(f"{i},Item {i},{i}\n" for i in listing))
    (folder / "people.csv").write_text("user,land\n" + "".join(f"{u},land {u}\n" for u in people()))
    schema = {
        "users": {"file": "people.csv", "features": {"land": {"kind": "category"}}},
        "items": {"file": "items.csv", "title": "name", "features": {"size": {"kind": "number"}}},
    }
    (folder / "f.yaml").write_text(json.dumps(schema))
    of_the_log = {"items": {"title": "kind", "features": {"kind": {"kind": "category"}}}}
    (folder / "log.yaml").write_text(json.dumps(of_the_log))
    from_log = read_csv(folder / "log.csv", features=folder / "log.yaml")
    assert list(from_log.catalogue.titles) == [f"kind {item}" for item in from_log.items]
    assert from_log.unlisted_items == len(from_log.items)
    return read_csv(folder / "log.csv", features=folder / "f.yaml")


def read_of_impressions(folder, uses, listing):
    described = [{"item": i, "title": f"News {i}", "category": f"kind {i}"} for i in listing]
    return read_impressions(
        write_jsonl(folder, described + [shows(u, n * 30_000, [i, "9"], [i]) for n, (u, i) in enumerate(uses)])
    )


READERS = {
    "ml-100k": read_of_100k,
    "ml-1m": read_of_1m,
    "frappe": read_of_frappe,
    "mind": read_of_mind,
    "adressa": read_of_adressa,
    "ebnerd": read_of_ebnerd,
    "csv": read_of_csv,
    "impressions": read_of_impressions,
}
WITHOUT_TABLE = ("adressa",)  # whose items are those that people read
WHOLE_NUMBERS = ("ml-100k", "ml-1m", "frappe", "ebnerd")  # of which 007 is 7


def side(of):
    return of.to_json(), of.codes.tolist(), of.numbers.tolist()


def of_items(population):
    """Everything about items that is not about who used them."""
    catalogue, features = population.catalogue, population.features
    columns = ("titles", "categories", "subcategories", "abstracts", "entities")
    described = [list(getattr(catalogue, name) or ()) for name in columns]
    return (
        list(population.items),
        described,
        population.unlisted_items,
        population.exact,
        None if features is None else side(features.items),
    )


def public(population):
    """All that is not about what somebody used."""
    features = population.features
    return list(population.users), None if features is None else side(features.users), of_items(population)


def read(name, users, items, listing, left_out=()):
    uses = [(USERS[u], ITEMS[i]) for u, i in zip(users, items, strict=True)]
    uses = [use for number, use in enumerate(uses) if number not in left_out]
    with TemporaryDirectory() as folder:
        population = READERS[name](Path(folder), uses, [ITEMS[i] for i in listing])
        packed.save(population, Path(folder) / "packed")
        assert public(packed.load(Path(folder) / "packed")) == public(population)
    return population


@pytest.mark.parametrize("name", READERS)
def test_users_and_items_are_numbered_by_id(name):
    population = read(name, *ONCE, LISTED)
    assert list(population.users) == ["8", "9", "70"]
    seven = "7" if name in WHOLE_NUMBERS else "007"
    assert list(population.items) == ["3", seven, "9", "20", "100"] + ["unread"] * (name == "mind")
    listed = [number for number, title in enumerate(population.catalogue.titles) if title]
    assert len(listed) >= len(LISTED)
    titles = [title.replace("007", seven) for title in population.catalogue.titles]
    assert all(population.items[number] in titles[number] for number in listed)
    assert population.unlisted_items == (len(LISTED) if name in WITHOUT_TABLE else 0)


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=8)
@given(users=st.permutations(ONCE[0]), items=st.permutations(ONCE[1]), listing=st.permutations(LISTED))
def test_who_used_what_in_which_order_says_nothing_of_users_and_items(name, users, items, listing):
    assert public(read(name, users, items, listing)) == public(read(name, *ONCE, LISTED))


@pytest.mark.parametrize("name", [name for name in READERS if name not in WITHOUT_TABLE])
@settings(max_examples=8)
@given(
    items=st.lists(st.integers(0, len(ITEMS) - 1), min_size=6, max_size=6).filter(lambda used: len(set(used)) > 2),
    left_out=st.sets(st.integers(0, 5), max_size=1),
)
def test_with_a_table_of_items_what_people_used_says_nothing_of_the_items(name, items, left_out):
    found, other = (of_items(read(name, *used)) for used in ((ONCE[0], items, LISTED, left_out), (*ONCE, LISTED)))
    assert found[:4] == other[:4]
    # of frappe, features of apps are read off the log; of a csv, values of people's features: both say so
    assert bool(found[3]) == (name in ("frappe", "csv"))
    assert found == other or name == "frappe"


@pytest.mark.parametrize("name", [name for name in READERS if name not in WITHOUT_TABLE])
def test_items_that_no_table_lists_are_counted(name):
    population = read(name, *ONCE, LISTED[:2])  # of what was used, 9 and 3 are listed
    assert population.unlisted_items == 3
    assert len(population.items) == 5 + (name == "mind")


@pytest.mark.parametrize("generate", [synthetic_news.generate, synthetic_ratings.generate])
def test_synthetic_items_are_the_same_whoever_there_is(generate):
    few, many = (generate(users=users, **SIZES[generate.__module__.rpartition("_")[2]]) for users in (20, 30))
    assert of_items(few) == of_items(many)
    assert (few.unlisted_items, few.exact) == (0, ())
    assert len(few.interactions) < len(many.interactions)


SIZES = {"news": {"news": 200, "seed": 3}, "ratings": {"items": 60, "seed": 3}}
