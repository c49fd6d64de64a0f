"""The central reference methods, and federated collaborative filtering, against their equations."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.methods.tastes import ITEMS, SEED, build, small_problem
from veilrec.audit.contract_subject import histories_of
from veilrec.client import fcf
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.methods.base import Problem, configure, make_trainer
from veilrec.methods.references.item_item import EASE, EASE_MOST_ITEMS, EaseConfig
from veilrec.methods.references.mf import MfConfig, MfTrainer
from veilrec.methods.references.ncf import draw_examples
from veilrec.methods.references.sasrec import METHOD, batches, make_batch


def test_one_example_moves_along_the_gradient_of_the_logistic_loss():
    # A user who owns every item draws no negatives: the epoch is one known step.
    problem = Problem(Csr(np.array([0, 1]), np.array([0], np.int32)), n_items=1, public_seed=3)
    config = MfConfig(rate=0.1, decay=0.2, start=1.0)
    trainer = MfTrainer(config, problem)
    p, q = trainer.users[0].astype(np.float64), trainer.items[0].astype(np.float64)
    error = 1.0 / (1.0 + np.exp(-p @ q)) - 1.0
    report = trainer.step(0)
    assert np.allclose(trainer.users[0], p - 0.1 * (error * q + 0.2 * p), rtol=1e-5)
    assert np.allclose(trainer.items[0], q - 0.1 * (error * p + 0.2 * q), rtol=1e-5)
    assert np.isclose(report.loss, np.log1p(np.exp(-p @ q)), rtol=1e-4)


def test_an_epoch_reaches_every_user_but_those_without_data():
    train = small_problem().train
    gap = Csr(np.insert(train.offsets, 0, 0), train.items)  # user 0 has nothing
    trainer = MfTrainer(MfConfig(), Problem(gap, ITEMS, SEED))
    before = trainer.users.copy()
    trainer.step(0)
    moved = np.abs(trainer.users - before).max(axis=1) > 0
    assert not moved[0] and moved[1:].all() and np.isfinite(trainer.model().score_all(np.array([0]))).all()


def trainer(*settings):
    return build("ncf", small_problem(), ["gmf=4", "mlp=4", "layers=6,3", *settings])


def test_an_epoch_has_every_own_item_once_and_negatives_from_the_rest():
    train = small_problem().train
    users, items, labels = draw_examples(train, ITEMS, 4, SEED, 0)
    assert len(users) == 5 * len(train.items)
    for user in range(len(train)):
        own = set(train.row(user))
        mine = users == user
        assert sorted(items[mine & (labels == 1.0)]) == sorted(own) and not own & set(items[mine & (labels == 0.0)])


def test_who_owns_every_item_has_no_negatives():
    train = Csr(np.array([0, 3, 4]), np.array([0, 1, 2, 1], np.int32))
    users, _, labels = draw_examples(train, 3, 4, SEED, 0)
    assert np.bincount(users).tolist() == [3, 5] and labels[users == 0].all()


def test_the_loss_falls_and_decay_keeps_vectors_short():
    free, decayed = trainer("rate=0.02", "decay=0"), trainer("rate=0.02", "decay=0.1")
    losses = [free.step(number).loss or 0.0 for number in range(5)]
    for number in range(5):
        decayed.step(number)
    assert losses[-1] < 0.8 * losses[0]
    assert np.linalg.norm(decayed.state()["items.weight"]) < 0.8 * np.linalg.norm(free.state()["items.weight"])


def test_the_model_scores_what_the_module_scores():
    learned = trainer()
    learned.step(0)
    users = np.array([3, 8])
    with torch.no_grad():
        expected = [learned.net(torch.full((ITEMS,), u), torch.arange(ITEMS)).numpy() for u in users]
    np.testing.assert_allclose(learned.model().score_all(users), np.stack(expected), rtol=1e-4, atol=1e-5)


def whole_loss(items, histories, settings):
    """The loss of all clients at the best user vectors for these items."""
    users = fcf.solve_users(items, histories, settings).astype(np.float64)
    wanted = np.zeros((len(users), len(items)))
    wanted[histories.row_numbers(), histories.items] = 1.0
    fit = ((1.0 + settings.alpha * wanted) * (wanted - users @ items.T) ** 2).sum()
    return float(fit + settings.decay * ((users**2).sum() + (items.astype(np.float64) ** 2).sum()))


def test_a_round_of_everybody_with_small_steps_lowers_the_whole_loss():
    """Uploads and regularisation are the gradient of the whole loss: a small step along them must descend."""
    problem = small_problem()
    settings = ["cohort.size=60", "server.optimiser=sgd", "server.momentum=0", "server.rate=0.1"]
    trainer = build("fcf", problem, settings)
    losses = []
    for number in range(6):
        model = trainer.model()
        losses.append(whole_loss(model.items.copy(), problem.train, model.settings))
        trainer.step(number)
    assert all(later < earlier for earlier, later in pairwise(losses))


def test_refuses_too_many_items_before_any_work():
    problem = Problem(Csr(np.array([0, 1]), np.array([0], np.int32)), EASE_MOST_ITEMS + 1, 0)
    with pytest.raises(BadInput, match=f"at most {EASE_MOST_ITEMS} items; drop rare items, or use mf or fedmf"):
        make_trainer(EASE, EaseConfig(), problem)


PEOPLE = histories_of([[5, 1, 3, 0], [2], [4, 2], [], [0, 1, 2, 3, 4, 5]])
PROBLEM = Problem(PEOPLE, 6, 7)


def test_a_batch_is_the_latest_items_and_what_came_after():
    before, after, unused = make_batch(PROBLEM, np.array([0, 2]), 2, 0)
    assert (before.tolist(), after.tolist()) == ([[1, 3], [-1, 4]], [[3, 0], [-1, 2]])
    assert set(unused[0].tolist()) <= {2, 4} and unused[1, 0] == -1 and unused[1, 1] in {0, 1, 3, 5}
    again, other = (make_batch(PROBLEM, np.array([0, 2]), 2, epoch)[2] for epoch in (0, 1))
    assert np.array_equal(unused, again) and other.shape == unused.shape


def test_who_has_used_everything_is_learnt_from_too():
    before, after, unused = make_batch(PROBLEM, np.array([4]), 200, 0)
    assert (before.tolist(), after.tolist()) == ([[0, 1, 2, 3, 4]], [[1, 2, 3, 4, 5]])
    assert ((unused >= 0) & (unused < 6)).all()


def test_an_epoch_takes_everybody_once_who_has_two_items():
    for size in (1, 2, 100):
        users = [int(user) for part in batches(PEOPLE, size, 200, 1, 0) for user in part]
        assert sorted(users) == [0, 2, 4]


def test_it_learns_an_order():
    """Items go round in a circle: after an item comes the next one, whatever was before it."""
    people = histories_of([[(start + k) % 12 for k in range(8)] for start in range(12)])
    settings = ("dim=16", "longest=8", "batch=4", "dropout=0", "rate=0.01")
    config, _ = configure(METHOD, preset="tuned", dataset="", settings=settings)
    trainer = make_trainer(METHOD, config, Problem(people, 12, 1, 40))
    losses = [trainer.step(number).loss or 0.0 for number in range(40)]
    assert losses[-1] < 0.5 * losses[0]
    asked = histories_of([[3, 4, 5, 6, 7, 8, 9], [9, 10, 11, 0, 1, 2, 3]])
    scores = trainer.model().fold_in(asked).score_all(np.arange(2))
    # What a user has used is never a negative, so that only the rest is told apart.
    best = [
        max(rest, key=row.__getitem__) for row, rest in zip(scores, ({10, 11, 0, 1, 2}, {*range(4, 9)}), strict=True)
    ]
    assert best == [10, 4]
