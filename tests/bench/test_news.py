"""The loops over news devices do what we do; scoring reports its speed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench.toys import relative_difference
from veilrec.bench.news import PlainLoop, ranking, simulation_of
from veilrec.bench.options import Options

SMALL = ("size.word_dim=8", "size.heads=2", "size.head_dim=4", "size.attention=4")
SOURCE = "synthetic-news:users=60,seed=1"
CLOSE = 1e-5


@pytest.mark.parametrize("frugal", [True, False])
@pytest.mark.parametrize("calibration", ["none", "proven", "as-published"])
def test_the_loops_give_our_model(calibration: str, frugal: bool) -> None:
    simulation, news = simulation_of(SOURCE, calibration, 12, SMALL)
    before = {name: values.copy() for name, values in simulation.server.weights.items()}
    loop = PlainLoop(simulation, news, frugal=frugal)
    for number in range(2):
        simulation.step(number)
        loop.round(number)
    ours = np.concatenate(
        [(values - before[name]).ravel() for name, values in simulation.server.weights.items()]
    )
    theirs = np.concatenate(
        [(loop.parameters[name].detach().numpy() - values).ravel() for name, values in before.items()]
    )
    # Words start at 0.5 and are kept to 7 digits, so that their change of some 0.001 has four or five of them.
    assert relative_difference(ours, theirs) <= 1e-4
    for name, values in simulation.server.weights.items():
        expected = loop.parameters[name].detach().numpy()
        assert np.linalg.norm(values - expected) <= CLOSE * (np.linalg.norm(expected) + 1e-3), name


def test_all_calibrations_are_measured_on_a_model_of_the_same_size() -> None:
    shapes = [
        {
            name: values.shape
            for name, values in simulation_of(SOURCE, calibration, 12)[0].server.weights.items()
            if name != "words.weight"  # proven takes its words from the whole catalogue
        }
        for calibration in ("none", "proven", "as-published")
    ]
    assert shapes[0] == shapes[1] == shapes[2]


def test_scoring_says_how_many_impressions_a_second() -> None:
    result = ranking("news-scoring", Options(repeats=1, quick=True)).to_json()
    assert result["impressions_per_second"] > 0
    assert "dev impressions" in result["notes"][1]
