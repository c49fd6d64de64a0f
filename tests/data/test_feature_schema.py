"""The YAML file of features: what it may say, and every way to get it wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from veilrec.data.feature_schema import SideSchema, Wanted, beside, parse_schema, read_schema
from veilrec.errors import BadInput

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


def test_a_schema_says_what_is_where(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("customer,age,likes\na,3,x\n")
    (tmp_path / "clicks.features.yaml").write_text(WHOLE)
    schema = read_schema(tmp_path / "clicks.features.yaml")
    people = (Wanted("age", "number", None, 0.0, 100.0), Wanted("likes", "categories", separator=";"))
    assert schema.sides == (
        SideSchema("users", tmp_path / "people.csv", "customer", people),
        SideSchema("items", None, "item", (Wanted("genre", "category", ("art", "2")),)),
    )
    assert schema.sources == [tmp_path / "clicks.features.yaml", tmp_path / "people.csv"]
    assert schema.log_columns == ("genre",)
    assert beside(tmp_path / "clicks.csv.gz") == tmp_path / "clicks.features.yaml"
    assert beside(tmp_path / "other.csv") is None


def one(column: str) -> str:
    return f"users: {{features: {{age: {column}}}}}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("users: [", "is no YAML"),
        ("users: 2024-13-45", "is no YAML"),
        ("[" * 5000, "is no YAML"),
        ("", "expected is users: and items:, found nothing"),
        ("just words", "found 'just words'"),
        ("people: {features: {}}", "unknown key 'people'.*known are items, users"),
        ("users: {}", "users: expected is features:, found nothing"),
        ("users: {features: {}}", "users, features: expected is columns.*found nothing"),
        ("users: {feature: {a: {kind: number}}}", "unknown key 'feature': did you mean features"),
        ("users: {file: 3, features: {a: {kind: number}}}", "file is 3"),
        ("users: {file: gone.csv, features: {a: {kind: number}}}", "gone.csv is not there"),
        ("users: {key: id, features: {a: {kind: number}}}", "key is for a second file"),
        ("users: {file: test_feature_schema.py, key: [1], features: {a: {kind: number}}}", r"key is \[1\]"),
        (one("number"), "users, age: expected is kind:"),
        (one("{kind: colour}"), "unknown kind 'colour'.*known are categories, category, number"),
        (one("{kind: [number]}"), "unknown kind"),
        (one("{values: [a]}"), "unknown kind 'None'"),
        (one("{kind: number, values: [a]}"), r"users, age \(a number\): unknown key 'values'.*high, kind, low"),
        (one("{kind: category, low: 3}"), r"\(a category\): unknown key 'low'"),
        (one("{kind: category, separator: ','}"), "unknown key 'separator'"),
        (one("{kind: categories, separator: ''}"), "separator is ''"),
        (one("{kind: number, low: 5, high: 5}"), "low must be below high"),
        (one("{kind: number, low: 6, high: 5}"), "low must be below high"),
        (one("{kind: number, low: -1.0e+308, high: 1.0e+308}"), "both finite"),
        (one("{kind: number, low: .inf}"), "low is inf: give a finite number"),
        (one("{kind: number, low: " + "9" * 400 + "}"), "give a finite number"),
        (one("{kind: number, high: yes}"), "high is True"),
        (one("{kind: category, values: []}"), r"values is \[\]"),
        (one("{kind: category, values: DE}"), "values is 'DE'"),
        (one("{kind: category, values: [yes, no]}"), "True in values is neither a text nor a number: put it in quotes"),
        (one("{kind: category, values: [a, ' a']}"), "'a' stands twice"),
    ],
)
def test_what_is_wrong_is_told(text: str, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        parse_schema(text, "f.yaml", HERE)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read_schema(tmp_path / "gone.yaml")
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="not UTF-8"):
        read_schema(tmp_path / "bad.yaml")


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
KEYS = st.sampled_from(
    ["users", "items", "features", "file", "key", "kind", "values", "low", "high", "separator", "age"]
)
KINDS = st.sampled_from(["category", "categories", "number"])
TREES = st.recursive(
    SCALARS | KINDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@given(TREES)
def test_any_yaml_is_read_or_refused(tree: Any) -> None:
    try:
        sides = parse_schema(yaml.safe_dump({"users": {"features": {"age": tree}}}), "f.yaml", HERE)
    except BadInput as error:
        assert "f.yaml" in str(error)
    else:
        assert sides[0].wanted[0].name == "age"


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert parse_schema(text, "f.yaml", HERE)
    except BadInput as error:
        assert str(error).startswith("f.yaml")
