"""The server: its rounds, the tensors that reports fill, and the bound of the next round."""

import math
import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.audit.bounded_plans import ITEMS, adaptive_plan, data, people, plain_plan
from tests.methods.tastes import build, same, small_problem
from tests.wire.raising import raises
from veilrec.client import local_training
from veilrec.core.errors import BadInput, VeilrecError
from veilrec.core.plan import Plan, ReportSpec
from veilrec.core.schema import BOUND, ClientUpdates, RoundSpec, Rows, Schema, Tensor, with_bound
from veilrec.methods.private import PrivacySettings, noisy_sum, private_votes, with_learnt_bound
from veilrec.privacy.accounting import Rounds, epsilon_of
from veilrec.privacy.events import training_event
from veilrec.privacy.mechanisms.clipping import BadUpdate
from veilrec.privacy.mechanisms.reports import PlainVotes
from veilrec.privacy.mechanisms.schedules import AdaptiveSum
from veilrec.privacy.mechanisms.sums import CohortSum, NoNoise
from veilrec.privacy.randomness import SeededSource
from veilrec.server.aggregation import ServerRate
from veilrec.server.coordinator import Coordinator
from veilrec.server.round_specs import CohortSettings, LearntBound, PopularityTensor, SeededParts
from veilrec.server.server import GeometricClipping, PublishedClipping, Server
from veilrec.simulation.real_clients import SECRET, RealRun, put_secret
from veilrec.simulation.simulation import Seeds, Simulation
from veilrec.wire import messages
from veilrec.wire.messages import BadMessage

SCHEMA = Schema((Tensor("items", (6, 2), True), Tensor("bias", (3,), False)))


def plan_of(aggregation="mean", rate=None, **other):
    return Plan(
        schema=SCHEMA,
        start={"items": np.arange(12, dtype=np.float32).reshape(6, 2), "bias": np.zeros(3, np.float32)},
        trainer=None,
        ranker=None,
        cohort=CohortSettings(size=2),
        rounds=9,
        aggregation=aggregation,
        server=rate or ServerRate(),
        **({"mechanism": NoNoise(SCHEMA)} | other),
    )


def make_server(*arguments, **other):
    return Server(plan_of(*arguments, **other))


def protected():
    everybody = Rounds(rounds=1, population=2, cohort=2)
    mechanism = CohortSum(schema=SCHEMA, clip_norm=20.0, noise_multiplier=1.0, taking_part=everybody, delta=1e-6)
    return make_server("sum", mechanism=mechanism)


def message(round_number, row, value):
    rows = Rows(np.array([0, 1]), np.array([row], np.int32), np.full((1, 2), value, np.float32))
    dense = {"bias": np.full((1, 3), value, np.float32)}
    return messages.encode_update(ClientUpdates(round_number, 1, {"items": rows}, dense), SCHEMA)


def test_a_round_from_messages_to_the_next_model():
    plan = plan_of()
    server, expected = Server(plan), plan.start["items"].copy()
    model = messages.decode_update(messages.encode_update(server.broadcast(), SCHEMA), SCHEMA, 0)
    assert np.array_equal(model.tables["items"].values, expected)
    server.receive(message(0, 1, 4.0))
    server.receive(message(0, 5, 2.0))
    server.step()
    expected[1] += 2.0
    expected[5] += 1.0
    assert np.array_equal(server.weights["items"], expected)
    assert server.weights["bias"].tolist() == [3.0, 3.0, 3.0]
    assert not plan.start["bias"].any()  # what was given at the start is not changed
    assert server.spec.number == 1
    raises(BadMessage, "round 0, expected round 1", server.receive, message(0, 1, 4.0))
    server.step()  # nothing of the first round is left
    assert np.array_equal(server.weights["items"], expected)
    decaying = make_server(decay_share=0.25)
    decaying.receive(message(0, 1, 4.0))
    decaying.step()
    expected = 0.75 * plan.start["items"]
    expected[1] += 4.0
    assert np.allclose(decaying.weights["items"], expected)


def test_a_sum_is_used_with_its_noise_only_and_nothing_is_added_to_it_then():
    server = protected()
    server.receive(message(0, 1, 4.0))
    raises(VeilrecError, "no noise yet", server.step)
    server.protect(SeededSource(0))
    raises(VeilrecError, "has its noise already", server.receive, message(0, 5, 2.0))
    raises(VeilrecError, "has its noise already", server.open_round, RoundSpec(0))
    raises(VeilrecError, "has its noise already", server.protect, SeededSource(0))
    server.step()
    server.receive(message(1, 5, 2.0))


