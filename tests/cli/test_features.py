"""Methods that read features, given what they cannot use: one clear line and a code, never a traceback."""

import random
import shlex

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.cli.running import refused, says, shown, told, veilrec
from veilrec import train

TINY = "--data synthetic-ratings:users=60,items=50 --protocol loo-full --rounds 2 --set cohort.size=20"
READERS = ("privrec", "dp-privrec", "nn-self", "privrec-cen", "popularity-head")
ODD = ("inf", "-inf", "1e300", "-1e300", "nan", "", "many")  # numbers that are none, or out of all bounds
SCHEMA = """users:
  file: people.csv
  features:
    age: {kind: number RANGE_OF_AGE}
    town: {kind: category, values: [A, B]}
items:
  file: items.csv
  features:
    kind: {kind: category}
    price: {kind: number RANGE_OF_PRICE}
"""


@pytest.fixture
def place(tmp_path):
    """A log with features of its own, some of them odd; user u0 has one item, and u9 is not described."""
    draw = random.Random(1)  # noqa: S311
    rows = [f"u{u},i{i}" for u in range(30) for i in draw.sample(range(25), 1 if u == 0 else 6)]
    for name in ("log.csv", "plain.csv"):
        (tmp_path / name).write_text("\n".join(["user,item", *rows]))
    numbers = [*ODD, *(str(k) for k in range(30))]
    items = [f"i{i},{'abc'[i % 3]},{numbers[i]}" for i in range(25)]
    people = [f"u{u},{numbers[u]},{'AB'[u % 2]}" for u in range(30) if u != 9]
    (tmp_path / "items.csv").write_text("\n".join(["item,kind,price", *items]))
    (tmp_path / "people.csv").write_text("\n".join(["user,age,town", *people]))
    schema = SCHEMA.replace("RANGE_OF_AGE", ", low: 0, high: 100").replace("RANGE_OF_PRICE", ", low: 0, high: 20")
    (tmp_path / "log.features.yaml").write_text(schema)
    return tmp_path


def test_features_or_ratings_that_there_are_not(place):
    synthetic = TINY.replace(" --set cohort.size=20", "")
    own = "--protocol loo-full --set cohort.size=20"
    for method in READERS:
        for options, words in (
            (f"{synthetic} --set features.items=[nope]", "veilrec: unknown feature 'nope': known are critics, genres"),
            (f"{synthetic} --set 'features.items=[genres, nope]'", "unknown feature 'nope'"),
            (f"{synthetic} --set features.items=[]", "name at least one of genres, critics"),
            (f"--data csv:{place}/plain.csv --protocol loo-full", "says nothing of its items but their ids"),
        ):
            assert words in refused(*shlex.split(f"train {method} {options} --out {place}/run"))
    for method in (*READERS, "fofl-self"):
        line = f"train {method} --data csv:{place}/log.csv {own} --set local.loss=rating --out {place}/run"
        says(refused(*line.split()), "rating", "logistic")
    assert not (place / "run").exists()


def test_training_that_diverges_saves_no_model_and_names_the_rates_of_the_method(tmp_path):
    for method in ("privrec", "dp-privrec", "nn-self", "privrec-cen", "fofl-self"):
        run = tmp_path / method
        words = refused(*f"train {method} {TINY} --set local.rate=1e30 --out {run}".split(), code=1)
        assert "diverged" in words
        assert "item_rate" not in words
        assert method != "privrec" or "(--set local.rate=..., server.rate=...)" in words
        assert not list(run.rglob("*.safetensors"))


def test_a_client_on_which_the_head_overflows_keeps_the_popular_list(tmp_path):
    data = "synthetic-ratings:users=80,items=150,seed=1"
    trained = train("popularity-head", data, out=tmp_path / "run", settings=["local.rate=1e30"])
    history = [trained.model.items[3], trained.model.items[9]]
    popular = [one.item for one in trained.recommend([], k=20) if one.item not in history]
    assert [one.item for one in trained.recommend(history, k=10)] == popular[:10]


@pytest.fixture
def run(place):
    line = f"train privrec --data csv:{place}/log.csv --protocol loo-full --rounds 2 --set cohort.size=20"
    shown(*f"{line} --set features.users=[age,town] --set model.hidden=[4] --out {place}/run".split())
    return place / "run"


def finite(run):
    tables = [values for path in run.rglob("*.safetensors") for values in load_file(path).values()]
    return all(np.isfinite(values).all() for values in tables if values.dtype.kind == "f")


@pytest.mark.parametrize("price", ["", ", low: 0", ", high: 1"])
def test_odd_numbers_without_a_range(price, place):
    (place / "log.features.yaml").write_text(SCHEMA.replace(" RANGE_OF_AGE", "").replace(" RANGE_OF_PRICE", price))
    line = f"train privrec --data csv:{place}/log.csv --protocol loo-full --rounds 1 --set cohort.size=20"
    code, _, words = veilrec(*line.split(), "--out", place / "run")
    assert code in (0, 2)
    assert "Traceback" not in words
    assert code == 2 or finite(place / "run")


def test_what_is_known_of_somebody_makes_the_list(run):
    assert finite(run)  # odd numbers are moved inside the range or to the middle
    shown("evaluate", run)
    for user in ("u0", "u9"):  # one with a single item, one who is not described
        assert "nan" not in str(told("recommend", run, "--user", user))

    def listed(*about):
        return told(*asked(*about))["recommendations"]

    def asked(*about):
        return ["recommend", str(run), "--history", "i1,i2", *(word for one in about for word in ("--about", one))]

    stranger = listed()
    assert listed("town=Z") == listed("age=inf", "town=Z") == stranger
    words = veilrec(*asked("age=inf", "town=Z")).err
    says(words, "town 'Z' is not among what the model knows (A, B): taken as", "age 'inf' is no finite number: taken")
    assert listed("age=999") == listed("age=100") == listed("age=1e300")
    different = [stranger, *(listed(about) for about in ("age=999", "town=A", "town=B"))]
    assert all(one != other for place, one in enumerate(different) for other in different[:place])
    assert "unknown feature 'group': known are age, town" in refused(*asked("group=a"))
    assert "says nothing" in refused(*asked("age"))
