import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluation.toys import TableModel, csr, random_population
from veilrec.evaluation.evaluator import evaluate
from veilrec.evaluation.protocols import make_split
from veilrec.evaluation.split import draw_unused, mark_share, mark_some

Z = 5.0  # a standard normal number is beyond it once in 1.7 million draws


def test_draws_of_a_user_are_unused_items_and_depend_on_nobody_else():
    drawn = draw_unused(csr([[0, 3], [4, 2], []]), np.arange(3), 5, 3, seed=1, purpose=1)
    assert [sorted(row) for row in drawn.tolist()[:2]] == [[1, 2, 4], [0, 1, 3]]  # none is left over
    assert len(set(drawn[2].tolist())) == 3
    both = draw_unused(csr([[0, 1], [2]]), np.array([4, 9]), 50, 5, seed=1, purpose=1)
    alone, seeded, purposed = (
        draw_unused(csr([[2]]), np.array([9]), 50, 5, seed=seed, purpose=purpose)[0].tolist()
        for seed, purpose in ((1, 1), (2, 1), (1, 2))
    )
    assert both[1].tolist() == alone
    assert alone not in (seeded, purposed)


@given(st.sets(st.integers(0, 29), max_size=20), st.integers(0, 2**31), st.integers(1, 10))
def test_draws_are_distinct_and_unused(used, seed, count):
    drawn = draw_unused(csr([sorted(used, reverse=True)]), np.array([7]), 30, count, seed, purpose=1)[0].tolist()
    assert len(set(drawn)) == count
    assert not used & set(drawn)
    assert set(drawn) <= set(range(30))


def test_every_unused_item_is_drawn_equally_often():
    # 10 counts, each beyond Z once in 1.7 million: a false alarm in 170,000 seeds.
    n = 20_000
    used = csr([[1, 5, 11]] * n)
    drawn = draw_unused(used, np.arange(n), 13, 4, seed=3, purpose=1)
    counts = np.delete(np.bincount(drawn.ravel(), minlength=13), [1, 5, 11])
    assert np.abs(counts - n * 0.4).max() < Z * np.sqrt(n * 0.4 * 0.6)


def test_marks_as_many_entries_as_asked_each_equally_often():
    # 5 + 3 counts: a false alarm in 200,000 seeds.
    n = 20_000
    offsets = np.concatenate([[0], np.cumsum(np.tile([5, 3], n))]).astype(np.int64)
    marked = mark_some(offsets, np.tile([2, 1], n), np.arange(2 * n), seed=5, purpose=1).reshape(n, 8)
    for share, part in ((0.4, marked[:, :5]), (1 / 3, marked[:, 5:])):
        assert (part.sum(axis=1) == round(share * part.shape[1])).all()
        assert np.abs(part.sum(axis=0) - n * share).max() < Z * np.sqrt(n * share * (1 - share))
    marked = mark_some(np.array([0, 3, 3, 5]), np.array([0, 0, 2]), np.arange(3), seed=1, purpose=1)
    assert marked.tolist() == [False, False, False, True, True]


def test_a_share_is_marked_by_a_coin_for_each_entry_of_a_user():
    n = 40_000
    users = np.tile([0, 1], n)
    marked = mark_share(users, np.array([70, 3]), 0.1, seed=5, purpose=1)
    for of_one in (marked[::2], marked[1::2]):
        assert abs(of_one.sum() - n * 0.1) < Z * np.sqrt(n * 0.1 * 0.9)
    assert abs((marked[::2] & marked[1::2]).sum() - n * 0.01) < Z * np.sqrt(n * 0.01)  # each has coins of its own
    alone = mark_share(np.zeros(n, np.int64), np.array([3]), 0.1, seed=5, purpose=1)
    assert alone.tolist() == marked[1::2].tolist()


# Training negatives must not give the held-out item away. Public codes draw them from the items that a user never
# used: the held-out item is then never drawn, while the 99 beside it are, and counting draws finds it.
N_USERS, N_ITEMS = 2_000, 160
PEOPLE = random_population(N_USERS, N_ITEMS, 3, 20, seed=1)
EPOCHS, NEGATIVES = 25, 40
TRAINING = 999  # a purpose of draws that no protocol uses


def counter(outside, sign):
    """Scores an item by how often it was drawn as a negative of the user; a random order among equals."""
    counts = np.random.default_rng(3).random((N_USERS, N_ITEMS)) * 0.5
    users = np.arange(N_USERS)
    for epoch in range(EPOCHS):
        drawn = draw_unused(outside, users, N_ITEMS, NEGATIVES, seed=epoch, purpose=TRAINING)
        counts[users[:, None], drawn] += 1
    counts[outside.row_numbers(), outside.items] = 0
    return TableModel((sign * counts).astype(np.float32))


def hit_rate(cases, split, model):
    return evaluate(cases, split.train, model)["hr@10"]


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("validation", [False, True])
def test_a_counter_of_drawn_negatives_stays_at_chance(sign, validation):
    # The held-out item and the 99 are drawn alike, so hr@10 is binomial with 1 in 10.
    split = make_split(PEOPLE, "loo-99", seed=1, validation=validation)
    model = counter(split.train, sign)
    for cases in [split.test, *([split.valid] if validation else [])]:
        assert abs(hit_rate(cases, split, model) - 0.1) < Z * np.sqrt(0.1 * 0.9 / N_USERS)


def test_the_counter_finds_the_item_when_negatives_leave_it_out():
    split = make_split(PEOPLE, "loo-99", seed=1)
    leaky = counter(PEOPLE.interactions.pairs(), -1.0)
    leaky.table[split.test.users, split.test.positives.items] = 0.0  # never drawn
    assert hit_rate(split.test, split, leaky) > 0.99
