"""Generated data: draws that depend on their key alone, and worlds whose taste can be learnt."""

import itertools

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from veilrec.core.errors import BadInput
from veilrec.core.jit import jit
from veilrec.data import synthetic_draws as draws
from veilrec.data import synthetic_news, synthetic_ratings
from veilrec.data.synthetic_news import WORDS, mean_auc
from veilrec.data.synthetic_ratings import GENRES, film_titles


def test_shape_and_ranges():
    population = synthetic_ratings.generate(users=300, items=200, days=10, seed=3)
    log = population.interactions
    assert (population.n_users, population.n_items) == (300, 200)
    assert (population.users[0], population.items[199]) == ("u001", "i200")
    assert np.diff(log.offsets).min() >= 5
    assert set(np.unique(log.ratings)) == {1, 2, 3, 4, 5}
    assert 0 <= log.times.min() - synthetic_ratings.FIRST_DAY < log.times.max() - synthetic_ratings.FIRST_DAY < 864_000
    inner = np.isin(np.arange(1, len(log)), log.offsets, invert=True)
    assert (np.diff(log.times)[inner] >= 0).all()
    assert len(log.pairs().items) == len(log)  # nobody uses an item twice
    assert log.items[:8].tolist() == [138, 132, 51, 78, 83, 32, 162, 143]  # titles are drawn apart


def test_a_user_depends_on_seed_and_key_alone():
    few, many, other = (synthetic_ratings.generate(users=n, items=500, seed=s) for n, s in ((50, 7), (400, 7), (50, 8)))
    log, count = few.interactions, len(few.interactions)
    for name in ("items", "ratings", "times"):
        np.testing.assert_array_equal(getattr(log, name), getattr(many.interactions, name)[:count])
    np.testing.assert_array_equal(few.features.users.codes, many.features.users.codes[:50])
    assert not np.array_equal(log.items[:50], other.interactions.items[:50])


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
    world, items = synthetic_ratings.make_world(300, seed=2), np.arange(300, dtype=np.int32)
    for user in range(20):  # what the oracle says is a probability
        assert world.oracle_scores(np.full(300, user, np.int32), items).sum() == pytest.approx(1)


def test_impossible_sizes_are_refused():
    for name, number in (
        ("users", 0),
        ("users", 10**8),
        ("items", 10),
        ("days", 0),
        ("mean_history", 1.0),
        ("seed", -1),
    ):
        with pytest.raises(BadInput, match="allowed are"):
            synthetic_ratings.generate(**{name: number})
    for name, number in (("users", 0), ("news", 100), ("days", 1), ("impressions_per_user", 0.5), ("seed", -1)):
        with pytest.raises(BadInput, match="allowed"):
            synthetic_news.generate(**{name: number})


def test_small_and_sparse_worlds_work():
    for users, items in ((1, 50), (100, 50), (100, 5000)):
        population = synthetic_ratings.generate(users=users, items=items, mean_history=100)
        assert population.interactions.items.max() < population.n_items == items
    population = synthetic_news.generate(users=5, news=200, days=2, impressions_per_user=20)
    assert (set(population.impressions), population.n_items) == ({"train", "dev"}, 200)


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
    assert 0 <= critics.min() < critics.max() <= 1


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
    # No two genres share a noun, so that a noun tells the genre: of 500 titles each, all nouns of a genre are seen.
    nouns = [{title.split()[2] for title in _titles([genre] * 500)} for genre in range(len(GENRES))]
    assert {len(own) for own in nouns} == {10}
    assert len(set().union(*nouns)) == 10 * len(GENRES)


def test_titles_are_distinct_by_the_numbers_of_sequels():
    titles = _titles([3] * 3000)
    assert len(set(titles)) == 3000
    sequels = [title for title in titles if " 2 (" in title]
    assert sequels and all(s.replace(" 2 (", " (") in titles[: titles.index(s)] for s in sequels)


@jit
def _sample(seed, stream, index, uniforms, normals):
    state = np.empty(1, np.uint64)
    draws.start(state, seed, stream, index)
    for position in range(len(uniforms)):
        uniforms[position] = draws.uniform(state)
        normals[position] = draws.normal(state)


