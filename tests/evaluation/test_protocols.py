from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluation.toys import (
    impressions,
    population,
    random_population,
    random_rated_population,
    rated_population,
    rows_of,
)
from veilrec.core.errors import BadInput
from veilrec.core.features import Feature, Features, Side
from veilrec.evaluation.protocols import PROTOCOLS, default_protocol, make_split, make_transfer_split

LIKED = "holdout-users-liked"
RECORDS = "holdout-records"
RATING_PROTOCOLS = sorted(set(PROTOCOLS) - {"mind", "last-day-20", LIKED, RECORDS})


def same(left, right):
    if left is None or right is None:
        return left is right
    columns = [
        (c.users, c.positives.items, c.positives.offsets, c.candidates, c.adapt and c.adapt.items)
        for c in (left, right)
    ]
    return all(np.array_equal(one, other) for one, other in zip(*columns, strict=True))


def parts(split):
    """What each user's items were cut into, put together again."""
    together = rows_of(split.train)
    for cases in (split.test, split.valid):
        if cases is None:
            continue
        for case, user in enumerate(cases.users):
            together[user] += cases.positives.row(case).tolist()
            if cases.adapt is not None:
                together[user] += cases.adapt.row(case).tolist()
    return together


def test_leave_one_out_holds_out_the_last_item_and_validation_is_the_last_of_the_rest():
    split = make_split(population([[3, 1, 2], [5], [0, 4]], 120), "loo-99", seed=1)
    assert (rows_of(split.train), split.test.users.tolist()) == ([[3, 1], [5], [0]], [0, 2])
    assert rows_of(split.test.positives) == [[2], [4]]
    candidates = split.test.candidates
    assert (candidates.shape, candidates.dtype, candidates[:, 0].tolist()) == ((2, 100), np.int32, [2, 4])
    assert all(len(set(row)) == 100 for row in candidates.tolist())
    assert not {3, 1} & set(candidates[0].tolist())
    assert split.valid is None
    split = make_split(population([[7, 1, 2, 7]], 120), "loo-full", seed=1)
    assert (rows_of(split.train), rows_of(split.test.positives)) == ([[1, 2]], [[7]])
    assert split.test.candidates is None
    split = make_split(population([[3, 1, 2], [0, 4]], 120), "loo-99", seed=1, validation=True)
    assert rows_of(split.train) == [[3], [0, 4]]
    assert split.valid.users.tolist() == split.test.users.tolist() == [0]
    assert rows_of(split.valid.positives) == rows_of(split.test.set_aside) == [[1]]
    assert rows_of(split.test.positives) == [[2]]


def test_validation_negatives_do_not_know_the_test_item():
    # 102 items, one in training and one for validation: 99 of the 100 others are drawn, the test item alike.
    # Of 500 users 495 are expected to have it, with a standard deviation of 2.2; 480 is beyond 6 of them.
    split = make_split(population([[3, 1, 2]] * 500, 102), "loo-99", seed=1, validation=True)
    assert (split.valid.candidates == 2).sum() > 480


def test_published_test_items_and_negatives_are_used():
    negatives = np.arange(20, 20 + 2 * 99, dtype=np.int32).reshape(2, 99)
    people = population([[3, 1, 2], [5, 6, 7]], 300, (np.array([1, 7], np.int32), negatives))
    split = make_split(people, "loo-99", seed=1, validation=True)
    assert (rows_of(split.train), rows_of(split.test.positives)) == ([[3], [5]], [[1], [7]])
    assert (split.test.candidates[:, 1:] == negatives).all()
    assert rows_of(split.valid.positives) == [[2], [6]]
    assert rows_of(make_split(people, "loo-full", seed=1).test.positives) == [[1], [7]]


def test_ratio_takes_a_fifth_and_at_least_one():
    people = population([list(range(20)), list(range(9)), [1, 2], [3]], 30)
    split = make_split(people, "ratio-8-2", seed=1)
    assert split.test.users.tolist() == [0, 1, 2]
    assert split.test.positives.lengths().tolist() == [4, 1, 1]
    assert split.train.lengths().tolist() == [16, 8, 1, 1]
    with_validation = make_split(people, "ratio-8-2", seed=1, validation=True)
    assert with_validation.valid.positives.lengths().tolist() == [2, 1]


