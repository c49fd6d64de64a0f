"""Features of your own data: from the log, from a second table, and what is said of those that are missing."""

from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from veilrec.core.errors import BadInput
from veilrec.core.features import Feature
from veilrec.data import packed
from veilrec.data.check import check, notices
from veilrec.data.datasets import load
from veilrec.data.delimited import CsvOptions
from veilrec.data.own_csv import read_csv
from veilrec.data.own_features import (
    MAX_VALUES,
    SideSchema,
    Wanted,
    beside,
    found_values,
    modal,
    parse_schema,
    read_schema,
    side_of,
)

LOG = "user,item,country,price\nann,f7,DE,3\nann,f2,FR,9\nann,f9,FR,inf\nben,f2,,1\ncleo,f7,unknown,5\n"
PEOPLE = "user,age,likes\n ben ,50,tea|art\nann,,art\nzoe,20,beer\n"


def read(folder, schema, log=LOG, options=None, **others):
    (folder / "log.csv").write_text(log)
    (folder / "f.yaml").write_text(schema)
    for name, text in others.items():
        (folder / f"{name}.csv").write_text(text)
    return read_csv(folder / "log.csv", options=options, features=folder / "f.yaml")


def users_of(population):
    return population.features.users.codes.tolist(), population.features.users.numbers.tolist()


def test_columns_of_the_log_give_the_usual_value_and_the_mean(tmp_path):
    schema = "users: {features: {country: {kind: category}, price: {kind: number, low: 0, high: 10}}}"
    population = read(tmp_path, schema)
    assert population.features.users.features[0].values == ("DE", "FR")
    codes, numbers = users_of(population)
    assert codes == [[2], [0], [0]]
    assert np.allclose(numbers, [[0.6], [0.1], [0.5]])  # ann: (3 + 9) / 2, and what is infinite says nothing
    assert (len(population.features.items), population.features.items.features) == (3, ())
    assert "columns_ignored" not in population.facts


def test_a_second_table_is_joined_by_its_key(tmp_path):
    schema = "users: {file: people.csv, features: {age: {kind: number}, likes: {kind: categories}}}"
    population = read(tmp_path, schema, people=PEOPLE)
    age, likes = population.features.users.features
    assert (age.low, age.high, likes.values) == (20.0, 50.0, ("art", "beer", "tea"))  # zoe's as well
    assert users_of(population) == ([[1, -1], [1, 3], [0, -1]], [[0.5], [1.0], [0.5]])
    told = {"users_without_features": 1, "unknown_numbers: users.age": 2}
    told |= {"features_from": "f.yaml", "columns_ignored": "country, price"}
    assert told.items() <= population.facts.items()
    genres = '{kind: categories, separator: "/", values: [b, a]}'  # a key and a separator of their own
    schema = f"items: {{file: films.csv, key: sku, features: {{genres: {genres}}}}}"
    population = read(tmp_path, schema, films="sku;genres\nf2;a/b\nf7;c\nf9;b\n")
    assert population.features.items.codes.tolist() == [[1, 2], [0, -1], [1, -1]]
    assert "items_without_features" not in population.facts


def test_titles_come_from_a_table_of_items_with_features_or_without_or_from_the_log(tmp_path):
    films = "sku,name,plot,year\nf2,Été (1996),a summer,1996\nf9, Night ,,1999\nf8,Unseen,nobody,2000\n"
    alone = read(tmp_path, "items: {file: films.csv, key: sku, title: name}", films=films)
    assert list(alone.items) == ["f2", "f7", "f8", "f9"]  # f7 is not listed, and nobody used f8
    assert (list(alone.catalogue.titles), alone.unlisted_items) == (["Été (1996)", "", "Unseen", "Night"], 1)
    assert (alone.features, alone.catalogue.abstracts, alone.facts["titles_read"]) == (None, None, 3)
    schema = "items: {file: films.csv, key: sku, title: name, abstract: plot, features: {year: {kind: number}}}"
    both = read(tmp_path, schema, films=films)
    assert list(both.catalogue.abstracts or ()) == ["a summer", "", "nobody", ""]
    assert [feature.name for feature in both.features.items.features] == ["year"]
    packed.save(both, tmp_path / "packed")
    again = packed.load(tmp_path / "packed")
    assert list(again.catalogue.titles) == list(both.catalogue.titles)
    assert (again.unlisted_items, again.exact) == (both.unlisted_items, both.exact) == (1, ())
    assert any("titles were read of 3 items" in line for line in notices(both.facts))
    log = "user,item,name\nann,f7,Day\nann,f2,\nben,f7,Dey\nben,f2,Night\ncleo,f7,Day\n"
    found = read(tmp_path, "items: {title: name}", log=log)
    assert list(found.catalogue.titles) == ["Night", "Day"]
    assert "columns_ignored" not in found.facts


