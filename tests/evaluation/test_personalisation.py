"""What a new user gets by what the model was given: the questions stay, the model's knowledge changes."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.evaluation.toys import TableModel, csr, population, random_population, random_rated_population, rows_of
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.evaluation.evaluator import COUNTS, evaluate_cases, given_first, personalisation
from veilrec.evaluation.metrics import MAIN_OF_LISTS
from veilrec.evaluation.protocols import make_split
from veilrec.evaluation.split import Cases


def halves(seed=1, protocol="holdout-users"):
    return make_split(random_rated_population(60, 150, 1, 40, seed=2), protocol, seed=seed)


@dataclass
class Likes:
    """Scores items by how near their numbers are to those of the history; without one, all alike."""

    n_items: int
    histories: Csr

    def score_all(self, users):
        near = [[self._near(self.histories.row(user), item) for item in range(self.n_items)] for user in users]
        return np.array(near, np.float32)

    def _near(self, own, item):
        return float(-np.abs(own - item).min()) if len(own) else 0.0

    def score_some(self, users, items):
        raise NotImplementedError

    def fold_in(self, histories):
        return Likes(self.n_items, histories)


@pytest.mark.parametrize("protocol", ["holdout-users", "holdout-users-liked"])
def test_what_is_not_given_is_set_aside_and_nothing_is_lost(protocol):
    cases = halves(protocol=protocol).test
    aside = [[]] * len(cases) if cases.set_aside is None else rows_of(cases.set_aside)
    before = [set()] * len(cases)
    for count in COUNTS[:-1]:
        given = given_first(cases, count, seed=1)
        assert given.positives is cases.positives
        for case, half in enumerate(rows_of(cases.adapt)):
            row, rest = given.adapt.row(case).tolist(), given.set_aside.row(case).tolist()
            assert len(row) == min(count, len(half))
            assert row == [item for item in half if item in row]  # in the order of use
            assert sorted(row + rest) == sorted(half + aside[case])
            assert before[case] <= set(row)  # the first two are the first one and another
            before[case] = set(row)
    assert given_first(cases, None, seed=1) is cases


def test_the_order_is_random_and_always_the_same():
    cases = replace(halves().test, adapt=csr([range(40)] * 12), set_aside=None)
    one, again, other = (rows_of(given_first(cases, 5, seed).adapt) for seed in (3, 3, 4))
    assert one == again != other
    assert len({tuple(row) for row in one}) == 12  # not the same for all
    row = np.array([3])  # nor dependent on who else is asked
    alone = Cases(cases.users[row], cases.positives.take(row), adapt=cases.adapt.take(row))
    assert rows_of(given_first(alone, 5, 3).adapt) == [one[3]]
    # 40 items, 5 of them for each of 2,000 users: an item is expected 250 times, with a standard deviation of 14.8.
    many = Cases(np.arange(2000), csr([[0]] * 2000), adapt=csr([range(40)] * 2000))
    counts = np.bincount(given_first(many, 5, 1).adapt.items, minlength=40)
    assert np.abs(counts - 250).max() < 75


def test_a_model_that_does_not_look_at_users_gets_the_same_at_every_number():
    # Were the withheld items rivals, whoever ranks by popularity would do worse the less is given.
    split = halves()
    table = np.tile(np.bincount(split.train.items, minlength=150).astype(np.float32), (60, 1))
    found = [given.result.means() for given in personalisation(split, TableModel(table, table), 1)]
    assert all(means == found[-1] for means in found)


def test_withheld_items_as_rivals_would_be_noticed():
    split = halves()
    lengths = split.test.adapt.lengths()
    table = np.zeros((len(split.test), 150), np.float32)
    for case in range(len(split.test)):  # the user's own half first, then what is asked for
        table[case, split.test.adapt.row(case)] = 2.0
        table[case, split.test.positives.row(case)] = 1.0
    model = TableModel(table, table)
    for given in personalisation(split, model, 1):
        assert given.result.means()["ndcg@5"] == 1.0
    wrong = replace(given_first(split.test, 0, 1), set_aside=None)
    assert evaluate_cases(wrong, split.train, model).values["ndcg@5"][lengths > 5].max() < 1.0


def test_the_last_point_is_the_evaluation_itself_and_the_first_knows_nothing():
    split = halves()
    model = Likes(150, csr([[]] * 60))
    found = personalisation(split, model, 1)
    assert [given.label for given in found] == ["0", "1", "2", "5", "10", "20", "half"]
    whole = evaluate_cases(split.test, split.train, model)
    assert (found[-1].result.means(), found[-1].result.known.tolist()) == (whole.means(), whole.known.tolist())
    assert (found[0].result.means()["hr@30"], found[0].mean_items) == (0.0, 0.0)  # all items tie
    means = [given.mean_items for given in found]
    assert means == sorted(means)
    assert means[3] < 5 < whole.known.max()  # some have fewer
    assert all(len(given.result) == len(split.test) for given in found)
    assert set(MAIN_OF_LISTS) <= set(found[1].result.values)


def test_people_keep_their_features_and_one_with_two_items_gives_the_one_there_is():
    cases = replace(halves().test, people="who they are")
    assert given_first(cases, 1, 1).people == "who they are"
    split = make_split(population([[user, 50 + user] for user in range(30)], 99), "holdout-users", seed=1)
    found = personalisation(split, TableModel(*[np.random.default_rng(1).random((30, 99), np.float32)] * 2), 1)
    assert [given.mean_items for given in found] == [0, 1, 1, 1, 1, 1, 1]


def test_protocols_that_meet_nobody_new_are_refused():
    for protocol in ("loo-99", "loo-full", "ratio-8-2"):
        split = make_split(random_population(40, 130, 3, 20, seed=1), protocol, seed=1)
        with pytest.raises(BadInput, match=f"{protocol} has none: train with --protocol holdout-users"):
            personalisation(split, TableModel(np.zeros((40, 130), np.float32)), 1)
