"""NCF, centralised: its draws, its epoch, and its agreement with the devices' model."""

from __future__ import annotations

import numpy as np
import torch

from tests.methods.tastes import ITEMS, SEED, build, small_problem
from veilrec.core.arrays import Csr
from veilrec.methods.references.ncf import NcfTrainer, draw_examples


def trainer(*settings: str) -> NcfTrainer:
    built = build("ncf", small_problem(), ["gmf=4", "mlp=4", "layers=6,3", *settings])
    assert isinstance(built, NcfTrainer)
    return built


def test_an_epoch_has_every_own_item_once_and_negatives_from_the_rest() -> None:
    train = small_problem().train
    users, items, labels = draw_examples(train, ITEMS, 4, SEED, 0)
    assert len(users) == 5 * len(train.items)
    for user in range(len(train)):
        own = set(train.row(user))
        mine = users == user
        assert sorted(items[mine & (labels == 1.0)]) == sorted(own)
        assert not own & set(items[mine & (labels == 0.0)])


def test_draws_are_keyed_by_seed_and_epoch_and_leave_the_data_alone() -> None:
    train = small_problem().train
    before = train.items.copy()
    first, again = (draw_examples(train, ITEMS, 4, SEED, 3)[1] for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, draw_examples(train, ITEMS, 4, SEED, 4)[1])
    assert not np.array_equal(first, draw_examples(train, ITEMS, 4, SEED + 1, 3)[1])
    assert np.array_equal(train.items, before)


def test_who_owns_every_item_has_no_negatives() -> None:
    train = Csr(np.array([0, 3, 4]), np.array([0, 1, 2, 1], np.int32))
    users, _, labels = draw_examples(train, 3, 4, SEED, 0)
    assert np.bincount(users).tolist() == [3, 5]
    assert labels[users == 0].all()


def test_the_loss_falls_and_decay_keeps_vectors_short() -> None:
    free, decayed = trainer("rate=0.02", "decay=0"), trainer("rate=0.02", "decay=0.1")
    losses = [free.step(number).loss or 0.0 for number in range(5)]
    for number in range(5):
        decayed.step(number)
    assert losses[-1] < 0.8 * losses[0]
    assert np.linalg.norm(decayed.state()["items"]) < 0.8 * np.linalg.norm(free.state()["items"])


def test_the_model_scores_what_the_module_scores() -> None:
    learned = trainer()
    learned.step(0)
    users = np.array([3, 8])
    with torch.no_grad():
        expected = [learned.net(torch.full((ITEMS,), u), torch.arange(ITEMS)).numpy() for u in users]
    np.testing.assert_allclose(learned.model().score_all(users), np.stack(expected), rtol=1e-4, atol=1e-5)


def test_the_state_holds_the_moments_of_every_tensor() -> None:
    learned = trainer()
    assert not any(name.startswith("adam.") for name in learned.state())
    learned.step(0)
    moments = [name for name in learned.state() if name.startswith("adam.")]
    assert len(moments) == 3 * len(list(learned.net.parameters()))
