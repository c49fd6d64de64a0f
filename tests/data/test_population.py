"""Ratings of given pairs, and the pairs of a log."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from veilrec.data.population import Interactions, pack_interactions

ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(1, 5)), max_size=40)


@given(ROWS)
def test_the_rating_of_a_pair_is_its_last_one(rows: list[tuple[int, int, int]]) -> None:
    users, items, ratings = (np.array([row[part] for row in rows], np.int32) for part in range(3))
    log = pack_interactions(users, items, 5, ratings=ratings.astype(np.float32))
    last = {(user, item): rating for user, item, rating in rows}
    asked = [(user, item) for user in range(6) for item in range(9)]  # some beyond what the log has
    found = log.ratings_of(*np.array(asked, np.int64).T)
    assert found is not None
    assert found.dtype == np.float32
    for pair, rating in zip(asked, found.tolist(), strict=True):
        assert rating == last[pair] if pair in last else np.isnan(rating)
    assert sorted((u, i) for u in range(5) for i in log.pairs().row(u)) == sorted(last)


def test_a_log_without_ratings_has_none() -> None:
    log = Interactions(np.array([0, 1]), np.array([3], np.int32))
    assert log.ratings_of(np.array([0]), np.array([3])) is None
