"""What reports say of the model itself: filled before the first round, broadcast, kept, and the same in real rounds."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.methods.tastes import build, same, small_problem
from veilrec.core.plan import Plan, ReportSpec
from veilrec.core.schema import Schema
from veilrec.methods.private import PrivacySettings, noisy_sum, private_votes
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.events import training_event
from veilrec.privacy.mechanisms.reports import PlainVotes
from veilrec.server.coordinator import Coordinator
from veilrec.server.round_specs import PopularityTensor
from veilrec.server.server import Server
from veilrec.simulation.real_clients import SECRET, RealRun, put_secret
from veilrec.simulation.simulation import Simulation

DEVICES, COHORT = 8, 5
PRIVACY = PrivacySettings(epsilon=4.0)


@cache
def of_fedmf() -> Simulation:
    made = build("dp-fedmf", small_problem(DEVICES), (f"cohort.size={COHORT}",), secret=SECRET)
    assert isinstance(made, Simulation)
    return made


def with_popularity(*, noise: bool = True, averaging: float = 0.0) -> Plan:
    plan, popularity = of_fedmf().plan, PopularityTensor()
    n_items = plan.schema.tables[0].shape[0]
    schema = Schema((*plan.schema.tensors, popularity.tensor(n_items)))
    before = private_votes(PRIVACY, plan.cohort, n_items, share=0.2)
    mechanism = noisy_sum(
        PRIVACY,
        plan.cohort,
        schema,
        rounds=plan.rounds,
        devices=DEVICES,
        keeps_state=True,
        before=before.event,
        numbers_before=before.numbers,
    )
    return replace(
        plan,
        schema=schema,
        start={**plan.start, popularity.name: np.zeros((n_items, 1), np.float32)},
        mechanism=mechanism,
        reports=before.reports if noise else ReportSpec(mechanism=PlainVotes(length=n_items)),
        from_reports=popularity,
        averaging=averaging,
    )


def simulated(plan: Plan) -> Simulation:
    known = of_fedmf()
    return Simulation(plan, known.data, known.histories, known.seeds)


@pytest.mark.parametrize("noise", [True, False])
def test_real_rounds_fill_what_the_simulation_fills(tmp_path: Path, noise: bool) -> None:
    plan = with_popularity(noise=noise, averaging=0.5)
    here, real = simulated(plan), RealRun(tmp_path, plan, of_fedmf().data, of_fedmf().seeds)
    for number in range(2):
        told, done = here.step(number), real.step()
        assert (told.up_bytes, told.down_bytes) == (done.up_bytes, done.down_bytes)
    assert same(dict(real.coordinator.standing.state()), here.standing.state())
    popularity = here.server.weights["popularity"]
    assert np.count_nonzero(popularity) > 0.9 * len(popularity) or not noise
    assert np.array_equal(here.standing.weights["popularity"], popularity)
    assert np.array_equal(here.parts().weights["popularity"], popularity)
    real.close()
    spent = epsilon_of(training_event(plan), PRIVACY.delta)  # of votes and rounds together
    assert not noise or 0.98 * PRIVACY.epsilon < spent <= PRIVACY.epsilon
    votes = np.zeros(len(popularity))
    for device in range(DEVICES):
        row = here.data.rows.row(device)
        votes[row] += len(row) ** -0.5
    assert noise or np.allclose(popularity[:, 0], votes, atol=1e-6)


def test_a_coordinator_that_dies_in_the_open_round_still_has_it(tmp_path: Path) -> None:
    plan = with_popularity()
    real = RealRun(tmp_path, plan, of_fedmf().data, of_fedmf().seeds)
    question = real.coordinator.ask()
    assert question is not None
    for name in question.devices:
        real.coordinator.receive_report(name, real.device(name).report(question.round_number, question.period))
    broadcast, _ = real.coordinator.open_round()
    real.close()
    with Coordinator(put_secret(shutil.copytree(tmp_path / "server", tmp_path / "again"), SECRET), plan) as again:
        assert again.open_round()[0] == broadcast
        assert again.standing.server.weights["popularity"].any()


def test_what_is_learnt_or_reported_every_round_is_not_filled() -> None:
    plan = with_popularity()
    server = Server(plan)
    with pytest.raises(ValueError, match="learnt"):
        server.fill({"items": server.weights["items"]})
    with pytest.raises(ValueError, match="shape"):
        server.fill({"popularity": np.zeros((1, 1), np.float32)})
    assert plan.reports is not None
    with pytest.raises(ValueError, match="once"):
        replace(plan, reports=replace(plan.reports, fresh=True))
