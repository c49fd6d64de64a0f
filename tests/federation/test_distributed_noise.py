"""A plan with distributed noise: simulated, run over secure sums, and what it promises."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.federation.secagg.rounds import FEDERATION
from tests.simulation.test_simulation import N_ITEMS, private_plan, simulated
from tests.wire.raising import raises
from veilrec.core.errors import BadInput
from veilrec.core.schema import RoundSpec
from veilrec.federation.facts import guarantee_of, terms_of, with_distributed_noise
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.events import GaussianEvent, repeated, training_event
from veilrec.privacy.mechanisms.distributed import DistributedNoise, DistributedNoiseSum
from veilrec.privacy.mechanisms.sums import NoNoise

SECRET = b"s" * 32


def shared_plan(least=6, silent=0.0, **other):
    return replace(with_distributed_noise(private_plan(), DistributedNoise(least, silent)), **other)


def test_plans_that_have_no_noise_to_share_are_refused():
    with pytest.raises(BadInput, match="puts no noise on a sum"):
        with_distributed_noise(replace(private_plan(), mechanism=NoNoise(private_plan().schema)), DistributedNoise(3))
    with pytest.raises(BadInput, match="weighted-mean, which needs numbers that have no noise"):
        with_distributed_noise(replace(private_plan(), aggregation="weighted-mean"), DistributedNoise(3))
    raises(BadInput, "38", with_distributed_noise, private_plan(), DistributedNoise(39))
    raises(BadInput, "not in shares", terms_of, private_plan(), RoundSpec(0), FEDERATION)


def _cohort(run, clients):
    from veilrec.client.local_training import Cohort

    private = {name: values[clients] for name, values in run.private.items()}
    return Cohort(clients, run.data.take(clients), private, run.seeds.draws, run._hand.local_noise(0, 0))


def test_the_fast_noise_of_a_simulation_is_that_of_all_shares_that_came(tiny_train):
    """Sums of 126 numbers in 5 rounds: the spread is within 5 standard deviations of a spread, 1 in 2 million."""
    plan = shared_plan(least=5)
    mechanism, noise = plan.mechanism, []
    for secret in (None, SECRET):
        run = simulated(plan, tiny_train, secret)
        for number in range(5):
            clients = run.sampler.draw(number)
            fixed_point = plan.fixed_point(RoundSpec(number))
            sigma = mechanism.scales(fixed_point, RoundSpec(number))["items"].units * fixed_point.steps["items"]
            before = {name: value.copy() for name, value in run.server.weights.items()}
            bounded = mechanism.bound(
                replace(plan.trainer.learn(_cohort(run, clients), before, RoundSpec(number)).updates, examples=None),
                RoundSpec(number),
            )
            exact = fixed_point.integers(bounded).sum(axis=0)[fixed_point.places["items"]] * fixed_point.steps["items"]
            run.step(number)
            moved = run.server.weights["items"] - before["items"]
            noise.append((moved.reshape(-1) - exact) / (sigma * math.sqrt(len(clients))))
    for part in (np.concatenate(noise[:5]), np.concatenate(noise[5:])):
        assert abs(part.std() - 1.0) < 5.0 / math.sqrt(2 * part.size)


def test_a_round_with_too_few_is_void_in_a_simulation_too(tiny_train):
    plan = shared_plan(least=38)
    for secret in (None, SECRET):
        run = simulated(plan, tiny_train, secret)
        before = run.server.weights["items"].copy()
        report = run.step(0)
        assert report.clients < 38
        assert report.up_bytes == report.clients * 4 * (2 * N_ITEMS + 6)  # as masked vectors
        np.testing.assert_array_equal(run.server.weights["items"], before)
        run.step(1)


def test_the_promise_counts_every_round_and_says_what_breaks_it():
    plan, before = shared_plan(least=8, silent=0.25), private_plan()
    assert isinstance(plan.mechanism, DistributedNoiseSum)
    assert plan.mechanism.inner.sigma == before.mechanism.sigma
    assert (plan.schema, plan.rounds, plan.cohort) == (before.schema, before.rounds, before.cohort)
    terms, fixed_point = terms_of(plan, RoundSpec(3), FEDERATION), plan.fixed_point(RoundSpec(3))
    assert (terms.round_number, terms.length, terms.least) == (3, fixed_point.size, 8)
    assert terms.words.itemsize * 8 == fixed_point.ring == 32
    guarantee = guarantee_of(plan, 1e-6)
    alone = epsilon_of(repeated(GaussianEvent(1.0), plan.rounds), 1e-6)
    assert alone <= guarantee.epsilon <= alone * 1.001
    assert guarantee.epsilon > epsilon_of(training_event(private_plan()), 1e-6)  # which counts on secret cohorts
    assert (guarantee.trust, guarantee.scope, guarantee.basis) == ("server sees only noisy sums", "whole run", "proven")
    said = " ".join(guarantee.caveats)
    for words in (
        "at most 2 of any 8 clients",
        "one of them has to refuse",
        "nothing is won by sampling",
        "not that they",
    ):
        assert words in said
    fewer = guarantee_of(replace(plan, max_participations=2), 1e-6)
    assert fewer.epsilon < guarantee.epsilon
