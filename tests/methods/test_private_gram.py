"""The private Gram matrix: what leaves a client, what noise leaves of it, and lists for those with little history."""

import numpy as np
import pytest

from tests.methods.tastes import after_a_round, small_problem
from veilrec.audit.contract_subject import histories_of
from veilrec.client.closed_form import GRAM, POPULARITY, GramLocalTrainer
from veilrec.client.local_training import Cohort, OwnItems
from veilrec.core.csr import Csr
from veilrec.core.schema import RoundSpec
from veilrec.methods.base import configure
from veilrec.methods.private import PrivacySettings
from veilrec.methods.references.item_item import PRIVATE_GRAM, items_that_pay, plan, share_of_votes
from veilrec.privacy.mechanisms.clipping import update_norms
from veilrec.simulation.simulation import Seeds, Simulation

PEOPLE = Csr(np.array([0, 4, 5, 5, 9]), np.array([0, 1, 2, 3, 0, 4, 4, 1, 4], np.int32))
MODEL = {POPULARITY: np.array([[9.0], [8], [7], [2], [6], [1]], np.float32), GRAM: np.zeros((5, 5), np.float32)}


def configured(*settings):
    return configure(PRIVATE_GRAM, preset="tuned", dataset="", settings=settings)[0]


def test_a_message_is_a_taste_times_itself_of_one_norm():
    everybody = Cohort(np.arange(4), OwnItems(PEOPLE), {}, 0)
    updates = GramLocalTrainer(2.0, 1.0).learn(everybody, MODEL, RoundSpec(0)).updates
    sent = updates.factors[GRAM].product()
    assert update_norms(updates) == pytest.approx([2.0, 2.0, 0.0, 2.0], rel=1e-5)
    assert np.allclose(sent, sent.transpose(0, 2, 1))
    # By hand: the last one has items 1 and 4 (three times); item 5 is not among the five.
    p = np.array([9.0, 8, 7, 2, 6])
    z, c = np.array([0, 1, 0, 0, 1]) * p**-0.25, p**0.75 / np.linalg.norm(p**0.75)
    y = z - (z @ c) * c
    assert np.allclose(sent[3], 2.0 * np.outer(y, y) / (y @ y), atol=1e-6)
    assert abs(c @ sent[3] @ c) < 1e-6  # nothing of it is popularity


def test_somebody_without_popular_items_sends_nothing():
    alone = OwnItems(histories_of([[5]]))
    updates = GramLocalTrainer(1.0, 1.0).learn(Cohort(np.arange(1), alone, {}, 0), MODEL, RoundSpec(0)).updates
    assert not updates.factors[GRAM].product().any()


def test_settings_follow_from_people_and_epsilon():
    strict, loose = PrivacySettings(epsilon=2.0), PrivacySettings(epsilon=8.0)
    assert items_that_pay(strict, 4832, 3706) < items_that_pay(loose, 4832, 3706) < 1000
    assert items_that_pay(strict, 19328, 3706) == pytest.approx(2 * items_that_pay(strict, 4832, 3706), abs=1)
    assert items_that_pay(loose, 10**6, 50) == 50
    assert (share_of_votes(strict, 4832), share_of_votes(strict, 766), share_of_votes(strict, 10)) == (0.3, 0.5, 0.7)


def test_two_clip_norms_rank_alike():
    """Tastes are as long as the clip norm, and so is the noise: what is ranked by is the same."""
    problem = small_problem()
    scores = []
    for norm in (1.0, 4.0):
        made = plan(configured(f"privacy.clip_norm={norm}", "privacy.epsilon=100"), problem)
        run = after_a_round(made, problem)
        scores.append(run.model().score_all(np.arange(20)))
    assert np.allclose(*scores, rtol=1e-3, atol=1e-4 * np.abs(scores[0]).max())


def test_who_has_nothing_gets_what_is_popular():
    problem = small_problem()
    run = after_a_round(plan(PRIVATE_GRAM.config(), problem), problem)
    nothing = run.model().fold_in(histories_of([[]])).score_all(np.zeros(1, np.int64))[0]
    assert np.array_equal(np.argsort(-nothing), np.argsort(-run.server.weights[POPULARITY][:, 0]))


def test_noise_that_drowns_everything_leaves_popularity():
    """At epsilon 0.01 an eigenvalue of noise passes the edge and its margin for a few seeds in a hundred."""
    problem = small_problem()
    made = plan(configured("privacy.epsilon=0.01"), problem)
    run = after_a_round(made, problem)
    model = run.model()
    assert model.tastes.directions.shape[1] == 0
    order = np.argsort(-run.server.weights[POPULARITY][:, 0])
    assert np.array_equal(np.argsort(-model.score_all(np.zeros(1, np.int64))[0]), order)


def test_a_message_counts_its_factors_and_not_their_product():
    problem = small_problem()
    made = plan(PRIVATE_GRAM.config(), problem)
    report = Simulation(made, OwnItems(problem.train), problem.train, Seeds.all_from(1)).step(0)
    size = made.start[GRAM].shape[0]
    each = (report.up_bytes - report.selection_bytes) / report.clients
    assert 4 * (2 * size + 1) <= each < 4 * (2 * size + 1) + 32
