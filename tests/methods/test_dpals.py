"""Private alternating least squares: what leaves a client, what a run spends, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from tests.methods.tastes import after_a_round, small_problem
from veilrec.audit.contract_subject import histories_of
from veilrec.client.closed_form import ALS_GRAM, ALS_POPULARITY, FEATURES, ITEMS, start_sums
from veilrec.client.fcf import FcfSettings
from veilrec.client.local_training import Cohort, OwnItems
from veilrec.core.schema import RoundSpec
from veilrec.methods.base import configure
from veilrec.methods.references import dpals
from veilrec.methods.references.dpals import DPALS, plan
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.events import training_event
from veilrec.privacy.mechanisms.clipping import update_norms
from veilrec.simulation.simulation import Seeds, Simulation

TINY = ("local.dim=4",)


def configured(*settings):
    return configure(DPALS, preset="tuned", dataset="", settings=(*TINY, *settings))[0]


@pytest.mark.parametrize("gramians", [0.0, 0.4])
def test_a_message_is_as_long_as_the_clip_norm(gramians):
    made = plan(configured("privacy.clip_norm=3", f"gramians={gramians}"), small_problem())
    people = OwnItems(histories_of([[0, 1, 5], [7], [], [3, 3, 9]]))
    updates = made.trainer.learn(Cohort(np.arange(4), people, {}, 0), made.start, RoundSpec(0)).updates
    assert update_norms(updates) == pytest.approx([3.0, 3.0, 0.0, 3.0], rel=1e-5)
    assert updates.tables[ITEMS].index.tolist() == [0, 1, 5, 7, 3, 9]
    bounded = made.mechanism.bound(updates, RoundSpec(0))
    assert np.allclose(bounded.tables[ITEMS].values, updates.tables[ITEMS].values, rtol=1e-5)  # nothing is cut off


def test_the_start_solves_to_random_vectors():
    trainer = plan(configured("start=0.25"), small_problem()).trainer
    start = start_sums(4000, trainer.sums, 0.25, 3)
    vectors = trainer.sums.solve(np.zeros((4000, 1), np.float32), start[ALS_GRAM], start[ITEMS])
    assert vectors.std() == pytest.approx(0.25, rel=0.04)  # four standard errors of 16,000 numbers and more


def test_a_round_takes_the_place_of_the_one_before():
    problem = small_problem()
    run = Simulation(plan(DPALS.config(), problem), OwnItems(problem.train), problem.train, Seeds.all_from(1))
    start = run.server.weights[ITEMS].copy()
    run.step(0)
    after = run.server.weights[ITEMS]
    assert abs(np.corrcoef(start[:, 0], after[:, 0])[0, 1]) < 0.5 and run.server.weights[ALS_POPULARITY].any()


def test_matrices_of_items_can_be_asked_for():
    problem = small_problem()
    made = plan(configured("gramians=0.3", "privacy.epsilon=100"), problem)
    assert made.start[ITEMS].shape == (problem.n_items, 4 + 10)
    run = after_a_round(made, problem)
    assert np.isfinite(run.model().score_all(np.arange(5))).all()


def test_clients_need_no_more_than_the_settings():
    assert plan(configured(), small_problem()).trainer.local == FcfSettings(4, 1.0, 1.0)


def test_features_are_public_and_sent_with_the_model():
    problem = small_problem()
    made = dpals.dpals_features_plan(dpals.DPALS_FEATURES.config(), problem)
    assert made.start[FEATURES].shape == (problem.n_items, 15)  # a kind of item for each of 15 tastes
    assert np.abs(made.start[FEATURES].mean(axis=0)).max() < 1e-6
    assert FEATURES not in {tensor.name for tensor in made.schema.learnt.tensors}
    assert epsilon_of(training_event(made), 1e-6) <= 8.0


def test_without_features_popularity_is_all_that_is_known():
    problem = replace(small_problem(), features=None)
    made = dpals.dpals_features_plan(dpals.DPALS_FEATURES.config(), problem)
    assert not made.start[FEATURES].any()
    run = after_a_round(made, problem)
    assert np.isfinite(run.model().score_all(np.arange(5))).all()