def test_a_bad_message_and_one_that_is_too_long_change_nothing():
    server = protected()
    raises(BadUpdate, "takes at most 20", server.receive, message(0, 1, 400.0))
    assert all(np.all(total == 0.0) for total in server._aggregator.sums.values())
    clean, attacked = make_server(), make_server()
    good = message(0, 1, 4.0)
    clean.receive(good)
    attacked.receive(good)
    for bad in (good[:-1], good + b"\0", message(1, 1, 4.0), message(0, 1, np.nan), b""):
        raises(BadMessage, None, attacked.receive, bad)
    clean.step()
    attacked.step()
    for name, value in clean.weights.items():
        assert np.array_equal(value, attacked.weights[name])


CLIENTS, COHORT = 8, 5
PRIVACY = PrivacySettings(epsilon=4.0)


@cache
def of_fedmf():
    return build("dp-fedmf", small_problem(CLIENTS), (f"cohort.size={COHORT}",), secret=SECRET)


def with_popularity(*, noise=True, averaging=0.0):
    plan, popularity = of_fedmf().plan, PopularityTensor()
    n_items = plan.schema.tables[0].shape[0]
    schema = Schema((*plan.schema.tensors, popularity.tensor(n_items)))
    before = private_votes(PRIVACY, plan.cohort, n_items, share=0.2, clients=CLIENTS)
    known = {"rounds": plan.rounds, "clients": CLIENTS, "keeps_state": True}
    told = {"before": before.event, "numbers_before": before.numbers}
    mechanism = noisy_sum(PRIVACY, plan.cohort, schema, **known, **told)
    return replace(
        plan,
        schema=schema,
        start={**plan.start, popularity.name: np.zeros((n_items, 1), np.float32)},
        mechanism=mechanism,
        reports=before.reports if noise else ReportSpec(mechanism=PlainVotes(length=n_items)),
        from_reports=popularity,
        averaging=averaging,
    )


def simulated(plan):
    known = of_fedmf()
    return Simulation(plan, known.data, known.histories, known.seeds)


@pytest.mark.parametrize("noise", [True, False])
def test_real_rounds_fill_what_the_simulation_fills(tmp_path, noise):
    plan = with_popularity(noise=noise, averaging=0.5)
    here, real = simulated(plan), RealRun(tmp_path, plan, of_fedmf().data, of_fedmf().seeds)
    for number in range(2):
        told, done = here.step(number), real.step()
        assert (told.up_bytes, told.down_bytes) == (done.up_bytes, done.down_bytes)
    assert same(dict(real.coordinator.server_state.state()), here.server_state.state())
    popularity = here.server.weights["popularity"]
    assert np.count_nonzero(popularity) > 0.9 * len(popularity) or not noise
    assert np.array_equal(here.server_state.weights["popularity"], popularity)
    assert np.array_equal(here.parts().weights["popularity"], popularity)
    real.close()
    spent = epsilon_of(training_event(plan), PRIVACY.delta)  # of votes and rounds together
    assert not noise or 0.98 * PRIVACY.epsilon < spent <= PRIVACY.epsilon
    votes = np.zeros(len(popularity))
    for client in range(CLIENTS):
        row = here.data.rows.row(client)
        votes[row] += len(row) ** -0.5
    assert noise or np.allclose(popularity[:, 0], votes, atol=1e-6)


def test_a_coordinator_that_dies_in_the_open_round_still_has_it(tmp_path):
    plan = with_popularity()
    real = RealRun(tmp_path, plan, of_fedmf().data, of_fedmf().seeds)
    question = real.coordinator.ask()
    for name in question.clients:
        real.coordinator.receive_report(name, real.client(name).report(question.round_number, question.period))
    broadcast, _ = real.coordinator.open_round()
    real.close()
    with Coordinator(put_secret(shutil.copytree(tmp_path / "server", tmp_path / "again"), SECRET), plan) as again:
        assert again.open_round()[0] == broadcast
        assert again.server_state.server.weights["popularity"].any()


def test_what_is_learnt_or_reported_every_round_is_not_filled():
    plan = with_popularity()
    server = Server(plan)
    raises(ValueError, "learnt", server.fill, {"items": server.weights["items"]})
    raises(ValueError, "shape", server.fill, {"popularity": np.zeros((1, 1), np.float32)})
    raises(ValueError, "once", replace, plan, reports=replace(plan.reports, fresh=True))


RULE = GeometricClipping(cohort=20, smallest=0.01, largest=100.0)


def simulation(plan, secret=SECRET):
    return Simulation(plan, data(), people(), Seeds.all_from(1, secret))


def test_the_geometric_rule_is_that_of_andrew_and_others():
    # 15 of 20 within: (15 - 5) / 2 = 5 counted; S exp(-0.2 (0.75 - 0.5))
    assert RULE.next(2.0, 5.0) == pytest.approx(2.0 * math.exp(-0.05))
    assert RULE.next(2.0, 0.0) == 2.0
    assert RULE.next(2.0, 1e9) == pytest.approx(2.0 * math.exp(-0.1))  # more than all is noise
    assert RULE.next(0.01, 10.0) == 0.01
    assert RULE.next(100.0, -10.0) == 100.0


