"""Columns as features: their values, and the usual one of each owner."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from veilrec.data.feature_columns import MOST_VALUES, found_values, modal, side_of
from veilrec.features import Feature

TEXTS = st.sampled_from(["", "unknown", "a", " a", "b", "c"])


def test_values_are_those_that_occur_and_say_something() -> None:
    column = pl.Series(["b", " a ", "", "unknown", None, "b"])
    assert found_values(column) == ("a", "b")
    assert found_values(pl.Series(["b|a", "c||a", None]), "categories") == ("a", "b", "c")
    assert found_values(pl.Series([], dtype=pl.String)) == ()


def test_of_very_many_values_the_most_frequent_are_taken() -> None:
    names = [f"v{number:04}" for number in range(MOST_VALUES + 5)]
    values = found_values(pl.Series([*names, *names[5:]]))
    assert values == tuple(names[5:])


@given(st.lists(st.tuples(st.integers(0, 3), TEXTS), max_size=30))
def test_the_usual_value_is_the_most_frequent_and_the_first_of_equals(rows: list[tuple[int, str]]) -> None:
    owners = np.array([owner for owner, _ in rows], np.int64)
    found = modal(owners, pl.Series([text for _, text in rows], dtype=pl.String), 4).to_list()
    for owner in range(4):
        counts = Counter(t.strip() for o, t in rows if o == owner and t.strip() not in ("", "unknown"))
        assert found[owner] == min(counts, key=lambda value: (-counts[value], value), default=None)


def test_a_frame_becomes_a_side() -> None:
    frame = pl.DataFrame({"n": ["5", "x", " 20 "], "tags": ["p|q", None, "r"], "more": [1, 2, 3]})
    features = (Feature("tags", "categories", ("p", "q")), Feature("n", "number", low=0, high=10))
    side = side_of(frame, features)
    assert side.codes.tolist() == [[1, 2], [0, -1], [0, -1]]
    assert side.numbers.tolist() == [[0.5], [0.5], [1.0]]
