"""The loops over news clients do what we do; scoring reports its speed."""

import numpy as np
import pytest

from _news import NewsLoop, news_simulation
from tests.benchmarks.toys import relative_difference
from veilrec.privacy.mechanisms.sums import CohortSum

SMALL = ("size.word_dim=8", "size.heads=2", "size.head_dim=4", "size.attention=4")
SOURCE = "synthetic-news:users=60,seed=1"
CALIBRATIONS = ["none", "proven", "as-published"]
CLOSE = 1e-5


@pytest.fixture(autouse=True)
def without_noise(monkeypatch):
    """The loops add none, so that their models can be compared with ours."""
    monkeypatch.setattr(CohortSum, "protect", lambda *_: None)


def assert_the_loop_gives_our_model(source, calibration, cohort, *, frugal):
    simulation, news = news_simulation(source, calibration, cohort, SMALL)
    before = {name: values.copy() for name, values in simulation.server.weights.items()}
    loop = NewsLoop(simulation, news, frugal=frugal)
    for number in range(2):
        simulation.step(number)
        loop.round(number)
    ours = np.concatenate([(values - before[name]).ravel() for name, values in simulation.server.weights.items()])
    theirs = np.concatenate(
        [(loop.parameters[name].detach().numpy() - values).ravel() for name, values in before.items()]
    )
    # Words start at 0.5 and are kept to 7 digits, so that their change of some 0.001 has four or five of them.
    assert relative_difference(ours, theirs) <= 1e-4
    for name, values in simulation.server.weights.items():
        expected = loop.parameters[name].detach().numpy()
        assert np.linalg.norm(values - expected) <= CLOSE * (np.linalg.norm(expected) + 1e-3), name


@pytest.mark.parametrize("frugal", [True, False])
@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_the_loops_give_our_model(calibration, frugal):
    assert_the_loop_gives_our_model(SOURCE, calibration, 12, frugal=frugal)