def test_the_printed_rule_falls_below_nothing():
    # privacy-math, section 5(c): S 40, gamma 0.9, alpha_4 1, everybody always within: 400 rounds to 0
    rule, bound = PublishedClipping(cohort=30, quantile=0.9, rate=1.0), 40.0
    for _ in range(400):
        bound = rule.next(bound, 30.0)
    assert bound == pytest.approx(0.0, abs=1e-9)
    assert rule.next(bound, 30.0) < 0.0
    raises(VeilrecError, "bound has become nan", rule.next, 1.0, math.nan)


def test_a_rule_that_makes_no_sense_or_has_no_tensor_is_refused(tmp_path):
    for wrong in ({"cohort": 0}, {"smallest": 0.0}, {"quantile": 1.5}, {"rate": math.nan}, {"largest": 0.001}):
        raises(BadInput, None, replace, RULE, **wrong)
    raises(BadInput, "need each other", Server, replace(adaptive_plan(), clipping_rule=None))
    plain = replace(plain_plan(CohortSettings(size=20, sampling="poisson")), clipping_rule=RULE)
    raises(BadInput, "need each other", Server, plain)
    Coordinator(put_secret(tmp_path / "server"), adaptive_plan()).close()
    other = adaptive_plan(rate=0.1)  # a run does not go on by another rule
    raises(BadInput, "another plan", Coordinator, tmp_path / "server", other)


def test_the_round_spec_has_the_bound_of_the_model_and_what_another_planner_says():
    plan = adaptive_plan()
    weights = {**plan.start, BOUND: np.array([0.3], np.float32)}
    spec = LearntBound().next(4, weights, None)
    assert (spec.number, spec.clip_norm, spec.rows) == (4, float(np.float32(0.3)), None)
    parts = LearntBound(SeededParts(schema=plan.schema, public_seed=1, row_share=0.5))
    assert parts.leaves_out
    assert not LearntBound().leaves_out
    assert len(parts.next(4, weights, None).rows) == 30


def test_the_bound_moves_by_the_protected_count_and_by_nothing_else():
    plan = replace(adaptive_plan(), server=ServerRate(optimiser="adam", rate=0.1), decay_share=0.01)
    run = simulation(plan)
    for number in range(3):
        before = float(run.server.weights[BOUND][0])
        protected = []
        step = run.server.step

        def watched(step=step, protected=protected):
            protected.append(float(run.server._aggregator.sums[BOUND][0]))
            step()

        run.server.step = watched
        run.step(number)
        run.server.step = step
        assert run.server.weights[BOUND][0] == np.float32(plan.clipping_rule.next(before, protected[0]))
        assert run.server.weights[BOUND][0] != np.float32(before)
    assert not any(BOUND in name for name in run.server.state() if name.startswith("optimiser."))


@pytest.mark.parametrize("start", [0.1, 90.0])
def test_the_bound_finds_the_quantile_of_the_norms(start):
    """Votes of n items have norm sqrt(n); the noise on the count is below one person."""
    everybody = Rounds(rounds=60, sampling="poisson", population=60, cohort=60)
    schema, weights = local_training.schema(ITEMS), local_training.start_weights(ITEMS)
    noise = {"noise_multiplier": 1e-3, "count_standard_deviation": 0.3, "delta": 1e-6}
    mechanism = AdaptiveSum(schema=with_bound(schema), clip_norm=start, taking_part=everybody, **noise)
    plain = plain_plan(CohortSettings(size=0, sampling="poisson"), rounds=60)
    plain = replace(plain, schema=schema, trainer=local_training.VoteLocalTrainer(), start=weights)
    run = simulation(with_learnt_bound(plain, mechanism, rate=0.1), None)
    for number in range(80):
        run.step(number)
    norms = np.sqrt(people().lengths())
    assert float(run.server.weights[BOUND][0]) == pytest.approx(np.median(norms), rel=0.1)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_real_clients_and_a_coordinator_give_the_simulation(sampling, tmp_path):
    plan = adaptive_plan(sampling)
    simulated = simulation(plan)
    real = RealRun(tmp_path, plan, data(), simulated.seeds)
    for number in range(3):
        report = simulated.step(number)
        assert real.step().up_bytes == report.up_bytes
    for name, value in simulated.server.weights.items():
        assert np.allclose(value, real.coordinator.server_state.weights[name], rtol=0, atol=1e-5), name
    assert simulated.server.weights[BOUND][0] == real.coordinator.server_state.weights[BOUND][0]
    real.close()
