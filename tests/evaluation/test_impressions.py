"""The protocols `mind` and `last-day-20`: impressions, and Adressa's clicks each among 20 sampled news."""

from dataclasses import replace

import numpy as np
import pytest

from tests.evaluation.toys import TableModel, impressions, names, population, rows_of
from veilrec.core.csr import csr_from_pairs
from veilrec.core.errors import BadInput
from veilrec.data.population import Population, Strings, pack_interactions, take_impressions
from veilrec.evaluation.evaluator import evaluate
from veilrec.evaluation.protocols import default_protocol, make_split
from veilrec.evaluation.split import count_common, has_both_labels, marks_of

TRAIN = impressions(
    shown=[[4, 5], [6, 7, 8], [4, 9]],
    clicked=[[0, 1], [1, 0, 1], [1, 0]],
    histories=[[0, 1], [2]],
    users=[0, 0, 1],
    history_of=[0, 0, 1],
    times=[20, 10, 15],
)
DEV = impressions(
    shown=[[3, 9], [5, 6], [7, 8]],
    clicked=[[1, 0], [0, 1], [0, 0]],
    histories=[[0, 1, 6], [3]],
    users=[0, 2, 2],
    history_of=[0, 1, 1],
)


def news(train=TRAIN, dev=DEV, n_users=3):
    # What the reader says was used plays no part: here it even holds the clicks of dev.
    base = population([[0, 1, 3, 6]] * n_users, 10)
    return Population("news", base.users, base.items, base.interactions, {"train": train, "dev": dev})


def test_training_knows_nothing_of_dev_whose_impressions_are_the_test_cases():
    split = make_split(news(), "mind", seed=1)
    assert rows_of(split.train) == [[0, 1, 6, 8, 5], [2, 4], []]  # train histories and clicks in time order
    assert split.train_impressions is TRAIN
    assert split.test.impressions is DEV
    assert (split.test.users.tolist(), rows_of(split.test.positives)) == ([0, 2, 2], [[3], [6], []])
    assert split.valid is None


