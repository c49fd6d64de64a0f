"""What SASRec learns from: sequences in the order of time, and items that nobody used."""

from __future__ import annotations

import numpy as np

from veilrec.audit.contract_subject import histories_of
from veilrec.methods.base import Problem, configure, make_trainer
from veilrec.methods.references.sasrec import METHOD, batches, make_batch

PEOPLE = histories_of([[5, 1, 3, 0], [2], [4, 2], [], [0, 1, 2, 3, 4, 5]])
PROBLEM = Problem(PEOPLE, 6, 7)


def test_a_batch_is_the_latest_items_and_what_came_after() -> None:
    before, after, unused = make_batch(PROBLEM, np.array([0, 2]), 2, 0)
    assert before.tolist() == [[1, 3], [-1, 4]]
    assert after.tolist() == [[3, 0], [-1, 2]]
    assert set(unused[0].tolist()) <= {2, 4}
    assert unused[1, 0] == -1
    assert unused[1, 1] in {0, 1, 3, 5}
    again, other = (make_batch(PROBLEM, np.array([0, 2]), 2, epoch)[2] for epoch in (0, 1))
    assert np.array_equal(unused, again)
    assert other.shape == unused.shape


def test_who_has_used_everything_is_learnt_from_too() -> None:
    before, after, unused = make_batch(PROBLEM, np.array([4]), 200, 0)
    assert before.tolist() == [[0, 1, 2, 3, 4]]
    assert after.tolist() == [[1, 2, 3, 4, 5]]
    assert ((unused >= 0) & (unused < 6)).all()


def test_an_epoch_takes_everybody_once_who_has_two_items() -> None:
    for size in (1, 2, 100):
        users = [int(user) for part in batches(PEOPLE, size, 200, 1, 0) for user in part]
        assert sorted(users) == [0, 2, 4]


def test_it_learns_an_order() -> None:
    """Items go round in a circle: after an item comes the next one, whatever was before it."""
    people = histories_of([[(start + k) % 12 for k in range(8)] for start in range(12)])
    settings = ("dim=16", "longest=8", "batch=4", "dropout=0", "rate=0.01")
    config, _ = configure(METHOD, preset="tuned", dataset="", settings=settings)
    trainer = make_trainer(METHOD, config, Problem(people, 12, 1, 40))
    losses = [trainer.step(number).loss or 0.0 for number in range(40)]
    assert losses[-1] < 0.5 * losses[0]
    asked = (
        trainer.model().fold_in(histories_of([[3, 4, 5, 6, 7, 8, 9], [9, 10, 11, 0, 1, 2, 3]])).score_all(np.arange(2))
    )
    # What a user has used is never a negative, so that only the rest is told apart.
    best = [
        max(rest, key=lambda item: scores[item])
        for scores, rest in zip(asked, ({10, 11, 0, 1, 2}, {*range(4, 9)}), strict=True)
    ]
    assert best == [10, 4]
