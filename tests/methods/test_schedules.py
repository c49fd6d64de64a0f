"""Adaptive clipping and tree noise: how a plan splits its budget, and real rounds of it."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from tests.audit.bounded_plans import PRIVACY, data, people, promise, tree_plan
from veilrec.client import mf
from veilrec.core.schema import Schema, Tensor, with_bound
from veilrec.methods.private import ORDER_IS_PUBLIC, PrivacySettings, adaptive_sum, noisy_sum, tree_sum
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.privacy.events import GaussianEvent, TreeEvent, repeated, training_event
from veilrec.privacy.mechanisms.schedules import TreeSum
from veilrec.server.round_specs import CohortSettings
from veilrec.simulation.real_clients import RealRun
from veilrec.simulation.simulation import Seeds, Simulation

LAYER = Schema((Tensor("layer", (50,), by_row=False),))


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_a_large_cohort_pays_almost_nothing_for_the_count(sampling):
    cohort = CohortSettings(size=1000, sampling=sampling)
    learnt = adaptive_sum(PRIVACY, cohort, LAYER, rounds=10, clients=20_000, keeps_state=False)
    plain = noisy_sum(PRIVACY, cohort, with_bound(LAYER), rounds=10, clients=20_000, keeps_state=False)
    assert learnt.count_standard_deviation == 50.0 and learnt.event() == plain.event()
    assert 1.0 < learnt.sigma / plain.sigma < 1.001


@pytest.mark.parametrize(("sampling", "moved"), [("poisson", 0.5), ("fixed", 1.0)])
def test_in_a_small_cohort_the_count_has_a_tenth_of_the_loss(sampling, moved):
    cohort = CohortSettings(size=5, sampling=sampling)
    learnt = adaptive_sum(PRIVACY, cohort, LAYER, rounds=400, clients=60, keeps_state=True)
    plain = noisy_sum(PRIVACY, cohort, with_bound(LAYER), rounds=400, clients=60, keeps_state=True)
    share = (moved / learnt.count_standard_deviation * learnt.noise_multiplier) ** 2
    assert share == pytest.approx(0.1) and learnt.sigma / plain.sigma == pytest.approx(1.0 / math.sqrt(0.9), rel=1e-4)


def test_what_was_released_before_and_a_noise_of_ones_own():
    cohort = CohortSettings(size=20, sampling="poisson")
    options = {"rounds": 6, "clients": 60, "keeps_state": True}
    alone = adaptive_sum(PRIVACY, cohort, LAYER, **options)
    after = adaptive_sum(PRIVACY, cohort, LAYER, before=GaussianEvent(1.0), **options)
    quiet = adaptive_sum(PRIVACY, cohort, LAYER, count_standard_deviation=30.0, **options)
    assert after.noise_multiplier > alone.noise_multiplier
    assert (quiet.count_standard_deviation, quiet.noise_multiplier) == (30.0, alone.noise_multiplier)


SECRET = bytes(range(32))
SCHEMA = mf.schema(60, 4)


def turns(size):
    return CohortSettings(size=size, sampling="cyclic")


@pytest.mark.parametrize(
    ("size", "rounds", "steps", "most"), [(10, 12, 6, 2), (9, 12, 6, 2), (10, 4, 4, 1), (60, 3, 1, 3)]
)
def test_trees_are_as_long_as_nobody_has_two_turns(size, rounds, steps, most):
    mechanism = tree_sum(PRIVACY, turns(size), SCHEMA, rounds=rounds, clients=60)
    assert (mechanism.steps, mechanism.taking_part.rounds) == (steps, most)
    plan = tree_plan(size, rounds=rounds)
    assert training_event(plan) == repeated(TreeEvent(mechanism.noise_multiplier, steps), most)
    assert 0.999 * PRIVACY.epsilon < epsilon_of(training_event(plan), PRIVACY.delta) <= PRIVACY.epsilon


def test_what_was_released_before_needs_more_noise():
    alone, after = (
        tree_sum(PRIVACY, turns(10), SCHEMA, rounds=12, clients=60, before=before, numbers_before=5)
        for before in (None, GaussianEvent(1.0))
    )
    assert after.noise_multiplier > alone.noise_multiplier


def test_the_statement_rests_on_no_secret():
    stated = promise(tree_plan())
    assert stated.adjacency == "add-remove" and ORDER_IS_PUBLIC in stated.caveats
    assert not any("has to stay secret" in caveat for caveat in stated.caveats)


def simulation():
    return Simulation(tree_plan(), data(), people(), Seeds.all_from(1, SECRET))


def test_a_run_goes_on_from_a_checkpoint_bit_for_bit():
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


def test_real_clients_and_a_coordinator_give_the_simulation(tmp_path):
    simulated = simulation()
    real = RealRun(tmp_path, simulated.plan, data(), simulated.seeds)
    for number in range(4):
        if number == 2:
            real.coordinator.enrol("somebody who came late")  # the turns of the others stay as they are
        assert real.step().up_bytes == simulated.step(number).up_bytes
    for name, value in simulated.server.weights.items():
        assert np.allclose(value, real.coordinator.server_state.weights[name], rtol=0, atol=1e-5), name
    real.close()


def test_a_round_to_which_not_everybody_comes_is_closed(tmp_path):
    plan = tree_plan()
    real = RealRun(tmp_path, plan, data(), Seeds.all_from(1, SECRET))
    broadcast, cohort = real.coordinator.open_round()
    name = cohort[0]
    real.coordinator.receive(name, real.client(name).take_part(broadcast, 0))
    report = real.coordinator.close_round()
    assert (report.void, isinstance(plan.mechanism, TreeSum)) == (False, True)
    real.close()


PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
ROW = re.compile(r"^\| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", re.MULTILINE)
ROWS = [tuple(float(cell.replace(",", "")) for cell in row) for row in ROW.findall(PAGE.read_text(encoding="utf-8"))]


def test_the_noise_is_as_the_page_says():
    assert len(ROWS) == 3
    for row in ROWS:
        clients, size, rounds, turns = (int(number) for number in row[:4])
        privacy = PrivacySettings(epsilon=8.0, delta=1e-6, clip_norm=1.0)
        schema = Schema((Tensor("layer", (10,), by_row=False),))
        cyclic = CohortSettings(size=size, sampling="cyclic")
        tree = tree_sum(privacy, cyclic, schema, rounds=rounds, clients=clients)
        whole, rest = divmod(rounds, tree.steps)
        nodes = whole * tree.steps.bit_count() + rest.bit_count()  # that the sum of all rounds is made of
        drawn = CohortSettings(size=size, sampling="poisson")
        poisson = noisy_sum(privacy, drawn, schema, rounds=rounds, clients=clients, keeps_state=False)
        assert cyclic.max_participations(rounds, clients) == turns
        alone = math.sqrt(turns * rounds) / mu_for(8.0, 1e-6)
        found = (tree.sigma * math.sqrt(nodes), poisson.sigma * math.sqrt(rounds), alone)
        assert found == pytest.approx(row[4:], abs=0.051)
