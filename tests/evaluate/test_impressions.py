from __future__ import annotations

import numpy as np
import pytest

from veilrec.data.population import Impressions, Population
from veilrec.errors import BadInput
from veilrec.evaluate.impressions import judged, take_impressions
from veilrec.evaluate.protocols import make_split

from .toys import impressions, population, rows_of

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


def news(train: Impressions = TRAIN, dev: Impressions = DEV, n_users: int = 3) -> Population:
    # What the reader says was used plays no part: here it even holds the clicks of dev.
    base = population([[0, 1, 3, 6]] * n_users, 10)
    return Population("news", base.users, base.items, base.interactions, {"train": train, "dev": dev})


def test_training_knows_train_histories_and_clicks_in_time_order_and_nothing_of_dev() -> None:
    split = make_split(news(), "mind", seed=1)
    assert rows_of(split.train) == [[0, 1, 6, 8, 5], [2, 4], []]
    assert split.train_impressions is TRAIN


def test_the_test_cases_are_the_dev_impressions() -> None:
    split = make_split(news(), "mind", seed=1)
    assert split.test.impressions is DEV
    assert split.test.users.tolist() == [0, 2, 2]
    assert rows_of(split.test.positives) == [[3], [6], []]
    assert split.valid is None


def many(count: int) -> Impressions:
    """Histories that grow by each click: the next impression repeats what was clicked in the one before."""
    return impressions(
        shown=[[i % 9, 9] for i in range(count)],
        clicked=[[1, 0]] * count,
        histories=[[(i + step) % 9 for step in range(i // 20)] for i in range(count)],
        users=[i % 20 for i in range(count)],
    )


def test_validation_holds_out_a_tenth_of_the_train_impressions_and_their_clicks() -> None:
    train = many(100)
    split = make_split(news(train, n_users=20), "mind", seed=1, validation=True)
    assert split.valid is not None
    assert split.train_impressions is not None
    assert len(split.valid) == 10
    assert len(split.train_impressions) == 90
    for user, clicks in zip(split.valid.users, rows_of(split.valid.positives), strict=True):
        assert not set(clicks) & set(split.train.row(user).tolist())
    again = make_split(news(train, n_users=20), "mind", seed=1, validation=True)
    other = make_split(news(train, n_users=20), "mind", seed=2, validation=True)
    assert again.valid is not None
    assert other.valid is not None
    assert again.valid.users.tolist() == split.valid.users.tolist() != other.valid.users.tolist()
    assert split.test.impressions is DEV


def test_taking_impressions_keeps_each_with_its_history() -> None:
    taken = take_impressions(TRAIN, np.array([False, True, True]))
    assert rows_of(taken.shown) == [[6, 7, 8], [4, 9]]
    assert taken.clicked.tolist() == [1, 0, 1, 1, 0]
    assert [taken.histories.row(h).tolist() for h in taken.history_of] == [[0, 1], [2]]
    assert rows_of(take_impressions(TRAIN, np.array([False, False, True])).histories) == [[2]]


def test_taking_impressions_keeps_the_oracle() -> None:
    scores = np.arange(7, dtype=np.float32)
    oracle = Impressions(
        TRAIN.users, TRAIN.times, TRAIN.shown, TRAIN.clicked, TRAIN.histories, TRAIN.history_of, scores
    )
    taken = take_impressions(oracle, np.array([True, False, True]))
    assert taken.oracle is not None
    assert taken.oracle.tolist() == [0, 1, 5, 6]


def test_only_impressions_with_both_labels_can_be_judged() -> None:
    shown = impressions([[0, 1], [0, 1], [2, 3], []], [[1, 0], [1, 1], [0, 0], []], [[]], history_of=[0] * 4)
    assert judged(shown).tolist() == [True, False, False, False]


def test_impressions_that_cannot_be_judged_are_refused() -> None:
    never_clicked = impressions([[0, 1]], [[0, 0]], [[2]])
    with pytest.raises(BadInput, match="no dev impression of news has both a click and an item without one"):
        make_split(news(dev=never_clicked), "mind", seed=1)


def test_a_population_without_dev_impressions_is_refused() -> None:
    base = news()
    only_train = Population("news", base.users, base.items, base.interactions, {"train": TRAIN})
    with pytest.raises(BadInput, match="news has no dev part: add it, or use the protocol loo-99"):
        make_split(only_train, "mind", seed=1)
