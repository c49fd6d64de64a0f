"""Training negatives must not give the held-out item away.

Public codes draw training negatives from the items that a user never used. The held-out item is then never
drawn, while the 99 beside it are: counting draws finds it, without any learning.
"""

import numpy as np
import pytest

from tests.evaluation.toys import TableModel, random_population
from veilrec.evaluation.evaluator import evaluate
from veilrec.evaluation.protocols import make_split
from veilrec.evaluation.split import draw_unused

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
    # The held-out item and the 99 are drawn alike, so hr@10 is binomial with 1 in 10; 5 standard deviations
    # are passed once in 1.7 million seeds.
    split = make_split(PEOPLE, "loo-99", seed=1, validation=validation)
    model = counter(split.train, sign)
    bound = 5 * np.sqrt(0.1 * 0.9 / N_USERS)
    assert abs(hit_rate(split.test, split, model) - 0.1) < bound
    if validation:
        assert abs(hit_rate(split.valid, split, model) - 0.1) < bound


def test_the_counter_finds_the_item_when_negatives_leave_it_out():
    split = make_split(PEOPLE, "loo-99", seed=1)
    leaky = counter(PEOPLE.interactions.pairs(), -1.0)
    leaky.table[split.test.users, split.test.positives.items] = 0.0  # never drawn
    assert hit_rate(split.test, split, leaky) > 0.99
