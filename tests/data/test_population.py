"""Ratings of given pairs, and the pairs of a log."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from veilrec.data import synthetic_news, synthetic_ratings
from veilrec.data.population import pack_interactions, some_users

ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(1, 5)), max_size=40)


@given(ROWS)
def test_the_rating_of_a_pair_is_its_last_one(rows):
    users, items, ratings = (np.array([row[part] for row in rows], np.int32) for part in range(3))
    log = pack_interactions(users, items, 5, ratings=ratings.astype(np.float32))
    last = {(user, item): rating for user, item, rating in rows}
    asked = [(user, item) for user in range(6) for item in range(9)]  # some beyond what the log has
    found = log.ratings_of(*np.array(asked, np.int64).T)
    assert found.dtype == np.float32
    for pair, rating in zip(asked, found.tolist(), strict=True):
        assert rating == last[pair] if pair in last else np.isnan(rating)
    assert sorted((u, i) for u in range(5) for i in log.pairs().row(u)) == sorted(last)


def test_ratings_features_and_times_go_with_their_users():
    everybody, chosen = synthetic_ratings.generate(users=30, items=50, seed=1), np.array([3, 4, 20], np.int64)
    some = some_users(everybody, chosen)
    assert (some.n_users, some.n_items) == (3, everybody.n_items)
    assert list(some.users) == [everybody.users[int(user)] for user in chosen]
    for place, user in enumerate(chosen):
        rows, mine = (slice(*p.interactions.offsets[u : u + 2]) for p, u in ((everybody, user), (some, place)))
        for name in ("items", "ratings", "times"):
            one, other = getattr(some.interactions, name)[mine], getattr(everybody.interactions, name)[rows]
            assert np.array_equal(one, other)
    assert np.array_equal(some.features.users.codes, everybody.features.users.codes[chosen])


def test_impressions_and_histories_go_with_their_users():
    everybody, chosen = synthetic_news.generate(users=20, news=200, seed=1), np.array([1, 7, 8], np.int64)
    some = some_users(everybody, chosen)
    for name, split in everybody.impressions.items():
        kept, rows = some.impressions[name], np.flatnonzero(np.isin(split.users, chosen))
        assert chosen[kept.users].tolist() == split.users[rows].tolist()
        for place, row in enumerate(rows.tolist()):
            assert np.array_equal(kept.shown.row(place), split.shown.row(row))
            mine, theirs = kept.histories.row(kept.history_of[place]), split.histories.row(split.history_of[row])
            assert np.array_equal(mine, theirs)
        assert len(kept.histories) <= len(split.histories)
