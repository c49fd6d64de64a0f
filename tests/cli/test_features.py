"""Methods that read features, given what they cannot use: one clear line and a code, never a traceback."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.cli.test_everyday_errors import veilrec
from veilrec import train as veilrec_train

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
def place(tmp_path: Path) -> Path:
    """A log with features of its own, some of them odd; user u0 has one item, and u9 is not described."""
    draw = random.Random(1)  # noqa: S311
    rows = [f"u{u},i{i}" for u in range(30) for i in draw.sample(range(25), 1 if u == 0 else 6)]
    (tmp_path / "log.csv").write_text("\n".join(["user,item", *rows]))
    (tmp_path / "plain.csv").write_text("\n".join(["user,item", *rows]))
    numbers = [*ODD, *(str(k) for k in range(30))]
    items = [f"i{i},{'abc'[i % 3]},{numbers[i]}" for i in range(25)]
    people = [f"u{u},{numbers[u]},{'AB'[u % 2]}" for u in range(30) if u != 9]
    (tmp_path / "items.csv").write_text("\n".join(["item,kind,price", *items]))
    (tmp_path / "people.csv").write_text("\n".join(["user,age,town", *people]))
    schema = SCHEMA.replace("RANGE_OF_AGE", ", low: 0, high: 100").replace("RANGE_OF_PRICE", ", low: 0, high: 20")
    (tmp_path / "log.features.yaml").write_text(schema)
    return tmp_path


def refused(line: str, code: int = 2) -> str:
    """What is said of a line that cannot be done."""
    got, _, words = veilrec(line)
    assert got == code, words
    assert "Traceback" not in words
    (told,) = [text for text in words.splitlines() if text.startswith("veilrec: ")]
    return told


@pytest.mark.parametrize("method", READERS)
def test_features_that_there_are_not(method: str, place: Path) -> None:
    of = TINY.replace(" --set cohort.size=20", "")
    told = refused(f"train {method} {of} --set features.items=[nope] --out {place}/run")
    assert told == "veilrec: unknown feature 'nope': known are critics, genres"
    assert "unknown feature 'nope'" in refused(
        f"train {method} {of} --set 'features.items=[genres, nope]' --out {place}/run"
    )
    assert "name at least one of genres, critics" in refused(
        f"train {method} {of} --set features.items=[] --out {place}/run"
    )
    assert not (place / "run").exists()


@pytest.mark.parametrize("method", READERS)
def test_data_without_features(method: str, place: Path) -> None:
    told = refused(f"train {method} --data csv:{place}/plain.csv --protocol loo-full --out {place}/run")
    assert "says nothing of its items but their ids" in told
    assert not (place / "run").exists()


@pytest.mark.parametrize("method", [*READERS, "fofl-self"])
def test_ratings_that_there_are_not(method: str, place: Path) -> None:
    data = f"--data csv:{place}/log.csv --protocol loo-full --set cohort.size=20"
    told = refused(f"train {method} {data} --set local.loss=rating --out {place}/run")
    assert "rating" in told
    assert "logistic" in told
    assert not (place / "run").exists()


@pytest.mark.parametrize("method", ["privrec", "dp-privrec", "nn-self", "privrec-cen", "fofl-self"])
def test_training_that_diverges_saves_no_model(method: str, tmp_path: Path) -> None:
    told = refused(f"train {method} {TINY} --set local.rate=1e30 --out {tmp_path}/run", code=1)
    assert "diverged" in told
    assert "item_rate" not in told
    assert not (tmp_path / "run" / "model").exists()
    assert not list((tmp_path / "run").rglob("*.safetensors"))


def test_a_device_on_which_the_head_overflows_keeps_the_popular_list(tmp_path: Path) -> None:
    trained = veilrec_train(
        "popularity-head",
        "synthetic-ratings:users=80,items=150,seed=1",
        out=tmp_path / "run",
        settings=["local.rate=1e30"],
    )
    history = [trained.model.items[3], trained.model.items[9]]
    popular = [one.item for one in trained.recommend([], k=20) if one.item not in history]
    assert [one.item for one in trained.recommend(history, k=10)] == popular[:10]


def test_the_hint_names_the_rates_that_a_method_has(tmp_path: Path) -> None:
    told = refused(f"train privrec {TINY} --set local.rate=1e30 --out {tmp_path}/run", code=1)
    assert "(--set local.rate=..., server.rate=...)" in told
    told = refused(f"train fedmf {TINY} --set local.item_rate=1e30 --out {tmp_path}/other", code=1)
    assert "diverged" in told


@pytest.fixture
def run(place: Path) -> Path:
    line = f"train privrec --data csv:{place}/log.csv --protocol loo-full --rounds 2 --set cohort.size=20"
    code, _, words = veilrec(f"{line} --set features.users=[age,town] --set model.hidden=[4] --out {place}/run")
    assert code == 0, words
    return place / "run"


def test_odd_numbers_in_own_data_are_moved_inside_or_to_the_middle(run: Path) -> None:
    for path in (*run.rglob("*.safetensors"),):
        for name, values in load_file(path).items():
            assert not np.issubdtype(values.dtype, np.floating) or np.isfinite(values).all(), (path, name)
    assert veilrec(f"evaluate {run}")[0] == 0


@pytest.mark.parametrize("price", ["", ", low: 0", ", high: 1"])
def test_odd_numbers_without_a_range(price: str, place: Path) -> None:
    schema = SCHEMA.replace(" RANGE_OF_AGE", "").replace(" RANGE_OF_PRICE", price)
    (place / "log.features.yaml").write_text(schema)
    line = f"train privrec --data csv:{place}/log.csv --protocol loo-full --rounds 1 --set cohort.size=20"
    code, _, words = veilrec(f"{line} --out {place}/run")
    assert code in (0, 2)
    assert "Traceback" not in words
    if code == 0:
        weights = load_file(place / "run" / "model" / "model.safetensors")
        assert all(np.isfinite(values).all() for values in weights.values() if values.dtype.kind == "f")


def test_somebody_with_one_item_and_somebody_who_is_not_described_get_lists(run: Path) -> None:
    for user in ("u0", "u9"):
        code, listed, words = veilrec(f"recommend {run} --user {user}")
        assert code == 0, words
        assert "nan" not in listed


def listed(run: Path, *about: str) -> tuple[object, str]:
    """A list for somebody with two items, and what is said about it."""
    code, out, words = veilrec(f"recommend {run} --history i1,i2 --json " + " ".join(f"--about {a}" for a in about))
    assert code == 0, words
    return json.loads(out)["recommendations"], words


def test_values_that_nobody_had_are_taken_as_unknown_and_said_so(run: Path) -> None:
    stranger, _ = listed(run)
    found, words = listed(run, "town=Z")
    assert found == stranger
    assert "town 'Z' is not among what the model knows (A, B): taken as unknown" in words
    found, words = listed(run, "age=inf", "town=Z")
    assert found == stranger
    assert "age 'inf' is no finite number: taken as unknown" in words


def test_what_is_said_of_somebody_changes_the_list_and_what_lies_outside_is_moved_to_the_end(run: Path) -> None:
    assert listed(run, "age=999")[0] == listed(run, "age=100")[0] == listed(run, "age=1e300")[0]
    different = [listed(run, *about)[0] for about in ((), ("age=999",), ("town=A",), ("town=B",))]
    assert all(one != other for place, one in enumerate(different) for other in different[:place])


def test_features_that_the_model_does_not_have_are_named(run: Path) -> None:
    assert "unknown feature 'group': known are age, town" in refused(f"recommend {run} --history i1 --about group=a")
    assert "says nothing" in refused(f"recommend {run} --history i1 --about age")