def many(count):
    """Histories that grow by each click: the next impression repeats what was clicked in the one before."""
    return impressions(
        shown=[[i % 9, 9] for i in range(count)],
        clicked=[[1, 0]] * count,
        histories=[[(i + step) % 9 for step in range(i // 20)] for i in range(count)],
        users=[i % 20 for i in range(count)],
    )


def test_validation_holds_out_a_tenth_of_the_train_impressions_and_their_clicks():
    train = many(1000)
    split = make_split(news(train, n_users=20), "mind", seed=1, validation=True)
    assert len(split.valid) + len(split.train_impressions) == 1000
    assert abs(len(split.valid) - 100) < 4.5 * np.sqrt(90)
    for user, clicks in zip(split.valid.users, rows_of(split.valid.positives), strict=True):
        assert not set(clicks) & set(split.train.row(user).tolist())
    again = make_split(news(train, n_users=20), "mind", seed=1, validation=True)
    other = make_split(news(train, n_users=20), "mind", seed=2, validation=True)
    assert again.valid.users.tolist() == split.valid.users.tolist() != other.valid.users.tolist()
    assert split.test.impressions is DEV


def test_taking_impressions_keeps_each_with_its_history_and_oracle():
    whole = replace(TRAIN, oracle=np.arange(7, dtype=np.float32))
    taken = take_impressions(whole, np.array([False, True, True]))
    assert (rows_of(taken.shown), taken.clicked.tolist()) == ([[6, 7, 8], [4, 9]], [1, 0, 1, 1, 0])
    assert (taken.oracle.tolist(), histories(taken)) == ([2, 3, 4, 5, 6], [[0, 1], [2]])
    assert rows_of(take_impressions(TRAIN, np.array([False, False, True])).histories) == [[2]]


def test_common_impressions_are_found_by_ids_whatever_their_numbers():
    one = news()
    order = np.array([2, 0, 1])
    other = Population("other", Strings.of(one.users[u] for u in order), one.items, one.interactions)
    renumbered = replace(take_impressions(TRAIN, np.array([True, False, True])), users=np.array([1, 2], np.int32))

    def named(of, impressions):
        return marks_of(impressions).named(of.users, of.items)

    mine = named(one, TRAIN)
    assert count_common(mine, named(other, renumbered)) == 2
    assert count_common(mine, named(other, replace(renumbered, times=renumbered.times + 1))) == 0
    assert count_common(mine, named(one, DEV)) == 0


def test_only_impressions_with_both_labels_can_be_judged():
    shown = impressions([[0, 1], [0, 1], [2, 3], []], [[1, 0], [1, 1], [0, 0], []], [[]], history_of=[0] * 4)
    assert has_both_labels(shown).tolist() == [True, False, False, False]
    never_clicked = impressions([[0, 1]], [[0, 0]], [[2]])
    for people, words in (
        (news(dev=never_clicked), "no dev impression of news has both a click and an item without one"),
        (replace(news(), impressions={"train": TRAIN}), "news has no dev part: add it, or use the protocol loo-99"),
    ):
        with pytest.raises(BadInput, match=words):
            make_split(people, "mind", seed=1)


DAY = 86_400


def clicks(rows, n_users, n_items, cut=None):
    """A log of (user, item, time)."""
    users, items, times = (np.array(column) for column in zip(*rows, strict=True))
    log = pack_interactions(users, items.astype(np.int32), n_users, times=times)
    return Population("adressa", names("u", n_users), names("i", n_items), log, cut=cut)


OLD = [(0, 1, 10), (0, 2, DAY), (0, 1, DAY + 5)]  # day 0, day 1: news 1 is read again
THIRD = [(0, 3, 3 * DAY), (0, 2, 3 * DAY + 1), (1, 6, 3 * DAY + 7)]
LAST = [(0, 4, 4 * DAY), (0, 1, 4 * DAY + 9), (0, 5, 4 * DAY + 1), (2, 7, 4 * DAY + 3)]
CLICKS = clicks(OLD + THIRD + LAST, n_users=3, n_items=40, cut=4 * DAY)


def shown(impressions):
    """[impressions, 21]"""
    return np.stack([impressions.shown.row(r) for r in range(len(impressions))])


def histories(impressions):
    return rows_of(impressions.histories.take(impressions.history_of.astype(np.int64)))


def test_the_last_day_is_asked_the_day_before_is_learnt_and_histories_are_older():
    split = make_split(CLICKS, "last-day-20", seed=1)
    assert split.train_impressions.users.tolist() == [0, 1]  # reading news 2 again is no click
    assert shown(split.train_impressions)[:, 0].tolist() == [3, 6]
    assert histories(split.train_impressions) == [[1, 2], []]
    assert split.test.impressions.users.tolist() == [0, 0, 2]
    assert shown(split.test.impressions)[:, 0].tolist() == [4, 5, 7]
    assert histories(split.test.impressions) == [[1, 2, 3], [1, 2, 3], []]
    assert rows_of(split.train) == [[1, 2, 3], [6], []]
    assert split.cut == "the public moment 1970-01-05T00:00:00Z"


def test_without_a_cut_every_user_has_a_last_day_of_their_own():
    split = make_split(replace(CLICKS, cut=None), "last-day-20", seed=1)
    assert (split.cut, split.test.impressions.users.tolist()) == ("each user's own last day", [0, 0])
    assert shown(split.test.impressions)[:, 0].tolist() == [4, 5]
    assert split.train_impressions.users.tolist() == [0, 1, 2]  # of a single day: learnt from, not asked
    assert histories(split.train_impressions) == [[1, 2], [], []]
    assert rows_of(split.train) == [[1, 2, 3], [6], [7]]


def test_every_click_stands_among_20_distinct_others_that_the_user_never_used():
    split = make_split(CLICKS, "last-day-20", seed=1)
    used = [{1, 2, 3, 4, 5}, {6}, {7}]
    for user, row in zip(split.test.impressions.users, shown(split.test.impressions), strict=True):
        assert len(set(row.tolist())) == 21
        assert not used[user] & set(row[1:].tolist())
    assert split.test.impressions.clicked.reshape(-1, 21)[:, 0].tolist() == [1, 1, 1]
    assert split.test.impressions.clicked.sum() == 3
    first, second = shown(split.test.impressions)[:2, 1:]
    assert first.tolist() != second.tolist()  # clicks of one user have draws of their own


def test_the_seed_decides_and_validation_changes_no_test_case():
    one, same, other = (make_split(CLICKS, "last-day-20", seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(shown(one.test.impressions), shown(same.test.impressions))
    assert not np.array_equal(shown(one.test.impressions), shown(other.test.impressions))
    cut = make_split(CLICKS, "last-day-20", seed=3, validation=True)
    one = make_split(CLICKS, "last-day-20", seed=3)
    assert np.array_equal(shown(one.test.impressions), shown(cut.test.impressions))
    assert len(cut.valid) == 1
    assert sorted([*shown(cut.valid.impressions)[:, 0], *shown(cut.train_impressions)[:, 0]]) == [3, 6]  # by this seed
    held = int(cut.valid.positives.items[0])
    assert held not in cut.train.items


def test_metrics_are_those_of_impressions():
    assert default_protocol(CLICKS) == "last-day-20"
    split = make_split(CLICKS, "last-day-20", seed=1)
    best, flat = np.zeros((2, 3, 40), np.float32)
    best[0, [4, 5]] = best[2, 7] = 1.0
    metrics = evaluate(split.test, split.train, TableModel(best, best))
    assert metrics["cases"] == 3
    assert metrics["auc"] == metrics["mrr"] == metrics["ndcg@5"] == metrics["ndcg@10"] == 1.0
    assert evaluate(split.test, split.train, TableModel(flat, flat))["auc"] == 0.5


def test_a_log_that_cannot_be_cut_so_is_refused():
    for log, words in (
        (clicks([(0, 1, 0), (1, 2, DAY)], 2, 40), "needs clicks of a user on 2 days, to learn from one .* has none"),
        (
            clicks([(0, 1, 0), (0, 2, DAY)], 1, 40, 2 * DAY),
            "clicks from the public moment 1970-01-03T.* on, to ask, and",
        ),
        (
            clicks([(0, 1, 0), (0, 2, 3 * DAY)], 1, 40, 2 * DAY),
            "on the day before the public moment 1970-01-03T.*, to l",
        ),
        (clicks([(0, day, day * DAY) for day in range(4)], 1, 23), "user u0 leaves 19 of 23"),
        (population([[0, 1]], 40), "needs the time of every click"),
    ):
        with pytest.raises(BadInput, match=words):
            make_split(log, "last-day-20", seed=1)


def counters(split):
    """How often training drew an item as a negative, by user and for all; a random order among equals."""
    drawn = split.train_impressions
    others = drawn.clicked == 0
    users = drawn.users[drawn.shown.row_numbers()][others]
    rng = np.random.default_rng(3)
    own = 0.5 * rng.random((split.n_users, split.n_items))
    np.add.at(own, (users, drawn.shown.items[others]), 1.0)
    everybody = np.bincount(drawn.shown.items[others], minlength=split.n_items) + 0.5 * rng.random(split.n_items)
    return own.astype(np.float32), np.tile(everybody, (split.n_users, 1)).astype(np.float32)


@pytest.mark.parametrize("validation", [False, True])
def test_a_counter_of_drawn_negatives_stays_at_chance(validation):
    # The click and the 20 are drawn alike in training, so the place of the click is uniform on 1 to 21 and the AUC of
    # an impression has standard deviation 0.303; 5 of those of the mean are passed once in 1.7 million seeds.
    n_users, n_items, rng = 1_500, 200, np.random.default_rng(7)
    rows = [
        (user, int(item), int(day) * DAY + user)
        for user in range(n_users)
        for item, day in zip(rng.permutation(n_items)[:12], rng.integers(0, 4, 12), strict=True)
    ]
    split = make_split(clicks(rows, n_users, n_items), "last-day-20", seed=1, validation=validation)
    for table in counters(split):
        for cases in [split.test, *([split.valid] if validation else [])]:
            for scores in (table, -table):
                auc = evaluate(cases, split.train, TableModel(scores, scores))["auc"]
                assert abs(auc - 0.5) < 5 * 0.303 / np.sqrt(len(cases))


def test_the_counter_would_find_clicks_that_training_never_draws():
    n_users, n_items = 400, 60
    rows = [
        (user, (user * 7 + step) % n_items, (step % 4) * DAY + step) for user in range(n_users) for step in range(24)
    ]
    log = clicks(rows, n_users, n_items)
    split = make_split(log, "last-day-20", seed=1)
    own, _ = counters(split)
    tested = csr_from_pairs(split.test.impressions.users.astype(np.int64), split.test.positives.items, n_users)
    own[tested.row_numbers(), tested.items] = 0.0  # as if they had been left out
    assert evaluate(split.test, split.train, TableModel(-own, -own))["auc"] > 0.9
