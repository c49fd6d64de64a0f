from collections import Counter

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.data import synthetic_ratings
from veilrec.data.synthetic_ratings import GENRES, film_titles


def test_shape_and_ranges():
    population = synthetic_ratings.generate(users=300, items=200, days=10, seed=3)
    log = population.interactions
    assert (population.n_users, population.n_items) == (300, 200)
    assert population.users[0] == "u001"
    assert population.items[199] == "i200"
    assert np.diff(log.offsets).min() >= 5
    assert set(np.unique(log.ratings)) == {1, 2, 3, 4, 5}
    assert log.times.min() >= synthetic_ratings.FIRST_DAY
    assert log.times.max() < synthetic_ratings.FIRST_DAY + 10 * 86_400
    inner = np.ones(len(log), bool)
    inner[log.offsets[:-1]] = False
    assert (np.diff(log.times, prepend=0)[inner] >= 0).all()
    assert len(log.pairs().items) == len(log)  # nobody uses an item twice


def test_a_user_depends_on_seed_and_key_alone():
    few, many, other = (
        synthetic_ratings.generate(users=users, items=500, seed=seed) for users, seed in ((50, 7), (400, 7), (50, 8))
    )
    log, count = few.interactions, len(few.interactions)
    for name in ("items", "ratings", "times"):
        np.testing.assert_array_equal(getattr(log, name), getattr(many.interactions, name)[:count])
    np.testing.assert_array_equal(few.features.users.codes, many.features.users.codes[:50])
    assert not np.array_equal(log.items[:50], other.interactions.items[:50])


def test_titles_are_drawn_apart_so_that_rows_stay_what_they_were():
    items = synthetic_ratings.generate(users=300, items=200, days=10, seed=3).interactions.items
    assert items[:8].tolist() == [138, 132, 51, 78, 83, 32, 162, 143]


def test_popularity_is_skewed_activity_varies_and_the_oracle_is_far_above_popularity():
    population = synthetic_ratings.generate(users=1000, seed=0)
    log, facts = population.interactions, population.facts
    counts = np.sort(np.bincount(log.items))[::-1]
    assert counts[: len(counts) // 10].sum() > 0.25 * counts.sum()
    lengths = np.diff(log.offsets)
    assert np.quantile(lengths, 0.95) > 4 * np.quantile(lengths, 0.2)
    assert 25 < lengths.mean() < 35
    # Both rates are over 1,000 users: a standard error of 0.016, and the gap is about 0.29.
    assert float(facts["oracle_hr@10"]) > 1.4 * float(facts["popularity_hr@10"])


def test_the_oracle_is_a_probability():
    world = synthetic_ratings.make_world(300, seed=2)
    items = np.arange(300, dtype=np.int32)
    for user in range(20):
        assert world.oracle_scores(np.full(300, user, np.int32), items).sum() == pytest.approx(1)


@pytest.mark.parametrize(
    "options", [{"users": 0}, {"items": 10}, {"days": 0}, {"mean_history": 1.0}, {"seed": -1}, {"users": 10**8}]
)
def test_impossible_sizes_are_refused(options):
    with pytest.raises(BadInput, match="allowed are"):
        synthetic_ratings.generate(**options)


@pytest.mark.parametrize(("users", "items"), [(1, 50), (100, 50), (100, 5000)])
def test_small_and_sparse_worlds_work(users, items):
    population = synthetic_ratings.generate(users=users, items=items, mean_history=100)
    assert population.n_items == items
    assert population.interactions.items.max() < items


def test_the_genre_of_a_film_is_the_cluster_that_draws_its_users():
    """A user's three interests are genres: far more of his films are of three genres than of any three by chance."""
    population = synthetic_ratings.generate(users=200, items=800, mean_history=40, seed=5)
    world = synthetic_ratings.make_world(800, seed=5)
    known = population.catalogue
    genres = np.array(list(known.categories))
    for cluster in range(len(world.members)):
        assert len(set(genres[world.first == cluster])) == 1
    assert len(set(genres)) == len(world.members) == 20
    assert all(title.endswith(f"({genre})") for title, genre in zip(known.titles, known.categories, strict=True))
    assert len(set(known.titles)) == 800
    shares = []
    for user in range(population.n_users):
        own = population.interactions.items[slice(*population.interactions.offsets[user : user + 2])]
        _, counts = np.unique(genres[own], return_counts=True)
        shares.append(np.sort(counts)[-3:].sum() / len(own))
    assert np.mean(shares) > 0.5  # without interests about 0.3; measured 0.63


def test_features_carry_some_of_the_taste():
    population = synthetic_ratings.generate(users=2000, items=400, seed=1)
    users, items = population.features.users, population.features.items
    genres = items.features[0].values
    assert users.features[0].values == genres
    world = synthetic_ratings.make_world(400, 1)
    assert np.array_equal(items.codes, np.sort(1 + np.stack([world.first, world.second], axis=1), axis=1))
    log = population.interactions
    group = np.repeat(users.codes[:, 0], np.diff(log.offsets))
    own = (items.codes[log.items] == group[:, None]).any(axis=1).mean()
    shuffled = (items.codes[log.items] == np.random.default_rng(0).permutation(group)[:, None]).any(axis=1).mean()
    assert own > 1.5 * shuffled  # 0.38 and 0.20
    critics = items.numbers[:, 0]
    assert 0.4 < np.corrcoef(critics, world.quality)[0, 1] < 0.9
    assert ((critics >= 0) & (critics <= 1)).all()


def _titles(genres, seed=0):
    return film_titles(np.array(genres, np.int32), np.random.default_rng(seed))


def test_a_title_is_words_with_its_genre_behind_them():
    titles = _titles(list(range(len(GENRES))))
    for title, genre in zip(titles, GENRES, strict=True):
        name, _, behind = title.partition(" (")
        assert behind == f"{genre})"
        assert name.startswith("The ")
        assert name.isascii() and len(name.split()) == 3
    assert _titles([1, 2, 3]) == _titles([1, 2, 3]) != _titles([1, 2, 3], seed=1)
    assert _titles([]) == []


def test_no_two_genres_share_a_noun():
    """So that a noun tells the genre: of 500 titles each, all nouns of a genre are seen."""
    nouns = {genre: {title.split()[2] for title in _titles([genre] * 500)} for genre in range(len(GENRES))}
    counts = Counter(noun for own in nouns.values() for noun in own)
    assert max(counts.values()) == 1
    assert {len(own) for own in nouns.values()} == {10}


def test_titles_are_distinct_by_the_numbers_of_sequels():
    titles = _titles([3] * 3000)
    assert len(set(titles)) == 3000
    sequels = [title for title in titles if " 2 (" in title]
    assert sequels
    for second in sequels:
        assert second.replace(" 2 (", " (") in titles[: titles.index(second)]
