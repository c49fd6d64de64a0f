"""Plans with distributed noise: what they promise, and that a simulation is what their clients' shares sum to."""

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from tests.federation.secagg.rounds import FEDERATION
from tests.simulation.test_simulation import N_ITEMS, private_plan, simulated
from tests.wire.raising import raises
from veilrec.audit.method import small_problem
from veilrec.core.errors import BadInput
from veilrec.core.schema import RoundSpec
from veilrec.federation.facts import spending_of, terms_of
from veilrec.methods.base import configure, promised
from veilrec.methods.private import PrivacySettings, clients_with_data, tree_sum
from veilrec.methods.registry import get
from veilrec.privacy.accounting import delta_of, epsilon_of
from veilrec.privacy.disclosure import disclosure_of
from veilrec.privacy.events import ComposedEvent, GaussianEvent, SampledEvent, training_event
from veilrec.privacy.mechanisms.distributed import DistributedNoiseSum
from veilrec.privacy.mechanisms.shares import DistributedNoise
from veilrec.privacy.randomness import noise_of_client, noise_of_report, share_of_comparison, share_of_report
from veilrec.server.round_specs import CohortSampler, CohortSettings
from veilrec.simulation.simulation import Seeds, Simulation

SECRET = b"s" * 32
DISTRIBUTED = ("privacy.noise=distributed", "privacy.silent=0.1", "privacy.lost=0.2")
PROVEN = (
    "dp-fedmf",
    "dp-fedmf-svd",
    "dp-fedmf-topk",
    "dp-fedncf",
    "dp-fedncf-dgc",
    "private-popularity",
    "popularity-head",
    "priv-fedmf-sub",
    "priv-fedncf-sub",
    "priv-fedncf-sub-compress",
    "dp-privrec",
    "private-gram",
    "dpals",
    "dpals-features",
    "veil",
    "veil on news",
    "fednewsrec",
    "fednewsrec-head",
    "privaterec",
    "dp-fedrec",
)


def planned(name, *settings, users=60, rounds=3):
    """A method, its configuration, its problem and its plan."""
    name, _, news = name.partition(" on ")
    method = get(name)
    config, _ = configure(method, preset="tuned", dataset="", settings=settings)
    problem = small_problem(method, users, rounds, "synthetic-news" if news else None)
    return method, config, problem, cast(Any, method.plan)(config, problem)


def shared_plan(clients=6, silent=0.0, lost=0.0, **other):
    inner = private_plan().mechanism
    mechanism = DistributedNoiseSum(inner, DistributedNoise(clients, silent, lost))
    everybody = CohortSettings(size=20, sampling="poisson")
    return replace(private_plan(), **{"mechanism": mechanism, "cohort": everybody} | other)


@pytest.mark.parametrize("name", PROVEN)
@pytest.mark.parametrize("size", ["0", "15"])
@pytest.mark.usefixtures("synthetic_sentences")
def test_every_proven_method_keeps_the_asked_epsilon_with_noise_of_its_clients_alone(name, size):
    method, config, problem, plan = planned(name, f"cohort.size={size}", *DISTRIBUTED)
    guarantee = promised(method, config, problem)
    carried = plan.mechanism.distributed_noise
    assert guarantee.trust == plan.mechanism.trust == "server sees only noisy sums"
    in_round = int(size) or clients_of(method, config, problem)
    assert (carried.clients, carried.silent, carried.lost) == (in_round, 0.1, 0.2)
    spent = delta_of(training_event(plan), guarantee.epsilon)
    assert spent <= guarantee.delta
    assert epsilon_of(training_event(plan), guarantee.delta) > 0.995 * guarantee.epsilon
    assert all(isinstance(event, GaussianEvent) for event, _ in plan.mechanism.events(plan.rounds))  # no chance
    for part in (plan.reports, plan.model_selection):
        assert part is None or part.mechanism.trust == "server sees only noisy sums"
    if plan.reports is not None:
        assert plan.reports.mechanism.shares.carried.clients == clients_with_data(problem)
    if plan.model_selection is not None:
        validators = len(plan.model_selection.validator.clients(method.clients(config, problem)))
        assert plan.model_selection.mechanism.shares.carried.clients == validators
    assert plan.cohort.sampling == ("cyclic" if int(size) else plan.cohort.sampling)
    if int(size):
        everybody = np.arange(clients_of(method, config, problem))
        sampler = CohortSampler(plan.cohort, everybody, 1)
        drawn = np.concatenate([sampler.draw(number) for number in range(plan.rounds)])
        assert np.bincount(drawn).max() == plan.participations < plan.rounds
    budget, _ = spending_of(plan)
    assert budget.trust == "server sees only noisy sums"


