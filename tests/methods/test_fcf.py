"""The server's part of federated collaborative filtering, and what comes of both parts together."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tests.methods.tastes import build, small_problem
from veilrec.client import fcf
from veilrec.client.rankers import FcfModel
from veilrec.core.errors import BadInput
from veilrec.methods.base import configure
from veilrec.methods.references.fcf import METHOD


def whole_loss(items: np.ndarray, histories: np.ndarray, settings: fcf.FcfSettings) -> float:
    """The loss of all devices at the best user vectors for these items."""
    users = fcf.solve_users(items, histories, settings).astype(np.float64)
    wanted = np.zeros((len(users), len(items)))
    wanted[histories.row_numbers(), histories.items] = 1.0
    fit = ((1.0 + settings.alpha * wanted) * (wanted - users @ items.T) ** 2).sum()
    return float(fit + settings.decay * ((users**2).sum() + (items.astype(np.float64) ** 2).sum()))


def test_a_round_of_everybody_with_small_steps_lowers_the_whole_loss() -> None:
    """Uploads and regularisation are the gradient of the whole loss: a small step along them must descend."""
    problem = small_problem()
    settings = ["cohort.size=60", "server.optimiser=sgd", "server.momentum=0", "server.rate=0.1"]
    trainer = build("fcf", problem, settings)
    losses = []
    for number in range(6):
        model = trainer.model()
        assert isinstance(model, FcfModel)
        losses.append(whole_loss(model.items.copy(), problem.train, model.settings))
        trainer.step(number)
    assert all(later < earlier for earlier, later in pairwise(losses))


def test_changing_one_server_setting_keeps_adam() -> None:
    config, _ = configure(METHOD, preset="tuned", dataset="", settings=["server.rate=0.5"])
    assert (config.server.optimiser, config.server.rate, config.server.momentum) == ("adam", 0.5, 0.9)


def test_devices_keep_nothing_and_need_not_have_taken_part() -> None:
    trainer = build("fcf", small_problem())
    trainer.step(0)
    assert not any(name.startswith("private.") for name in trainer.state())
    scores = trainer.model().score_all(np.arange(60))
    assert (np.abs(scores).max(axis=1) > 0).all()


@pytest.mark.parametrize("setting", ["local.dim=0", "local.alpha=-1", "local.decay=0", "local.decay=inf", "start=0"])
def test_refuses_settings_that_cannot_be_solved(setting: str) -> None:
    with pytest.raises(BadInput, match=f"setting {setting.partition('=')[0]} of fcf is"):
        configure(METHOD, preset="tuned", dataset="", settings=[setting])