def test_holdout_users_halves_a_fifth_of_the_users():
    people = random_population(500, 40, 3, 9, seed=1)
    split = make_split(people, "holdout-users", seed=1, validation=True)
    assert abs(len(split.test) - 100) < 4.5 * np.sqrt(80) and abs(len(split.valid) - 50) < 4.5 * np.sqrt(45)
    assert not set(split.test.users.tolist()) & set(split.valid.users.tolist())
    lengths = people.interactions.pairs().lengths()
    for cases in (split.test, split.valid):
        assert (split.train.lengths()[cases.users] == 0).all()
        assert (cases.positives.lengths() == lengths[cases.users] // 2).all()
        assert (cases.adapt.lengths() == (lengths[cases.users] + 1) // 2).all()


def test_one_item_of_a_user_is_learnt_from_or_left_alone():
    # Whoever has one item cannot be asked: in training it is learnt from, among the drawn users nobody sees it.
    people = population([[user % 40] for user in range(20)] + [[1, 2, 3]] * 30, 40)
    split = make_split(people, "holdout-users", seed=1)
    assert 0 < len(split.test) < 10
    assert split.test.users.min() >= 20
    assert split.test.adapt.lengths().tolist() == [2] * len(split.test)
    alone = split.train.lengths()[:20]
    assert set(alone.tolist()) == {0, 1}  # 0: drawn for the test


def test_liked_items_are_the_last_ratings_above_three():
    # Of 5 users seed 4 draws one; user rows are alike, so that whoever it is has the same items.
    rows = [[(0, 5), (1, 4), (2, 3), (3, 1), (4, 3.5), (5, 4), (0, 2), (3, 5)]] * 5
    split = make_split(rated_population(rows, 9), "holdout-users-liked", seed=4)
    drawn = int(split.test.users[0])
    liked = [1, 4, 5, 3]  # the last use decides: 0 was liked once, 3 was not at first
    assert rows_of(split.train) == [[] if user == drawn else liked for user in range(5)]
    assert sorted(split.test.adapt.row(0).tolist() + split.test.positives.row(0).tolist()) == sorted(liked)
    assert (rows_of(split.test.set_aside), rows_of(split.liked)) == ([[2, 0]], [liked] * 5)


def test_the_same_users_are_drawn_whether_likes_count_or_uses():
    people = random_rated_population(60, 150, 20, 40, seed=2)  # so many items that everybody likes three
    uses, likes = (make_split(people, name, seed=1, validation=True) for name in ("holdout-users", LIKED))
    assert uses.test.users.tolist() == likes.test.users.tolist()
    assert uses.valid.users.tolist() == likes.valid.users.tolist()
    pairs = rows_of(people.interactions.pairs())
    for cases in (likes.test, likes.valid):
        for case, user in enumerate(cases.users):
            parts = (cases.positives, cases.adapt, cases.set_aside)
            assert sorted(item for part in parts for item in part.row(case).tolist()) == sorted(pairs[user])
    assert likes.train.lengths().sum() < uses.train.lengths().sum()
    plain = make_split(random_population(60, 150, 20, 40, seed=2), "holdout-users", seed=1, validation=True)
    assert same(uses.test, plain.test)  # uses are cut as ever, whatever their ratings
    assert uses.test.set_aside is None
    assert rows_of(uses.train) == rows_of(plain.train)


def test_whoever_likes_one_item_or_none_is_not_asked_and_breaks_nothing():
    rows = [[(0, 5), (1, 1)], [(2, 2)], [(3, 4)], *[[(0, 5), (1, 4), (2, 5), (3, 1)]] * 20]
    for seed in range(20):
        split = make_split(rated_population(rows, 9), "holdout-users-liked", seed=seed)
        assert split.test.users.min() >= 3
        assert split.test.positives.lengths().tolist() == [1] * len(split.test)


@pytest.mark.parametrize("protocol", RATING_PROTOCOLS)
def test_a_split_is_a_partition_by_its_seed_in_the_order_of_time(protocol):
    people = random_population(60, 150, 3, 30, seed=2)
    plain, one, again, other = (
        make_split(people, protocol, seed=seed, validation=validation)
        for seed, validation in ((1, False), (1, True), (1, True), (2, True))
    )
    for split in (plain, one):
        assert (split.protocol, split.n_users, split.n_items) == (protocol, 60, 150)
        assert [sorted(row) for row in parts(split)] == [sorted(r) for r in rows_of(people.interactions.pairs())]
        assert (split.valid is not None) == (split is one)
    assert same(plain.test, one.test)  # validation does not change the test
    assert same(one.test, again.test) and same(one.valid, again.valid)
    assert rows_of(one.train) == rows_of(again.train)
    assert protocol == "loo-full" or not same(one.test, other.test)
    falling = population([list(range(30, 5, -1))] * 20, 150)
    train = make_split(falling, protocol, seed=1, validation=True).train
    assert all(row == sorted(row, reverse=True) for row in rows_of(train))


@given(st.lists(st.lists(st.integers(0, 19), max_size=12), min_size=1, max_size=8), st.integers(0, 99))
def test_candidates_are_outside_training(rows, seed):
    try:
        split = make_split(population(rows, 140), "loo-99", seed=seed, validation=True)
    except BadInput:
        assert all(len(set(row)) < 3 for row in rows)
        return
    for cases in (split.test, split.valid):
        for user, candidates in zip(cases.users, cases.candidates, strict=True):
            assert len(set(candidates.tolist())) == 100
            assert not set(split.train.row(user).tolist()) & set(candidates.tolist())


def test_the_default_follows_the_data():
    base, shown = population([[0, 1]], 3), impressions([[0, 1]], [[1, 0]], [[2]])
    assert default_protocol(base) == "loo-99"
    assert default_protocol(replace(base, impressions={"train": shown, "dev": shown})) == "mind"
    assert default_protocol(replace(base, impressions={"train": shown})) == "loo-99"  # published without a dev part
    alone = replace(base, impressions={"train": shown}, facts={"cut": "each user's"})
    assert default_protocol(alone) == "mind"  # as it is once somebody has two impressions


def test_what_cannot_be_split_says_what_to_do():
    two = population([[0, 1]], 200)
    for how, message in (
        ({"seed": 1, "validation": True}, "no user of toy has 3 distinct items, which loo-99 needs with a validation"),
        ({"seed": -1}, "seed -1 is negative"),
        ({"seed": 2**64}, "is too large"),
    ):
        with pytest.raises(BadInput, match=message):
            make_split(two, "loo-99", **how)
    rated = partial(rated_population, n_items=50)
    for people, protocol, message in (
        (population([[0, 1, 2]], 200), "loo-9", r"unknown protocol 'loo-9': did you mean loo-99"),
        (population([[0], [0]], 1), "loo-99", r"toy has fewer than 2 items"),
        (population([[], []], 200), "loo-99", r"toy has no interactions"),
        (population([[0], [1, 1]], 200), "ratio-8-2", r"no user of toy has 2 distinct items, which ratio-8-2 needs"),
        (population([[0, 1, 2]], 50), "loo-99", r"user u0 leaves 47 of 50: give --protocol loo-full"),
        (population([[0, 1, 2]], 50), "holdout-users", r"leaves none of the 1 users of toy for training"),
        (population([[0, 1, 2]], 50), "mind", r"toy has no train part: add it, or use the protocol loo-99"),
        # Of 9 users only one has two items, and seed 1 does not draw that one.
        (population([[0]] * 8 + [[0, 1]], 50), "holdout-users", "drew no user of toy with enough items: try another"),
        (population([[0, 1, 2]] * 9, 50), LIKED, "needs ratings from 1 to 5, and toy has none: use"),
        (rated([[(0, 1), (1, 120)]] * 9), LIKED, r"go from 1 to 120 \(counts of uses are none\): use the"),
        (rated([[(0, 0), (1, 1)]] * 9), LIKED, r"those of toy have one from 1 to 5 and go from 0 to 1"),
        (
            replace(rated([[(0, 1), (1, 3)]] * 9), rating_scale=(0.0, 10.0)),
            LIKED,
            r"have one from 0 to 10 and go from 1",
        ),
        (replace(rated([[(0, 1), (1, 3)]] * 9), rating_scale=None), LIKED, r"have no scale and go from 1 to 3"),
        (rated([[(0, 1), (1, 3)]] * 9), LIKED, r"no user of toy has 2 distinct items rated above 3"),
        (rated([[(0, 5), (1, 4)]]), LIKED, r"holdout-users-liked leaves none of the 1 users of toy for training"),
        (rated([[(0, 5)]] * 8 + [[(0, 5), (1, 5)]]), LIKED, r"liked drew no user of toy with enough items"),
    ):
        with pytest.raises(BadInput, match=message):
            make_split(people, protocol, seed=1)


def test_another_data_set_is_asked_whole_or_cut_as_usual_and_not_about_its_own_users():
    # Both of these have a click and an item without one, and their histories are all that popularity may count.
    shown = impressions([[0, 1], [2, 3]], [[1, 0], [0, 1]], [[4, 5], [6]])
    base = population([[0], [1]], 7)
    news = replace(base, impressions={"train": shown})
    for protocol in (None, "mind"):
        split = make_transfer_split(news, protocol, seed=1)
        assert split.protocol == "mind" and split.test.impressions is shown
        assert rows_of(split.train) == [[4, 5], [6]]
    news = replace(base, impressions={"train": shown, "dev": shown})
    split = make_transfer_split(news, None, seed=1)
    assert rows_of(split.train) == rows_of(make_split(news, "mind", seed=1).train)
    assert split.test.impressions is shown
    with pytest.raises(BadInput, match="loo-99 on toy asks about users of its own training"):
        make_transfer_split(population([[0, 1, 2]], 120), None, seed=1)


def used_again():
    """Forty users with twelve rows of log each, of which a third are repeats."""
    generator = np.random.default_rng(5)
    rows = [generator.choice(8, 12).tolist() for _ in range(40)]
    side = Side(
        (Feature("weather", "category", ("sun", "rain")),),
        generator.integers(1, 3, (480, 1)).astype(np.int32),
        np.zeros((480, 0), np.float32),
    )
    items = side.strangers(30)
    return replace(population(rows, 30), features=Features(side.strangers(40), items), contexts=side), rows


def test_records_are_halved_with_their_repeats_and_what_was_said_in_the_held_out_half_is_not_known():
    people, rows = used_again()
    split = make_split(people, RECORDS, seed=2, validation=True)
    for cases in (split.test, split.valid):
        assert len(cases) > 1
        for case, user in enumerate(cases.users):
            held = np.repeat(cases.positives.row(case), cases.repeats[slice(*cases.positives.offsets[case : case + 2])])
            assert len(held) == len(cases.adapt.row(case)) == 6
            assert sorted([*held, *cases.adapt.row(case)]) == sorted(rows[user])
            assert len(split.train.row(user)) == len(split.records.row(user)) == 0
        assert any(set(cases.positives.row(n)) & set(cases.adapt.row(n)) for n in range(len(cases)))
    learns = [user for user in range(40) if len(split.train.row(user))]
    assert all(split.records.row(user).tolist() == rows[user] for user in learns)
    assert all(split.train.row(user).tolist() == sorted(set(rows[user])) for user in learns)
    # another context in every held-out row changes nothing that a client knows
    for name in (RECORDS, "holdout-users"):
        split = make_split(people, name, seed=2)
        shown = {(user, item) for n, user in enumerate(split.test.users) for item in split.test.adapt.row(n)}
        owners = np.repeat(np.arange(40), 12)
        hidden = [(u, i) not in shown for u, i in zip(owners, people.interactions.items, strict=True)]
        codes = np.where(np.array(hidden)[:, None], 3 - people.contexts.codes, people.contexts.codes)
        other = make_split(replace(people, contexts=replace(people.contexts, codes=codes)), name, seed=2)
        assert np.array_equal(split.test.people.codes, other.test.people.codes)
        assert set(split.test.people.codes.ravel()) == {1, 2}