def clients_of(method, config, problem):
    return int((method.clients(config, problem).rows.lengths() > 0).sum())


def test_what_clients_and_servers_do_follows_from_the_plan_in_the_statement():
    *_, plan = planned("priv-fedmf-sub", *DISTRIBUTED)
    told = disclosure_of(plan)
    said = " ".join((*told.leaves, *told.server, *told.published))
    assert "exact" not in said and "without noise" not in said
    assert said.count("adds its part of the noise") == 2
    *_, plan = planned("dp-fedrec", "cohort.size=0", *DISTRIBUTED)
    told = disclosure_of(plan)
    assert "exact" not in " ".join(told.server) and "without noise" not in " ".join(told.leaves)
    assert "The sum of all gains, with the noise that clients have added." in told.server


REFUSED = (
    ("dp-fedmf", ("privacy.silent=0.1",), "the server adds it"),
    ("dp-fedmf", ("privacy.lost=0.1",), "the server adds it"),
    ("fednewsrec", ("privacy.lost=0.1",), "the server adds it"),
    ("dp-fedmf", ("privacy.noise=distributed", "privacy.silent=0.5", "privacy.lost=0.5"), "together"),
    ("dp-fedmf", ("privacy.noise=distributed", "calibration=as-published"), "no proven noise on sums"),
    ("fednewsrec", ("privacy.noise=distributed", "calibration=none"), "no proven noise on sums"),
    ("privaterec", ("privacy.noise=distributed", "training=reports"), "it trusts: nobody"),
    ("dp-fedmf", ("privacy.noise=nowhere",), "privacy.noise"),
    ("fedmf", ("privacy.noise=distributed",), "adds no noise"),
)


def test_settings_that_ask_for_shares_of_no_noise_are_refused():
    for name, settings, words in REFUSED:
        raises(BadInput, words, configure, get(name), preset="tuned", dataset="", settings=settings)
    raises(BadInput, "not the clients'", terms_of, private_plan(), RoundSpec(0), FEDERATION)
    privacy = PrivacySettings(noise="distributed")
    cyclic = CohortSettings(size=10, sampling="cyclic")
    with pytest.raises(BadInput, match="only those know who drew it"):
        tree_sum(privacy, cyclic, private_plan().schema, rounds=4, clients=40)


def test_margins_cost_what_they_add_to_the_shares():
    def noise(*settings):
        mechanism = planned("dp-fedmf", "cohort.size=0", "privacy.noise=distributed", *settings)[-1].mechanism
        return mechanism.sigma, mechanism.share_sigma("items", RoundSpec(0))

    alone, margins = noise(), noise("privacy.silent=0.3", "privacy.lost=0.2")
    central = planned("dp-fedmf", "cohort.size=0")[-1].mechanism.sigma
    assert alone[0] == pytest.approx(central, rel=1e-6)  # no price but for the errors of more draws
    assert margins[0] == pytest.approx(alone[0] * math.sqrt(2.0))
    assert margins[1] == pytest.approx(alone[1] * math.sqrt(2.0))


