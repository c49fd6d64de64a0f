"""Popularity with noise: what leaves a client, what is released, and that there is one code path for both names."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.methods.tastes import small_problem
from veilrec.audit.contract_subject import measured
from veilrec.client.local_training import ITEMS, Cohort, OwnItems, VoteLocalTrainer, start_weights
from veilrec.core.csr import Csr
from veilrec.core.schema import RoundSpec
from veilrec.methods.base import Problem, configure
from veilrec.methods.references.popularity import METHOD, PrivatePopularityConfig, plan
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.accounting.gaussian import mu_for
from veilrec.privacy.events import training_event
from veilrec.privacy.mechanisms.clipping import update_norms
from veilrec.runs.request import RunRequest, as_meant, default_out, prepare
from veilrec.runs.training import train
from veilrec.simulation.simulation import Seeds, Simulation

DATA = "synthetic-ratings:users=120,items=150,seed=2"
SECRET = b"a secret of thirty-two bytes ...."
PEOPLE = Csr(np.array([0, 4, 5, 5, 9]), np.array([0, 1, 2, 3, 0, 4, 4, 1, 4], np.int32))


def votes_of(rows):
    cohort = Cohort(np.arange(len(rows)), OwnItems(rows), {}, 0)
    updates = VoteLocalTrainer().learn(cohort, start_weights(6), RoundSpec(0)).updates
    sent = updates.tables[ITEMS]
    return sent.offsets, sent.index, sent.values[:, 0]


def test_a_client_votes_once_for_each_of_its_items():
    offsets, items, values = votes_of(PEOPLE)
    assert offsets.tolist() == [0, 4, 5, 5, 7]  # the last one has an item three times
    assert items.tolist() == [0, 1, 2, 3, 0, 1, 4] and (values == 1.0).all()


@pytest.mark.parametrize("clip_norm", [1.0, 1.5, 10.0])
def test_all_votes_of_a_client_are_cut_to_one_norm(clip_norm):
    problem = small_problem()
    config, _ = configure(METHOD, preset="tuned", dataset="", settings=[f"privacy.clip_norm={clip_norm}"])
    made = plan(config, problem)
    cohort = Cohort(np.arange(60), OwnItems(problem.train), {}, 0)
    updates = made.trainer.learn(cohort, made.start, RoundSpec(0)).updates
    bounded = made.mechanism.bound(updates, RoundSpec(0))
    lengths = problem.train.lengths()
    assert update_norms(bounded) == pytest.approx(np.minimum(np.sqrt(lengths), clip_norm), rel=1e-5)
    assert update_norms(bounded).max() <= clip_norm


def test_the_noise_is_what_one_release_needs():
    """Add-remove, one release: sigma is the clip norm over mu, and a little for the lattice."""
    made = plan(PrivatePopularityConfig(), Problem(small_problem().train, 300, 3, rounds=1))
    sigma = made.mechanism.facts()["sigma"]
    assert sigma == pytest.approx(1.0 / mu_for(1.0, 1e-6), rel=1e-3) and sigma >= 1.0 / mu_for(1.0, 1e-6)
    assert epsilon_of(training_event(made), 1e-6) == pytest.approx(1.0, rel=1e-6)


def test_the_model_is_the_sum_of_cut_votes_and_the_noise():
    """Without the noise, whose spread is checked to four standard errors (1 seed in 15,000 fails), votes are left."""
    problem = Problem(small_problem().train, 300, 3, rounds=1)
    made = plan(PrivatePopularityConfig(), problem)
    lengths = problem.train.lengths()
    weights = np.repeat(1.0 / np.sqrt(np.maximum(lengths, 1)), lengths)
    votes = np.bincount(problem.train.items, weights=weights, minlength=300)
    run = Simulation(made, OwnItems(problem.train), problem.train, Seeds.all_from(5, SECRET))
    run.step(0)
    noise = run.server.weights[ITEMS][:, 0] - votes
    sigma = made.mechanism.facts()["sigma"]
    assert np.std(noise) == pytest.approx(sigma, rel=4.0 / math.sqrt(2 * 300))
    assert run.model().score_all(np.arange(2)).shape == (2, 300)


def test_with_little_noise_it_ranks_like_popularity():
    near = measured("private-popularity", "loo-99")["ndcg@10"]
    assert near > 0.8 * measured("popularity", "loo-99")["ndcg@10"]


def test_popularity_with_a_promise_is_private_popularity(tmp_path):
    settings = ("privacy.epsilon=0.5",)
    asked, named = (RunRequest(name, DATA, seed=3, settings=settings) for name in ("popularity", "private-popularity"))
    assert as_meant(asked) == named and default_out(asked) == default_out(named)
    assert as_meant(replace(asked, settings=())).method == "popularity"
    prepared = prepare(asked)
    assert any("private-popularity" in note for note in prepared.notes)
    results = [train(prepare(request), tmp_path / request.method) for request in (asked, named)]
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"]
    assert (results[0]["method"], results[0]["guarantee"]["epsilon"]) == ("private-popularity", 0.5)
    assert not any("no better than popularity" in caveat for caveat in results[0]["guarantee"]["caveats"])
    resumed = train(prepare(asked), tmp_path / "popularity", resume=True)
    assert resumed["weights_sha256"] == results[0]["weights_sha256"]