def test_what_does_not_fit_is_told(tmp_path):
    for schema, told in (
        ("items: {title: name}", "no such column; unknown column 'name'"),
        ("items: {title: [name], features: {price: {kind: number}}}", "title: .*found .'name'."),
        ("items: {abstract: price}", "abstract is given and title is not"),
        ("users: {title: country}", "title is for items"),
        ("users: {features: {age: {kind: number}}}", "unknown column 'age'.*country, item, price, user"),
        ("users: {features: {country: {kind: number}}}", "column 'country' holds no number: use kind: category"),
        ("users: {file: people.csv, features: {agee: {kind: number}}}", "did you mean age.*known are age, likes, user"),
        (
            "users: {file: people.csv, key: id, features: {age: {kind: number}}}",
            "key of users.*known are age, likes, u",
        ),
        ("users: {file: twice.csv, features: {age: {kind: number}}}", "twice.csv, line 4: the user 'ann' is listed tw"),
        ("users: {file: torn.csv, features: {age: {kind: number}}}", "torn.csv, line 3"),
        ("users: {features: {price: {kind: number, low: 99, high: 3}}}", "low must be below high"),
        ("items: {file: gone.csv, features: {age: {kind: number}}}", "gone.csv is not there"),
    ):
        with pytest.raises(BadInput, match=told):
            read(
                tmp_path, schema, people=PEOPLE, twice="user,age\nann,1\nben,2\nann,3\n", torn="user,age\nann,1\nben\n"
            )


def test_numbers_are_scaled_to_their_range(tmp_path):
    equal = "user,item,n\na,x,4\nb,y,4\n"
    huge = "user,item,n\na,x,1e308\na,y,1e308\nb,x,-1e400\nb,y,1e400\nc,x,-7\n"
    for range_, log, options, expected in (
        ("", equal, {}, [[0.0]] * 2),  # the range is made wider
        (", high: 4", equal, {}, [[1.0]] * 2),
        (", low: 9", equal, {}, [[0.0]] * 2),
        (", low: 0, high: 1.0e+308", huge, {}, [[1.0], [0.5], [0.0]]),  # and huge numbers stay in theirs
        (", low: 0, high: 1", "user;item;rating;n\na;x;4,5;0,5\nb;y;3;0,25\n", {"decimal": ","}, [[0.5], [0.25]]),
    ):
        schema = f"users: {{features: {{n: {{kind: number{range_}}}}}}}"
        assert users_of(read(tmp_path, schema, log, CsvOptions(**options)))[1] == expected


def test_rows_that_differ_in_features_alone_are_merged_and_bad_ones_left_out(tmp_path):
    schema = "users: {features: {mood: {kind: category}}}"
    population = read(tmp_path, schema, "user,item,mood\na,x,1\na,x,2\na,x,2\nb,y,1\n")
    assert (len(population.interactions), users_of(population)[0]) == (2, [[2], [1]])
    log = "user,item,rating,mood\na,x,1,p\na,y,bad,q\na,z,bad,q\nb,y,2,q\n"
    assert users_of(read(tmp_path, schema, log, CsvOptions(skip_bad=True)))[0] == [[1], [2]]


