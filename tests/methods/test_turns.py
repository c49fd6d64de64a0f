"""Devices that take turns and noise of a tree: what it spends, who has which turn, and real rounds of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.audit.bounded_plans import PRIVACY, data, people, promise, tree_plan
from veilrec.client import mf
from veilrec.core.errors import BadInput
from veilrec.methods.private import TURNS_ARE_PUBLIC, tree_sum
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.events import GaussianEvent, TreeEvent, repeated, training_event
from veilrec.privacy.mechanisms.schedules import TreeSum
from veilrec.server.round_specs import CohortSettings
from veilrec.simulation.real_clients import RealRun
from veilrec.simulation.simulation import Seeds, Simulation

SECRET = bytes(range(32))
SCHEMA = mf.schema(60, 4)


def turns(size: int) -> CohortSettings:
    return CohortSettings(size=size, sampling="turns")


@pytest.mark.parametrize(
    ("size", "rounds", "steps", "most"), [(10, 12, 6, 2), (9, 12, 6, 2), (10, 4, 4, 1), (60, 3, 1, 3)]
)
def test_trees_are_as_long_as_nobody_has_two_turns(size: int, rounds: int, steps: int, most: int) -> None:
    mechanism = tree_sum(PRIVACY, turns(size), SCHEMA, rounds=rounds, devices=60)
    assert (mechanism.steps, mechanism.taking_part.rounds) == (steps, most)
    plan = tree_plan(size, rounds=rounds)
    assert training_event(plan) == repeated(TreeEvent(mechanism.noise_multiplier, steps), most)
    assert 0.999 * PRIVACY.epsilon < epsilon_of(training_event(plan), PRIVACY.delta) <= PRIVACY.epsilon


def test_what_was_released_before_needs_more_noise() -> None:
    alone, after = (
        tree_sum(PRIVACY, turns(10), SCHEMA, rounds=12, devices=60, before=before, numbers_before=5)
        for before in (None, GaussianEvent(1.0))
    )
    assert after.noise_multiplier > alone.noise_multiplier


def test_cohorts_that_are_drawn_are_refused() -> None:
    with pytest.raises(BadInput, match="needs --set cohort.sampling=turns"):
        tree_sum(PRIVACY, CohortSettings(size=10), SCHEMA, rounds=12, devices=60)


def test_the_statement_rests_on_no_secret() -> None:
    stated = promise(tree_plan())
    assert stated.adjacency == "add-remove"
    assert TURNS_ARE_PUBLIC in stated.caveats
    assert not any("has to stay secret" in caveat for caveat in stated.caveats)


def simulation() -> Simulation:
    return Simulation(tree_plan(), data(), people(), Seeds.all_from(1, SECRET))


def test_a_run_goes_on_from_a_checkpoint_bit_for_bit() -> None:
    straight, stopped, resumed = simulation(), simulation(), simulation()
    for number in range(3):
        straight.step(number)
        stopped.step(number)
    resumed.load_state(stopped.state(), 3)
    for number in range(3, 8):
        straight.step(number)
        resumed.step(number)
    for name, value in straight.state().items():
        assert np.array_equal(value, resumed.state()[name]), name


def test_real_devices_and_a_coordinator_give_the_simulation(tmp_path: Path) -> None:
    simulated = simulation()
    real = RealRun(tmp_path, simulated.plan, data(), simulated.seeds)
    for number in range(4):
        if number == 2:
            real.coordinator.enrol("somebody who came late")  # the turns of the others stay as they are
        assert real.step().up_bytes == simulated.step(number).up_bytes
    for name, value in simulated.server.weights.items():
        assert np.allclose(value, real.coordinator.standing.weights[name], rtol=0, atol=1e-5), name
    real.close()


def test_a_round_to_which_not_everybody_comes_is_closed(tmp_path: Path) -> None:
    plan = tree_plan()
    real = RealRun(tmp_path, plan, data(), Seeds.all_from(1, SECRET))
    broadcast, cohort = real.coordinator.open_round()
    name = cohort[0]
    real.coordinator.receive(name, real.device(name).take_part(broadcast, 0))
    report = real.coordinator.close_round()
    assert (report.void, isinstance(plan.mechanism, TreeSum)) == (False, True)
    real.close()