def sample(seed, stream, index, size=20_000):
    uniforms, normals = np.empty(size), np.empty(size)
    _sample(seed, stream, index, uniforms, normals)
    return uniforms, normals


def test_distributions():
    # Fixed seeds; with fresh ones each bound is five standard errors: one false alarm in two million runs.
    uniforms, normals = sample(1, 2, 3)
    size = len(uniforms)
    assert abs(uniforms.mean() - 0.5) < 5 * np.sqrt(1 / 12 / size)
    assert abs(normals.mean()) < 5 / np.sqrt(size)
    assert abs(normals.var() - 1) < 5 * np.sqrt(2 / size)
    counts = np.histogram(uniforms, 10, (0, 1))[0]
    assert np.abs(counts - size / 10).max() < 5 * np.sqrt(size * 0.09)
    assert abs(np.corrcoef(uniforms[1:], uniforms[:-1])[0, 1]) < 5 / np.sqrt(size)


def test_streams_depend_on_every_part_of_their_key():
    base = sample(1, 2, 3)[0]
    np.testing.assert_array_equal(base, sample(1, 2, 3)[0])
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (2, 1, 3), (0, 0, 0)):
        # Five standard errors, as above.
        assert abs(np.corrcoef(base, sample(*other)[0])[0, 1]) < 5 / np.sqrt(len(base))


def test_rising_numbers_fill_the_interval_and_lengths_keep_their_bounds_and_mean():
    state, out = np.array([7], np.uint64), np.empty(1000)
    draws.rising(state, 1000, out)
    assert (np.diff(out) > 0).all()
    assert out[0] > 0 and out[-1] < 1
    # The Kolmogorov-Smirnov distance exceeds 1.95 / sqrt(n) once in a thousand runs; the state is fixed.
    assert np.abs(out - (np.arange(1000) + 0.5) / 1000).max() < 1.95 / np.sqrt(1000)
    state = np.array([7], np.uint64)
    lengths = np.array([draws.lognormal_length(state, 30.0, 0.8, 5, 600) for _ in range(5000)])
    assert lengths.min() >= 5 and lengths.max() <= 600
    # The standard deviation of a length is about 28: five standard errors are 2.
    assert abs(lengths.mean() - 30) < 2


@pytest.fixture(scope="module")
def population():
    return synthetic_news.generate(users=2000, seed=1)


def test_shape_and_ranges_of_news(population):
    last_day = synthetic_news.FIRST_DAY + 6 * 86_400
    assert population.impressions["train"].times.max() < last_day <= population.impressions["dev"].times.min()
    for part in population.impressions.values():
        lengths = part.shown.lengths()
        assert (lengths.min(), lengths.max()) == (5, 40)
        assert len(part.clicked) == len(part.shown.items)
        keys = part.shown.row_numbers() * population.n_items + part.shown.items
        assert len(np.unique(keys)) == len(keys)  # nothing is shown twice in an impression
        clicks = np.add.reduceat(part.clicked.astype(int), part.shown.offsets[:-1])
        assert clicks.min() >= 1
    assert population.facts["rows"] == sum(len(part) for part in population.impressions.values())


def test_a_dev_history_is_all_that_was_used_in_training(population):
    train, dev = population.impressions["train"], population.impressions["dev"]
    log = population.interactions
    for row in range(0, len(dev), 50):
        user = dev.users[row]
        used = log.items[log.offsets[user] : log.offsets[user + 1]]
        np.testing.assert_array_equal(dev.histories.row(int(dev.history_of[row])), used)
        before = train.histories.row(int(user))
        np.testing.assert_array_equal(used[: len(before)], before)
        clicked = train.shown.items[(train.clicked == 1) & (train.users[train.shown.row_numbers()] == user)]
        assert set(used.tolist()) == {*clicked.tolist(), *before.tolist()}


def test_the_oracle_is_as_strong_as_intended_and_popularity_is_not(population):
    # Some 2,000 dev impressions: a standard error of about 0.005 for either.
    assert 0.75 < float(population.facts["oracle_auc"]) < 0.81
    assert float(population.facts["popularity_auc"]) < 0.56