def test_nothing_is_won_by_sampling_and_a_cyclic_order_pays_for_its_own_rounds():
    def noise(*settings):
        return planned("dp-fedmf", *settings, users=200, rounds=10)[-1].mechanism

    everybody, cyclic = (noise(f"cohort.size={size}", "privacy.noise=distributed") for size in (0, 50))
    assert cyclic.taking_part.rounds == 3  # of ten rounds of 50 of 200
    assert cyclic.inner.sigma == pytest.approx(everybody.inner.sigma * math.sqrt(3 / 10), rel=1e-3)
    assert isinstance(noise("cohort.size=50").event(), SampledEvent)
    assert isinstance(cyclic.event(), GaussianEvent)


def run_of(plan, data, histories, secret, *, people=None):
    run = Simulation(plan, data, histories, Seeds.all_from(1, secret), people=people)
    for number in range(plan.rounds):
        run.step(number)
    return run


@pytest.mark.parametrize("name", ["dp-privrec", "priv-fedmf-sub"])
def test_a_secret_simulation_is_what_the_shares_of_its_clients_sum_to_bit_for_bit(name):
    """By hand: every client's own report and update, under nobody's eyes but here."""
    method, config, problem, plan = planned(name, "cohort.size=20", *DISTRIBUTED, users=50)
    data = method.clients(config, problem)
    run = Simulation(plan, data, problem.train, Seeds.all_from(1, SECRET))
    reports = plan.reports.mechanism
    counts = np.zeros(reports.masked_length, np.int64)
    for client in range(len(data.rows)):
        own = np.zeros(reports.length, np.bool_)
        own[data.rows.row(client)] = True
        told = reports.report(own, noise_of_report(SECRET, 0, client)).value
        counts += reports.masked(told, share_of_report(SECRET, 0, client))
    for number in range(2):
        clients, before = run.sampler.draw(number), {n: w.copy() for n, w in run.server.weights.items()}
        learned = {}
        sound = DistributedNoiseSum.shared

        def shared(self, bounded, spec, fixed_point, sources, sound=sound, learned=learned):
            learned[spec.number] = (spec, fixed_point, bounded)
            return sound(self, bounded, spec, fixed_point, sources)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DistributedNoiseSum, "shared", shared)
            added = []
            opened = type(run.server).step
            patch.setattr(
                type(run.server),
                "step",
                lambda self, added=added, opened=opened: (
                    added.append({n: s.copy() for n, s in self._aggregator.sums.items()}),
                    opened(self),
                )[1],
            )
            run.step(number)
        if number == 0:
            np.testing.assert_array_equal(run._tally.counts, reports.opened(counts, len(data.rows), None))
        spec, fixed_point, bounded = learned[number]
        total = fixed_point.integers(bounded).sum(axis=0)
        for client in clients.tolist():
            total += plan.mechanism.noise(fixed_point, spec, noise_of_client(SECRET, number, client))
        for tensor, place in fixed_point.places.items():
            np.testing.assert_array_equal(added[0][tensor].ravel(), fixed_point.numbers(total[place], tensor))
        assert any((run.server.weights[n] != w).any() for n, w in before.items())


def test_gains_of_a_secret_simulation_are_the_sum_of_the_shares_of_its_validation_clients():
    method, config, problem, plan = planned("fednewsrec", "cohort.size=0", *DISTRIBUTED, users=60, rounds=1)
    data = method.clients(config, problem)
    run = run_of(plan, data, problem.train, SECRET)
    selection = plan.model_selection
    validators = selection.validator.clients(data)
    gains = selection.validator.gains(data.take(validators), run.start, run.server_state.weights)
    total = sum(
        selection.mechanism.masked(gain, share_of_comparison(SECRET, client))
        for gain, client in zip(gains, validators.tolist(), strict=True)
    )
    mean = selection.mechanism.opened(total, len(validators), None)[0] / selection.people
    assert run.selection.gain == mean
    assert run.selection.gain != run_of(plan, data, problem.train, b"t" * 32).selection.gain
    noise = mean - gains.clip(-0.1, 0.1).sum() / selection.people
    assert abs(noise) < 8.0 * selection.mechanism.sigma / selection.people


