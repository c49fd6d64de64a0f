"""A plan with noise in shares: simulated, run over secure sums, and what it promises."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.federation.secagg.rounds import FEDERATION, Helped, registry
from tests.simulation.test_simulation import N_ITEMS, private_plan, simulated
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.core.plan import Plan
from veilrec.core.schema import RoundSpec
from veilrec.federation.facts import guarantee_of, terms_of, with_distributed_noise
from veilrec.federation.secagg.helpers import HelperSum, Proposal
from veilrec.privacy.accounting import epsilon_of
from veilrec.privacy.events import GaussianEvent, repeated, training_event
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum, NoiseShares
from veilrec.privacy.mechanisms.sums import NoNoise
from veilrec.privacy.randomness import noise_of_device
from veilrec.simulation.simulation import one_of

SECRET = b"s" * 32


def shared_plan(least: int = 6, silent: float = 0.0, **other) -> Plan:
    return replace(with_distributed_noise(private_plan(), NoiseShares(least, silent)), **other)


def test_the_plan_is_the_same_but_for_who_adds_the_noise() -> None:
    plan, before = shared_plan(), private_plan()
    assert isinstance(plan.mechanism, DistributedNoiseSum)
    assert plan.mechanism.inner.sigma == before.mechanism.sigma
    assert (plan.schema, plan.rounds, plan.cohort) == (before.schema, before.rounds, before.cohort)


def test_plans_that_have_no_noise_to_share_are_refused() -> None:
    with pytest.raises(BadInput, match="puts no noise on a sum"):
        with_distributed_noise(replace(private_plan(), mechanism=NoNoise(private_plan().schema)), NoiseShares(3))
    with pytest.raises(BadInput, match="weighted-mean, which needs numbers that have no noise"):
        with_distributed_noise(replace(private_plan(), aggregation="weighted-mean"), NoiseShares(3))
    with pytest.raises(BadInput, match="38"):
        with_distributed_noise(private_plan(), NoiseShares(39))
    with pytest.raises(BadInput, match="not in shares"):
        terms_of(private_plan(), RoundSpec(0), FEDERATION)


def test_a_simulation_with_a_secret_and_devices_under_masks_end_in_the_same_model(tiny_train: Csr, tmp_path) -> None:
    """Whole rounds with helpers: learn, bound, share the noise, mask, add up, unmask, step; bit for bit."""
    plan = shared_plan(least=4, silent=0.25)
    expected, real = (simulated(plan, tiny_train, SECRET) for _ in range(2))
    helped = Helped(tmp_path, devices=40, least=4)
    for number in range(2):
        expected.step(number)
        devices = real.sampler.draw(number)
        real._open_round(number, devices)
        server, about = real.server, real.server.about
        terms = terms_of(plan, about, FEDERATION)
        proposal = Proposal(terms, helped.proposal.helpers)
        secure = HelperSum(proposal, registry(40))
        invitation = secure.invite([helper.open(proposal.encode()) for helper in helped.made])
        learned = plan.learner.learn(
            _cohort(real, devices), {name: value.copy() for name, value in server.weights.items()}, about
        )
        lattice = plan.lattice(about)
        for place, device in enumerate(devices.tolist()):
            noise = noise_of_device(SECRET, number, device)
            own = replace(one_of(learned.uploads, place), examples=None)
            released = plan.mechanism.share(own, about, lattice, noise)
            assert released.event == GaussianEvent(1.0)
            secure.receive(helped.device(device).upload(invitation, released.value))
        for helper in helped.made:
            secure.receive_answer(helper.answer(secure.request()))
        server.add_integers(secure.finish(), devices=len(devices))
        real.standing.step()
        for name, weights in expected.server.weights.items():
            np.testing.assert_array_equal(server.weights[name], weights)
    helped.close()


def _cohort(run, devices):
    from veilrec.client.local_training import Cohort

    private = {name: values[devices] for name, values in run.private.items()}
    return Cohort(devices, run.data.take(devices), private, run.seeds.draws, run._hand.local_noise(0, 0))


def test_the_fast_noise_of_a_simulation_is_that_of_all_shares_that_came(tiny_train: Csr) -> None:
    """Sums of 126 numbers in 5 rounds: the spread is within 5 standard deviations of a spread, 1 in 2 million."""
    plan = shared_plan(least=5)
    mechanism, noise = plan.mechanism, []
    for secret in (None, SECRET):
        run = simulated(plan, tiny_train, secret)
        for number in range(5):
            devices = run.sampler.draw(number)
            lattice = plan.lattice(RoundSpec(number))
            sigma = mechanism.scales(lattice, RoundSpec(number))["items"].units * lattice.steps["items"]
            before = {name: value.copy() for name, value in run.server.weights.items()}
            bounded = mechanism.bound(
                replace(plan.learner.learn(_cohort(run, devices), before, RoundSpec(number)).uploads, examples=None),
                RoundSpec(number),
            )
            exact = lattice.integers(bounded).sum(axis=0)[lattice.places["items"]] * lattice.steps["items"]
            run.step(number)
            moved = run.server.weights["items"] - before["items"]
            noise.append((moved.reshape(-1) - exact) / (sigma * math.sqrt(len(devices))))
    for part in (np.concatenate(noise[:5]), np.concatenate(noise[5:])):
        assert abs(part.std() - 1.0) < 5.0 / math.sqrt(2 * part.size)


def test_a_round_with_too_few_is_void_in_a_simulation_too(tiny_train: Csr) -> None:
    plan = shared_plan(least=38)
    for secret in (None, SECRET):
        run = simulated(plan, tiny_train, secret)
        before = run.server.weights["items"].copy()
        report = run.step(0)
        assert report.devices < 38
        np.testing.assert_array_equal(run.server.weights["items"], before)
        run.step(1)


def test_bytes_are_those_of_masked_vectors(tiny_train: Csr) -> None:
    plan = shared_plan(least=5)
    run = simulated(plan, tiny_train, SECRET)
    report = run.step(0)
    assert plan.lattice(RoundSpec(0)).ring == 32
    assert report.up_bytes == report.devices * 4 * (2 * N_ITEMS + 6)


def test_the_promise_counts_every_round_and_says_what_breaks_it() -> None:
    plan = shared_plan(least=8, silent=0.25)
    guarantee = guarantee_of(plan, 1e-6)
    alone = epsilon_of(repeated(GaussianEvent(1.0), plan.rounds), 1e-6)
    assert alone <= guarantee.epsilon <= alone * 1.001
    assert guarantee.epsilon > epsilon_of(training_event(private_plan()), 1e-6)  # which counts on secret cohorts
    assert (guarantee.trust, guarantee.scope, guarantee.basis) == ("server sees only noisy sums", "whole run", "proven")
    said = " ".join(guarantee.caveats)
    for words in (
        "at most 2 of any 8 devices",
        "one of them has to refuse",
        "nothing is won by sampling",
        "not that they",
    ):
        assert words in said
    fewer = guarantee_of(replace(plan, most_turns=2), 1e-6)
    assert fewer.epsilon < guarantee.epsilon


def test_the_terms_of_a_round_fit_its_sums() -> None:
    plan = shared_plan(least=8)
    terms, lattice = terms_of(plan, RoundSpec(3), FEDERATION), plan.lattice(RoundSpec(3))
    assert (terms.round_number, terms.length, terms.least) == (3, lattice.size, 8)
    assert terms.words.itemsize * 8 == lattice.ring
