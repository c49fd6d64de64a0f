"""The private Gram matrix: what leaves a device, what noise leaves of it, and lists for those with little history."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.methods.tastes import small_problem
from veilrec.audit.contract_subject import histories_of, measured
from veilrec.client.closed_form import GRAM, POPULARITY, GramLocalTrainer
from veilrec.client.local_training import Cohort, OwnItems
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.schema import RoundSpec
from veilrec.methods.base import Problem, configure
from veilrec.methods.private import PrivacySettings
from veilrec.methods.references.item_item import PRIVATE_GRAM, items_that_pay, plan, share_of_votes
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.events import training_event
from veilrec.privacy.mechanisms.clipping import upload_norms
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.saved import open_model
from veilrec.runs.training import train
from veilrec.simulation.simulation import Seeds, Simulation

PEOPLE = Csr(np.array([0, 4, 5, 5, 9]), np.array([0, 1, 2, 3, 0, 4, 4, 1, 4], np.int32))
MODEL = {POPULARITY: np.array([[9.0], [8], [7], [2], [6], [1]], np.float32), GRAM: np.zeros((5, 5), np.float32)}


def configured(*settings: str) -> object:
    return configure(PRIVATE_GRAM, preset="tuned", dataset="", settings=settings)[0]


def test_a_message_is_a_taste_times_itself_of_one_norm() -> None:
    uploads = (
        GramLocalTrainer(2.0, 1.0).learn(Cohort(np.arange(4), OwnItems(PEOPLE), {}, 0), MODEL, RoundSpec(0)).uploads
    )
    sent = uploads.factors[GRAM].product()
    assert upload_norms(uploads) == pytest.approx([2.0, 2.0, 0.0, 2.0], rel=1e-5)
    assert np.allclose(sent, sent.transpose(0, 2, 1))
    # By hand: the last one has items 1 and 4 (three times); item 5 is not among the five.
    p = np.array([9.0, 8, 7, 2, 6])
    z, c = np.array([0, 1, 0, 0, 1]) * p**-0.25, p**0.75 / np.linalg.norm(p**0.75)
    y = z - (z @ c) * c
    assert np.allclose(sent[3], 2.0 * np.outer(y, y) / (y @ y), atol=1e-6)
    assert abs(c @ sent[3] @ c) < 1e-6  # nothing of it is popularity


def test_somebody_without_popular_items_sends_nothing() -> None:
    alone = OwnItems(histories_of([[5]]))
    uploads = GramLocalTrainer(1.0, 1.0).learn(Cohort(np.arange(1), alone, {}, 0), MODEL, RoundSpec(0)).uploads
    assert not uploads.factors[GRAM].product().any()


def test_the_whole_run_spends_what_is_promised() -> None:
    problem = small_problem()
    for epsilon in (1.0, 8.0):
        made = plan(configured(f"privacy.epsilon={epsilon}"), problem)  # type: ignore[arg-type]
        assert 0.98 * epsilon < epsilon_of(training_event(made), 1e-6) <= epsilon


def test_settings_follow_from_people_and_epsilon() -> None:
    strict, loose = PrivacySettings(epsilon=2.0), PrivacySettings(epsilon=8.0)
    assert items_that_pay(strict, 4832, 3706) < items_that_pay(loose, 4832, 3706) < 1000
    assert items_that_pay(strict, 19328, 3706) == pytest.approx(2 * items_that_pay(strict, 4832, 3706), abs=1)
    assert items_that_pay(loose, 10**6, 50) == 50
    assert (share_of_votes(strict, 4832), share_of_votes(strict, 766), share_of_votes(strict, 10)) == (0.3, 0.5, 0.7)


def test_two_clip_norms_rank_alike() -> None:
    """Tastes are as long as the clip norm, and so is the noise: what is ranked by is the same."""
    problem = small_problem()
    scores = []
    for norm in (1.0, 4.0):
        made = plan(configured(f"privacy.clip_norm={norm}", "privacy.epsilon=100"), problem)  # type: ignore[arg-type]
        run = Simulation(made, OwnItems(problem.train), problem.train, Seeds.all_from(1))
        run.step(0)
        scores.append(run.model().score_all(np.arange(20)))
    assert np.allclose(*scores, rtol=1e-3, atol=1e-4 * np.abs(scores[0]).max())


def test_who_has_nothing_gets_what_is_popular() -> None:
    problem = small_problem()
    run = Simulation(plan(PRIVATE_GRAM.config(), problem), OwnItems(problem.train), problem.train, Seeds.all_from(1))
    run.step(0)
    nothing = run.model().fold_in(histories_of([[]])).score_all(np.zeros(1, np.int64))[0]
    assert np.array_equal(np.argsort(-nothing), np.argsort(-run.server.weights[POPULARITY][:, 0]))


def test_noise_that_drowns_everything_leaves_popularity() -> None:
    """At epsilon 0.01 an eigenvalue of noise passes the edge and its margin for a few seeds in a hundred."""
    problem = small_problem()
    made = plan(configured("privacy.epsilon=0.01"), problem)  # type: ignore[arg-type]
    run = Simulation(made, OwnItems(problem.train), problem.train, Seeds.all_from(1))
    run.step(0)
    model = run.model()
    assert model.tastes.directions.shape[1] == 0  # type: ignore[attr-defined]
    order = np.argsort(-run.server.weights[POPULARITY][:, 0])
    assert np.array_equal(np.argsort(-model.score_all(np.zeros(1, np.int64))[0]), order)


def test_it_finds_more_than_popularity() -> None:
    """Of 100 new made-up people, with hardly any noise."""
    assert measured("private-gram", "holdout-users")["hr@10"] > 1.3 * measured("popularity", "holdout-users")["hr@10"]


def test_a_message_counts_its_factors_and_not_their_product() -> None:
    problem = small_problem()
    made = plan(PRIVATE_GRAM.config(), problem)
    report = Simulation(made, OwnItems(problem.train), problem.train, Seeds.all_from(1)).step(0)
    size = made.start[GRAM].shape[0]
    each = (report.up_bytes - report.selection_bytes) / report.devices
    assert 4 * (2 * size + 1) <= each < 4 * (2 * size + 1) + 32


def test_a_run_is_opened_without_its_data(tmp_path: Path) -> None:
    data = "synthetic-ratings:users=120,items=150,seed=2"
    train(prepare(RunRequest("private-gram", data)), tmp_path / "run")
    opened = open_model(tmp_path / "run").for_anybody
    assert np.isfinite(opened.fold_in(histories_of([[], [3], [1, 2]])).score_all(np.arange(3))).all()


@pytest.mark.parametrize("setting", ["votes=0", "votes=1", "items=-1", "items=5000", "cohort.sampling=turns"])
def test_what_cannot_be_meant_is_refused(setting: str) -> None:
    with pytest.raises(BadInput):
        plan(configured(setting), Problem(PEOPLE, 6, 0))  # type: ignore[arg-type]


def test_as_many_numbers_as_there_are_users_say_nothing_of_anybody() -> None:
    """The ranker holds settings alone, the number of people among them, which is taken as public."""
    made = plan(PRIVATE_GRAM.config(), small_problem())
    assert all(math.isfinite(value) for value in made.ranker.settings().values())