def test_a_schema_beside_a_log_or_parquet_is_read_and_a_change_is_noticed(tmp_path):
    (tmp_path / "log.csv").write_text(LOG)
    assert load(f"csv:{tmp_path / 'log.csv'}").features is None
    (tmp_path / "people.csv").write_text(PEOPLE)
    (tmp_path / "log.features.yaml").write_text("users: {file: people.csv, features: {likes: {kind: categories}}}")
    assert users_of(load(f"csv:{tmp_path / 'log.csv'}"))[0] == [[1, -1], [1, 3], [0, -1]]
    (tmp_path / "people.csv").write_text("user,likes\ncleo,art\n")
    assert users_of(load(f"csv:{tmp_path / 'log.csv'}"))[0] == [[0], [0], [1]]
    frame = pl.DataFrame({"user": ["a", "b"], "item": ["x", "y"], "age": [20, None], "tags": [["p"], ["q"]]})
    frame.write_parquet(tmp_path / "log.parquet")
    (tmp_path / "log.features.yaml").write_text("users: {features: {age: {kind: category}}}")
    population = load(f"csv:{tmp_path / 'log.parquet'}")
    assert users_of(population)[0] == [[1], [0]]
    (tmp_path / "log.features.yaml").write_text("users: {features: {tags: {kind: category}}}")
    with pytest.raises(BadInput, match="holds lists"):
        load(f"csv:{tmp_path / 'log.parquet'}")


def test_the_check_shows_features_and_who_is_unknown(tmp_path):
    schema = "users: {file: people.csv, features: {age: {kind: number, low: 0, high: 99}, likes: {kind: categories}}}"
    population = read(tmp_path, schema, people=PEOPLE)
    packed.save(population, tmp_path / "packed")
    for each in (population, packed.load(tmp_path / "packed")):
        report = check(each)
        assert [feature.summary() for feature in report.features] == [
            "number from 0 to 99, 66.7% unknown",
            "categories, 3 values, 33.3% unknown",
        ]
        assert "1 user of the log not listed" in " ".join(report.odd)


TEXTS = st.sampled_from(["", "unknown", "a", " a", "b", "c"])


def test_values_are_those_that_occur_and_say_something_and_a_frame_becomes_a_side():
    column = pl.Series(["b", " a ", "", "unknown", None, "b"])
    assert found_values(column) == ("a", "b")
    assert found_values(pl.Series(["b|a", "c||a", None]), "categories") == ("a", "b", "c")
    assert found_values(pl.Series([], dtype=pl.String)) == ()
    names = [f"v{number:04}" for number in range(MAX_VALUES + 5)]  # of very many the most frequent are taken
    assert found_values(pl.Series([*names, *names[5:]])) == tuple(names[5:])
    frame = pl.DataFrame({"n": ["5", "x", " 20 "], "tags": ["p|q", None, "r"], "more": [1, 2, 3]})
    features = (Feature("tags", "categories", ("p", "q")), Feature("n", "number", low=0, high=10))
    side = side_of(frame, features)
    assert (side.codes.tolist(), side.numbers.tolist()) == ([[1, 2], [0, -1], [0, -1]], [[0.5], [0.5], [1.0]])


@given(st.lists(st.tuples(st.integers(0, 3), TEXTS), max_size=30))
def test_the_usual_value_is_the_most_frequent_and_the_first_of_equals(rows):
    owners = np.array([owner for owner, _ in rows], np.int64)
    found = modal(owners, pl.Series([text for _, text in rows], dtype=pl.String), 4).to_list()
    for owner in range(4):
        counts = Counter(t.strip() for o, t in rows if o == owner and t.strip() not in ("", "unknown"))
        assert found[owner] == min(counts, key=lambda value: (-counts[value], value), default=None)


HERE = Path(__file__).parent
WHOLE = """
users:
  file: people.csv
  key: customer
  features:
    age: {kind: number, low: 0, high: 100}
    likes: {kind: categories, separator: ";"}
items:
  features:
    genre: {kind: category, values: [art, 2]}
"""


