"""Centralised matrix factorisation against its loss written down in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.methods.tastes import ITEMS, SEED, small_problem
from veilrec.core.arrays import Csr
from veilrec.core.errors import BadInput
from veilrec.methods.base import Problem, configure
from veilrec.methods.references.mf import METHOD, MfConfig, MfTrainer


def test_one_example_moves_along_the_gradient_of_the_logistic_loss() -> None:
    # A user who owns every item draws no negatives: the epoch is one known step.
    problem = Problem(Csr(np.array([0, 1]), np.array([0], np.int32)), n_items=1, public_seed=3)
    config = MfConfig(rate=0.1, decay=0.2, start=1.0)
    trainer = MfTrainer(config, problem)
    p, q = trainer.users[0].astype(np.float64), trainer.items[0].astype(np.float64)
    error = 1.0 / (1.0 + np.exp(-p @ q)) - 1.0
    report = trainer.step(0)
    assert np.allclose(trainer.users[0], p - 0.1 * (error * q + 0.2 * p), rtol=1e-5)
    assert np.allclose(trainer.items[0], q - 0.1 * (error * p + 0.2 * q), rtol=1e-5)
    assert report.loss is not None
    assert np.isclose(report.loss, np.log1p(np.exp(-p @ q)), rtol=1e-4)


def test_the_loss_falls_and_no_message_is_counted() -> None:
    trainer = MfTrainer(MfConfig(), small_problem())
    reports = [trainer.step(number) for number in range(15)]
    losses = [report.loss or 0.0 for report in reports]
    assert losses[-1] < 0.8 * losses[0]
    assert all(report.up_bytes == report.down_bytes == 0 for report in reports)


def test_an_epoch_reaches_every_user() -> None:
    trainer = MfTrainer(MfConfig(), small_problem())
    before = trainer.users.copy()
    trainer.step(0)
    assert (np.abs(trainer.users - before).max(axis=1) > 0).all()


def test_users_without_data_keep_their_start_and_can_be_scored() -> None:
    train = Csr(np.array([0, 0, 3]), np.array([1, 2, 3], np.int32))
    trainer = MfTrainer(MfConfig(), Problem(train, ITEMS, SEED))
    before = trainer.users[0].copy()
    trainer.step(0)
    assert np.array_equal(trainer.users[0], before)
    assert np.isfinite(trainer.model().score_all(np.array([0]))).all()


@pytest.mark.parametrize("setting", ["dim=0", "rate=-1", "rate=inf", "decay=-0.1", "negatives=0", "adapt_epochs=0"])
def test_refuses_values_that_cannot_learn(setting: str) -> None:
    with pytest.raises(BadInput, match=f"setting {setting.partition('=')[0]} of mf is"):
        configure(METHOD, preset="tuned", dataset="", settings=[setting])