def test_auc_per_impression_is_sklearns(population):
    dev = population.impressions["dev"]
    scores = np.round(dev.oracle.astype(np.float64))  # with ties
    offsets = dev.shown.offsets[:101]
    values = [
        roc_auc_score(dev.clicked[low:high], scores[low:high])
        for low, high in itertools.pairwise(offsets)
        if 0 < dev.clicked[low:high].sum() < high - low
    ]
    assert mean_auc(scores, dev.clicked, offsets) == pytest.approx(np.mean(values))


def test_no_word_has_two_meanings():
    subtopics = [words for lists in WORDS["subtopics"].values() for words in lists.values()]
    lists = [WORDS["common"], WORDS["lifting"], WORDS["dull"], *WORDS["topics"].values(), *subtopics]
    words = list(itertools.chain(*lists))
    assert len(set(words)) == len(words)
    assert all(word.isascii() and word.isalpha() and word.islower() for word in words)
    # Words are drawn by place, which needs lists of one length.
    for lists in (WORDS["topics"].values(), subtopics, WORDS["subtopics"].values(), [WORDS["lifting"], WORDS["dull"]]):
        assert len({len(words) for words in lists}) == 1


def test_titles_tell_topic_and_tone(population):
    catalogue = population.catalogue
    of_subtopic = {name: words for lists in WORDS["subtopics"].values() for name, words in lists.items()}
    meanings = {word: topic for topic, words in WORDS["topics"].items() for word in words}
    meanings |= {word: name for name, words in of_subtopic.items() for word in words}
    told = 0
    for title, topic, name in zip(catalogue.titles, catalogue.categories, catalogue.subcategories, strict=True):
        assert 6 <= len(title.split(" ")) <= 14
        assert title == title.strip().capitalize()
        found = {meanings[word] for word in title.lower().split() if word in meanings}
        assert found <= {topic, name}
        told += name in found
    assert all(15 <= len(text.split(" ")) <= 30 for text in list(catalogue.abstracts)[:200])
    assert told > 0.95 * population.n_items
    assert 0.05 < np.mean(_tones(population) == 2) < 0.15


def test_topics_in_the_history_and_tones_explain_most_of_the_clicks(population):
    """Counting, without any training: about 0.80 of the way from chance to the oracle, standard error 0.02."""
    catalogue, dev = population.catalogue, population.impressions["dev"]
    users = np.repeat(dev.users, dev.shown.lengths())
    score = 0.05 * _tones(population)[dev.shown.items]
    for names in (catalogue.categories, catalogue.subcategories):
        _, code = np.unique(list(names), return_inverse=True)
        read = np.zeros((population.n_users, code.max() + 1))
        np.add.at(read, (dev.histories.row_numbers(), code[dev.histories.items]), 1)
        read /= read.sum(1, keepdims=True) + 1
        score = score + read[users, code[dev.shown.items]]
    reached = mean_auc(score, dev.clicked, dev.shown.offsets) - 0.5
    assert reached > 0.72 * (float(population.facts["oracle_auc"]) - 0.5)


def _tones(population):
    value = dict.fromkeys(WORDS["lifting"], 1) | dict.fromkeys(WORDS["dull"], -1)
    titles = population.catalogue.titles
    return np.array([sum(value.get(word, 0) for word in title.lower().split()) for title in titles], float)


def test_a_user_depends_on_seed_and_key_alone_of_news():
    few, many = (synthetic_news.generate(users=users, news=500, impressions_per_user=3, seed=7) for users in (60, 300))
    one, other = few.impressions["train"], many.impressions["train"]
    np.testing.assert_array_equal(one.shown.items, other.shown.items[: len(one.shown.items)])
    np.testing.assert_array_equal(one.clicked, other.clicked[: len(one.clicked)])
    np.testing.assert_array_equal(few.interactions.items, many.interactions.items[: len(few.interactions)])
    texts = [list(synthetic_news.generate(users=50, seed=seed).catalogue.titles) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