def test_a_schema_says_what_is_where(tmp_path):
    (tmp_path / "people.csv").write_text("customer,age,likes\na,3,x\n")
    path = tmp_path / "clicks.features.yaml"
    path.write_text(WHOLE)
    schema = read_schema(path)
    people = {"age": Wanted("number", None, 0.0, 100.0), "likes": Wanted("categories", separator=";")}
    assert schema.sides == {
        "users": SideSchema(tmp_path / "people.csv", "customer", people),
        "items": SideSchema(features={"genre": Wanted("category", ("art", "2"))}),
    }
    assert (schema.sources, schema.log_columns) == ([path, tmp_path / "people.csv"], ("genre",))
    assert (beside(tmp_path / "clicks.csv.gz"), beside(tmp_path / "other.csv")) == (path, None)
    path.write_bytes(b"\xff\xfe\x00")
    for wrong, words in ((path, "not UTF-8"), (tmp_path / "gone.yaml", "cannot be read")):
        with pytest.raises(BadInput, match=words):
            read_schema(wrong)


def one(column):
    return f"users: {{features: {{age: {column}}}}}"


def test_what_is_wrong_is_told():
    for text, told in (
        ("users: [", "is no YAML"),
        ("users: 2024-13-45", "is no YAML"),
        ("[" * 5000, "is no YAML"),
        ("", "expected is users: and items:, found nothing"),
        ("just words", "found 'just words'"),
        ("people: {features: {}}", "unknown key 'people'.*known are items, users"),
        ("users: {}", "users: features: is needed"),
        ("users: {features: {}}", "users: features: is needed, with columns"),
        ("users: {feature: {a: {kind: number}}}", "unknown key 'feature': did you mean features"),
        ("users: {file: 3, features: {a: {kind: number}}}", "users, file: .*found 3"),
        ("users: {file: gone.csv, features: {a: {kind: number}}}", "gone.csv is not there"),
        ("users: {key: id, features: {a: {kind: number}}}", "key is for a second file"),
        ("users: {file: test_own_features.py, key: [1], features: {a: {kind: number}}}", r"users, key: .*found \[1\]"),
        (one("number"), "users, features, age: .*found 'number'"),
        (one("{kind: colour}"), "age, kind: .*'category', 'categories' or 'number' .found 'colour'"),
        (one("{kind: [number]}"), "age, kind: "),
        (one("{values: [a]}"), "age, kind: Field required"),
        (one("{kind: number, values: [a]}"), "values is not for a number, which has low and high"),
        (one("{kind: category, low: 3}"), "low is not for a category"),
        (one("{kind: category, separator: ','}"), "separator is not for a category"),
        (one("{kind: categories, separator: ''}"), "separator: .*at least 1 character"),
        (one("{kind: number, low: 5, high: 5}"), "low must be below high"),
        (one("{kind: number, low: 6, high: 5}"), "low must be below high"),
        (one("{kind: number, low: .inf}"), "low: .*finite number"),
        (one("{kind: number, low: " + "9" * 400 + "}"), "low: "),
        (one("{kind: number, high: yes}"), "high: .*found True"),
        (one("{kind: category, values: []}"), "values: .*at least 1 item"),
        (one("{kind: category, values: DE}"), "values: .*found 'DE'"),
        (one("{kind: category, values: [yes, no]}"), "values, 0: .*string .found True"),
        (one("{kind: category, values: [a, ' a']}"), "a value stands twice"),
    ):
        with pytest.raises(BadInput, match=told):
            parse_schema(text, "f.yaml", HERE)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
KEYS = st.sampled_from("users items features file key kind values low high separator age".split())  # noqa: SIM905
KINDS = st.sampled_from(["category", "categories", "number"])
TREES = st.recursive(
    SCALARS | KINDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@given(TREES, st.text())
def test_any_yaml_or_text_is_read_or_refused(tree, text):
    for given_text in (yaml.safe_dump({"users": {"features": {"age": tree}}}), text):
        try:
            sides = parse_schema(given_text, "f.yaml", HERE)
        except BadInput as error:
            assert str(error).startswith("f.yaml")
        else:
            assert sides and (given_text == text or list(sides["users"].wanted) == ["age"])
