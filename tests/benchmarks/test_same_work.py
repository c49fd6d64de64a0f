"""Nobody does more or less than anybody else: after the same rounds all contenders hold the same model."""

import numpy as np
import pytest

from _plain_loop import PlainLoop
from tests.benchmarks.toys import LOCAL, contest, relative_difference

ROUNDS = 3
CLOSE = 1e-5


@pytest.mark.parametrize("model", ["mf", "ncf"])
def test_plain_loop_gives_our_model(model):
    simulation, workload = contest(LOCAL[model], cohort=7)
    loop = PlainLoop(workload, simulation.sampler.draw)
    for number in range(ROUNDS):
        simulation.step(number)
        loop.round(number)
    for name, ours in simulation.server.weights.items():
        assert relative_difference(ours, loop.public[name].numpy()) <= CLOSE, name
        assert not np.array_equal(ours, workload.public[name]), f"{name} has not learnt"
    for name, ours in simulation.private.items():
        assert relative_difference(ours, loop.private[name].numpy()) <= CLOSE, name


@pytest.mark.parametrize("model", ["mf", "ncf"])
def test_pfl_gives_our_model(model):
    pytest.importorskip("pfl", reason="the extra `bench` is not installed")
    from _pfl_peer import PflPeer

    simulation, workload = contest(LOCAL[model], cohort=7)
    peer = PflPeer(workload, simulation.sampler.draw)
    for number in range(ROUNDS):
        simulation.step(number)
        peer.round(number)
    parameters = dict(peer.module.named_parameters())
    for name, ours in simulation.server.weights.items():
        assert relative_difference(ours, parameters[name].detach().numpy()) <= CLOSE, name
    users = [peer.storage.load_state(str(user))["user"].numpy() for user in range(len(workload.train))]
    assert relative_difference(simulation.private["user"], np.stack(users)) <= CLOSE


@pytest.mark.slow
def test_flower_gives_our_model(tmp_path):
    """Flower draws its own cohorts, so everybody takes part; a vector that it lost would show in round 2."""
    pytest.importorskip("flwr", reason="the extra `bench` is not installed")
    pytest.importorskip("ray", reason="the extra `bench` is not installed")
    from _peers import run_flower

    simulation, workload = contest(LOCAL["mf"])
    for number in range(ROUNDS):
        simulation.step(number)
    run = run_flower(workload, ROUNDS - 1, tmp_path)
    assert len(run.seconds) == ROUNDS - 1 and all(seconds > 0 for seconds in run.seconds)
    with np.load(run.answer) as answer:
        for name, ours in simulation.server.weights.items():
            assert relative_difference(ours, answer[name]) <= CLOSE, name
