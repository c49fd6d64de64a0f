import itertools

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from veilrec.core.errors import BadInput
from veilrec.data import synthetic_news
from veilrec.data.synthetic_news import WORDS, mean_auc


@pytest.fixture(scope="module")
def population():
    return synthetic_news.generate(users=2000, seed=1)


def test_shape_and_ranges(population):
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
    assert {len(words) for words in WORDS["topics"].values()} == {16}
    assert {len(words) for words in subtopics} == {12}
    assert {len(lists) for lists in WORDS["subtopics"].values()} == {4}
    assert len(WORDS["lifting"]) == len(WORDS["dull"])


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


def test_a_user_depends_on_seed_and_key_alone():
    few, many = (synthetic_news.generate(users=users, news=500, impressions_per_user=3, seed=7) for users in (60, 300))
    one, other = few.impressions["train"], many.impressions["train"]
    np.testing.assert_array_equal(one.shown.items, other.shown.items[: len(one.shown.items)])
    np.testing.assert_array_equal(one.clicked, other.clicked[: len(one.clicked)])
    np.testing.assert_array_equal(few.interactions.items, many.interactions.items[: len(few.interactions)])

    texts = [list(synthetic_news.generate(users=50, seed=seed).catalogue.titles) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    "options", [{"users": 0}, {"news": 100}, {"days": 1}, {"seed": -1}, {"impressions_per_user": 0.5}]
)
def test_impossible_sizes_are_refused(options):
    with pytest.raises(BadInput, match="allowed"):
        synthetic_news.generate(**options)


def test_the_smallest_world_works():
    population = synthetic_news.generate(users=5, news=200, days=2, impressions_per_user=20)
    assert set(population.impressions) == {"train", "dev"}
    assert population.n_items == 200
