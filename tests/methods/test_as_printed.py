"""Preset `paper` of the matrix factorisations against Algorithm 2 of Xue et al. 2026, line by line."""

from __future__ import annotations

import math

import numpy as np
import pytest

from veilrec.client import mf
from veilrec.core.arrays import Csr, Doubles, Floats
from veilrec.methods.base import Problem, configure, make_trainer
from veilrec.methods.registry import get

USERS, ITEMS, SEED = 40, 30, 5
RATE, EPSILON, CLIP = 0.001, 2.0, 1.0  # section 6.3
EVERYBODY_ON_OWN_ITEMS = ["cohort.size=0", "local.negatives=0", "local.batch=0"]  # nothing is drawn: a loop can follow


def problem() -> Problem:
    generator = np.random.default_rng(3)
    lengths = generator.integers(1, 12, USERS)
    items = [np.sort(generator.choice(ITEMS, n, replace=False)) for n in lengths]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Problem(Csr(offsets, np.concatenate(items).astype(np.int32)), ITEMS, SEED, rounds=2)


def after_a_round(name: str, *settings: str) -> Floats:
    """The items that the server has after one round."""
    config, _ = configure(get(name), preset="paper", dataset="ml-100k", settings=[*EVERYBODY_ON_OWN_ITEMS, *settings])
    trainer = make_trainer(get(name), config, problem())
    trainer.step(0)
    return trainer.parts().weights[mf.ITEMS]


def by_algorithm_2(epochs: int, decay: float, start: float) -> Doubles:
    """The printed loops; the square of eq. 9 taken as meant."""
    train = problem().train
    items = mf.start_weights(ITEMS, 32, start, SEED)[mf.ITEMS].astype(np.float64)
    settings = mf.MfSettings(start=start)
    users = mf.MfLocalTrainer(settings).fresh_private_state(np.arange(USERS), SEED)[mf.USER].astype(np.float64)
    moved = items.copy()
    for device in range(USERS):  # server, lines 6 to 9
        user, own = users[device], train.row(device)
        for _ in range(epochs):  # client, line 2
            errors = items[own] @ user - 1.0
            item_gradients = 2.0 * errors[:, None] * user + decay * items[own]  # lines 4 and 5
            user = user - RATE * (2.0 * errors @ items[own] + decay * len(own) * user)  # line 3
            moved[own] -= RATE * item_gradients  # line 8 of the server
    return moved


@pytest.mark.parametrize("epochs", [1, 5])
def test_the_server_takes_a_step_for_every_gradient_of_every_device(epochs: int) -> None:
    got = after_a_round("fedmf", f"local.epochs={epochs}")
    expected = by_algorithm_2(epochs, decay=0.01, start=0.1)
    change = expected - mf.start_weights(ITEMS, 32, 0.1, SEED)[mf.ITEMS]
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4 * np.abs(change).max())


@pytest.mark.parametrize(("name", "settings"), [("dp-fedmf", ()), ("priv-fedmf-sub", ("selection.threshold=0.0",))])
def test_noise_is_on_the_gradient_and_so_comes_times_the_rate(name: str, settings: tuple[str, ...]) -> None:
    # With nothing to learn the model is noise: 40 devices, Laplace of scale 2 C / epsilon, times 0.001.
    model = after_a_round(name, "local.start=0", "local.epochs=1", *settings)
    noise = model[np.abs(model).max(axis=1) > 0.0]  # the rows of the sub-model
    expected = RATE * (2.0 * CLIP / EPSILON) * math.sqrt(2.0 * USERS)
    # at least 500 nearly normal numbers: their deviation is off by 20 % once in a million runs
    assert noise.size >= 500
    assert noise.std() == pytest.approx(expected, rel=0.2)


def test_a_row_of_a_gradient_is_clipped_to_one() -> None:
    # A start of 30 makes gradients in the thousands: what 40 devices may move a row by is 40 C times the rate.
    start = mf.start_weights(ITEMS, 32, 30.0, SEED)[mf.ITEMS]
    moved = after_a_round("dp-fedmf", "local.start=30", "local.user_rate=0", "privacy.epsilon=1e6") - start
    lengths = np.linalg.norm(moved, axis=1)
    assert lengths.max() > 3 * RATE * CLIP
    assert lengths.max() <= USERS * RATE * CLIP * 1.001