def _cohort(run, clients):
    from veilrec.client.local_training import Cohort

    private = {name: values[clients] for name, values in run.private.items()}
    return Cohort(clients, run.data.take(clients), private, run.seeds.draws, run._hand.local_noise(0, 0))


def test_the_fast_noise_of_a_simulation_is_that_of_all_shares_that_came(tiny_train):
    """Sums of 126 numbers in 5 rounds: the spread is within 5 standard deviations of a spread, 1 in 2 million."""
    plan = shared_plan(clients=5)
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
    plan = shared_plan(clients=38)
    for secret in (None, SECRET):
        run = simulated(plan, tiny_train, secret)
        before = run.server.weights["items"].copy()
        report = run.step(0)
        assert report.clients < 38
        assert report.up_bytes == report.clients * 4 * (2 * N_ITEMS + 6)  # as masked vectors
        np.testing.assert_array_equal(run.server.weights["items"], before)
        run.step(1)


@pytest.mark.parametrize("secret", [None, SECRET])
def test_drop_outs_within_the_margin_leave_a_round_whole_and_more_void_it(secret):
    whole = ("cohort.size=0", "cohort.sampling=fixed", "privacy.noise=distributed", "cohort.drop_out=0.3")
    for lost, void in ((0.6, False), (0.1, True)):
        method, config, problem, plan = planned("dp-fedmf", *whole, f"privacy.lost={lost}", users=60, rounds=1)
        run = Simulation(plan, method.clients(config, problem), problem.train, Seeds.all_from(1, secret))
        before = run.server.weights["items"].copy()
        run.step(0)
        assert np.array_equal(run.server.weights["items"], before) == void


@pytest.mark.parametrize("secret", [None, SECRET])
def test_places_that_nobody_has_send_their_share_of_the_noise(secret):
    """With half of the people nominal, sums and reports are opened, and their noise is that of all places."""
    method, config, problem, _ = planned("priv-fedmf-sub", "cohort.size=0", "privacy.noise=distributed", users=40)
    people = 2 * clients_with_data(problem)
    problem = replace(problem, people=people)
    plan = cast(Any, method.plan)(config, problem)
    assert plan.mechanism.distributed_noise.clients == people
    assert plan.reports.mechanism.shares.carried.clients == people
    run = Simulation(plan, method.clients(config, problem), problem.train, Seeds.all_from(1, secret), people=people)
    before = run.server.weights["items"].copy()
    run.step(0)
    exact = plan.reports.mechanism.count(problem.train, np.arange(len(problem.train)), seed=1, period=0)
    if plan.reports.mechanism.max_items >= int(problem.train.lengths().max()):
        noise = run._tally.counts - exact
        assert abs(noise.std() / plan.reports.mechanism.sigma - 1.0) < 5.0 / math.sqrt(2 * noise.size)
    assert not np.array_equal(run.server.weights["items"], before)
    spread = (run.server.weights["items"] - before)[run.server_state.sent > 0].std()
    assert spread > 0.9 * plan.mechanism.sigma * plan.server.rate / people


def test_the_budget_of_a_client_pays_for_the_rounds_that_it_is_in():
    *_, cyclic = planned("dp-fedmf", "cohort.size=15", "privacy.noise=distributed", rounds=6)
    *_, everybody = planned("dp-fedmf", "cohort.size=0", "privacy.noise=distributed", rounds=6)
    assert cyclic.participations == 2
    one = ComposedEvent(((cyclic.mechanism.event(), 2),))
    assert epsilon_of(one, 1e-6) <= spending_of(cyclic)[0].epsilon
    assert spending_of(cyclic)[0].epsilon == pytest.approx(spending_of(everybody)[0].epsilon, rel=0.01)
    terms, fixed_point = terms_of(cyclic, RoundSpec(3), FEDERATION), cyclic.fixed_point(RoundSpec(3))
    assert (terms.round_number, terms.length, terms.least) == (3, fixed_point.size, 15)
