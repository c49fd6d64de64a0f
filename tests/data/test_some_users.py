"""A part of a population is what its users have, and nothing of the others."""

from __future__ import annotations

import numpy as np

from veilrec.data import synthetic_news, synthetic_ratings
from veilrec.data.some_users import some_users


def test_ratings_features_and_times_go_with_their_users() -> None:
    everybody = synthetic_ratings.generate(users=30, items=50, seed=1)
    chosen = np.array([3, 4, 20], np.int64)
    some = some_users(everybody, chosen)
    assert some.n_users == 3
    assert some.n_items == everybody.n_items
    for place, user in enumerate(chosen):
        assert some.users[place] == everybody.users[int(user)]
        rows = slice(*everybody.interactions.offsets[user : user + 2])
        mine = slice(*some.interactions.offsets[place : place + 2])
        assert np.array_equal(some.interactions.items[mine], everybody.interactions.items[rows])
        if everybody.interactions.times is not None and some.interactions.times is not None:
            assert np.array_equal(some.interactions.times[mine], everybody.interactions.times[rows])
    assert some.features is not None
    assert everybody.features is not None
    assert np.array_equal(some.features.users.codes, everybody.features.users.codes[chosen])


def test_impressions_and_histories_go_with_their_users() -> None:
    everybody = synthetic_news.generate(users=20, news=200, seed=1)
    chosen = np.array([1, 7, 8], np.int64)
    some = some_users(everybody, chosen)
    for name, split in everybody.impressions.items():
        kept, rows = some.impressions[name], np.flatnonzero(np.isin(split.users, chosen))
        assert len(kept) == len(rows)
        for place, row in enumerate(rows.tolist()):
            assert chosen[kept.users[place]] == split.users[row]
            assert np.array_equal(kept.shown.row(place), split.shown.row(row))
            mine, theirs = kept.histories.row(kept.history_of[place]), split.histories.row(split.history_of[row])
            assert np.array_equal(mine, theirs)
        assert len(kept.histories) <= len(split.histories)
