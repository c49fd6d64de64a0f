"""The simulator drives the same parts as real clients, counts their bytes, and can stop and go on at will."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from tests.methods.tastes import build, same, small_problem
from veilrec.client.local_training import LocalResults, OwnItems
from veilrec.client.mf import ITEMS, USER, MfLocalTrainer, MfSettings, schema, start_weights
from veilrec.client.rankers import MfRanker
from veilrec.core.plan import Aggregation, Plan
from veilrec.core.schema import ClientUpdates, Rows, Schema, Tensor
from veilrec.privacy.accounting import Rounds
from veilrec.privacy.mechanisms.sums import CohortSum, NoNoise
from veilrec.server.aggregation import ServerRate
from veilrec.server.round_specs import CohortSettings
from veilrec.simulation.real_clients import SECRET, RealRun
from veilrec.simulation.simulation import Seeds, Simulation, keep, one_of
from veilrec.wire import messages

N_ITEMS, SEED = 60, 4
LOCAL = MfSettings(dim=8, epochs=2)
MIXED = Schema((Tensor("items", (N_ITEMS, 2), True), Tensor("layer", (2, 3), False)))


class Counting:
    """A trainer with a table and a dense tensor: each client reports its own number."""

    keeps_state = True

    def fresh_private_state(self, clients, draws_seed):
        return {"rounds": np.zeros((len(clients), 1), np.float32)}

    def learn(self, cohort, model, spec):
        assert model.keys() == {"items", "layer"}
        n, data = len(cohort.clients), cohort.data.rows
        cohort.private["rounds"][...] += 1.0
        own = cohort.clients.astype(np.float32)
        values = np.repeat(own, data.lengths())[:, np.newaxis] * np.ones((1, 2), np.float32)
        rows = Rows(data.offsets, data.items, values)
        dense = own[:, np.newaxis, np.newaxis] * np.ones((1, 2, 3), np.float32)
        updates = ClientUpdates(spec.number, n, {"items": rows}, {"layer": dense}, data.lengths())
        return LocalResults(updates, data.lengths(), own)


def fedmf_plan(aggregation="mean", *, chunk=16, averaging=0.0, **cohort):
    of_model = schema(N_ITEMS, LOCAL.dim)
    return Plan(
        schema=of_model,
        start=start_weights(N_ITEMS, LOCAL.dim, LOCAL.start, SEED),
        trainer=MfLocalTrainer(LOCAL),
        mechanism=NoNoise(of_model),
        rounds=5,
        cohort=CohortSettings(**({"size": 20} | cohort)),
        aggregation=aggregation,
        server=ServerRate("yogi", 0.1, 0.9),
        averaging=averaging,
        ranker=MfRanker(LOCAL, SEED),
        clients_per_batch=chunk,
    )


def simulated(plan, train, secret=None):
    return Simulation(plan, OwnItems(train), train, Seeds.all_from(SEED, secret))


def fedmf(train, aggregation="mean", **options):
    return simulated(fedmf_plan(aggregation, **options), train)


def counting_plan(aggregation="sum", *, chunk=16, **cohort):
    return replace(
        fedmf_plan(aggregation, chunk=chunk, **cohort),
        schema=MIXED,
        start={"items": np.zeros((N_ITEMS, 2), np.float32), "layer": np.zeros((2, 3), np.float32)},
        trainer=Counting(),
        mechanism=NoNoise(MIXED),
        server=ServerRate(),
    )


def counting(train, aggregation="sum", **options):
    return simulated(counting_plan(aggregation, **options), train)


def test_the_size_of_the_chunks_changes_nothing(tiny_train):
    ways = [fedmf(tiny_train, drop_out=0.3, chunk=chunk) for chunk in (1, 7, 100)]
    reports = [[way.step(number) for number in range(3)] for way in ways]
    assert reports[0] == reports[1] == reports[2]
    for name, value in ways[0].state().items():
        assert all(np.array_equal(value, way.state()[name]) for way in ways[1:])
    parts = ways[0].parts()
    assert parts.weights[ITEMS] is ways[0].server.weights[ITEMS]
    assert parts.private[USER].shape == (40, LOCAL.dim)
    assert parts.sent is None


def test_drop_outs_learn_but_do_not_count(tiny_train):
    simulation = counting(tiny_train, drop_out=0.4)
    chosen = simulation.sampler.draw(0)
    arrives = simulation.sampler.arrives(0, chosen)
    assert 0 < arrives.sum() < len(chosen)
    report = simulation.step(0)
    assert np.all(simulation.server.weights["layer"] == chosen[arrives].sum())
    expected = np.zeros(N_ITEMS)
    for client in chosen[arrives]:
        expected[tiny_train.row(client)] += client
    assert np.array_equal(simulation.server.weights["items"][:, 0], expected.astype(np.float32))
    took_part = np.zeros(len(tiny_train))
    took_part[chosen] = 1.0
    assert np.array_equal(simulation.private["rounds"][:, 0], took_part)
    assert report.loss == pytest.approx(chosen.mean())
    everybody = counting(tiny_train, size=38)
    everybody.step(0)
    assert np.flatnonzero(everybody.private["rounds"][:, 0] == 0.0).tolist() == [0, 7]  # those without data


def test_rounds_that_reach_nobody_or_lose_all_messages_change_nothing(tiny_train):
    for aggregation in get_args(Aggregation):
        for chunk in (1, 16):
            simulation = counting(tiny_train, aggregation, drop_out=1.0 - 1e-9, chunk=chunk)
            report = simulation.step(0)
            assert (report.clients, report.up_bytes, report.up_params) == (20, 0, 0)
            assert not any(value.any() for value in simulation.server.weights.values())
            assert simulation.server.spec.number == 1
    simulation = counting(tiny_train, available=1e-9)
    report = simulation.step(0)
    assert (report.clients, report.down_bytes, report.up_bytes, report.loss) == (0, 0, 0, None)
    assert not any(value.any() for value in simulation.server.weights.values())


def test_every_message_goes_through_the_mechanism(tiny_train):
    class Halve(NoNoise):
        is_linear = False

        def bound(self, updates, spec):
            dense = {name: values / 2 for name, values in updates.dense.items()}
            return ClientUpdates(updates.round_number, updates.count, {}, dense)

    plain = counting(tiny_train)
    halved = simulated(replace(counting_plan(), mechanism=Halve(MIXED)), tiny_train)
    plain.step(0)
    halved.step(0)
    assert np.array_equal(halved.server.weights["layer"], plain.server.weights["layer"] / 2)
    assert np.all(halved.server.weights["items"] == 0.0)


def private_plan():
    people = Rounds(rounds=5, sampling="poisson", population=38, cohort=20)
    mechanism = CohortSum(schema=MIXED, clip_norm=1.0, noise_multiplier=1.0, taking_part=people, delta=1e-6)
    return replace(counting_plan(sampling="poisson"), mechanism=mechanism)


def test_with_a_secret_nobody_without_it_can_repeat_noise_or_cohorts(tiny_train):
    secrets = (None, b"a" * 32, b"a" * 32, b"b" * 32)
    runs = [simulated(private_plan(), tiny_train, secret) for secret in secrets]
    shortcuts = [simulated(counting_plan(), tiny_train, secret)._takes_shortcuts for secret in secrets]
    assert shortcuts == [True, False, False, False]  # with a secret every message is formed
    for number in range(3):
        for run in runs:
            run.step(number)
    models = [run.server.weights["layer"].tobytes() for run in runs]
    assert models[1] == models[2]
    assert len(set(models)) == 3
    cohorts = [run.sampler.draw(9).tolist() for run in runs]
    assert cohorts[1] == cohorts[2]
    assert len({tuple(cohort) for cohort in cohorts}) == 3


def test_noise_differs_from_round_to_round_and_is_the_same_after_a_restart(tiny_train):
    nobody = replace(private_plan(), cohort=CohortSettings(size=20, sampling="poisson", available=1e-9))
    for secret in (None, b"a" * 32):
        straight, resumed = (simulated(nobody, tiny_train, secret) for _ in range(2))
        moves = []
        for number in range(3):
            before = straight.server.weights["layer"].copy()
            straight.step(number)
            moves.append((straight.server.weights["layer"] - before).tobytes())
        assert len(set(moves)) == 3
        resumed.step(0)
        again = simulated(nobody, tiny_train, secret)
        again.load_state(resumed.state(), 1)
        again.step(1)
        again.step(2)
        assert np.array_equal(again.server.weights["layer"], straight.server.weights["layer"])


def test_keep_picks_whole_messages():
    values = np.arange(10, dtype=np.float32).reshape(5, 2)
    rows = Rows(np.array([0, 2, 2, 5]), np.array([1, 2, 3, 4, 5], np.int32), values)
    dense = {"layer": np.arange(18, dtype=np.float32).reshape(3, 2, 3)}
    updates = ClientUpdates(0, 3, {"items": rows}, dense, np.array([7, 8, 9]))
    kept = keep(updates, np.array([False, True, True]))
    assert kept.count == 2
    assert kept.tables["items"].offsets.tolist() == [0, 0, 3]
    assert kept.tables["items"].index.tolist() == [3, 4, 5]
    assert np.array_equal(kept.tables["items"].values, rows.values[2:])
    assert np.array_equal(kept.dense["layer"], dense["layer"][1:])
    assert kept.examples.tolist() == [8, 9]
    for client, message in enumerate((1, 2)):
        sent = messages.encode_update(updates, MIXED, message)
        assert messages.encode_update(kept, MIXED, client) == sent
        assert messages.encode_update(one_of(updates, message), MIXED) == sent
    assert keep(updates, np.ones(3, np.bool_)) is updates


def test_the_model_that_ranks_may_be_a_running_mean(tiny_train):
    plain, averaged = fedmf(tiny_train), fedmf(tiny_train, averaging=0.75)
    mean = plain.server.weights[ITEMS].copy()
    for number in range(3):
        plain.step(number)
        averaged.step(number)
        mean = 0.75 * mean + 0.25 * plain.server.weights[ITEMS]
    assert np.allclose(averaged.parts().weights[ITEMS], mean, atol=1e-6)
    assert np.array_equal(averaged.server.weights[ITEMS], plain.server.weights[ITEMS])


@pytest.mark.parametrize("name", ["dp-fedmf", "dp-fedmf:as-published"])
def test_clients_on_whose_data_the_model_overflows_answer_zeros_as_real_ones_do(tmp_path, name):
    """An end of the run would tell that somebody has an item on which it overflows."""
    rates = ("local.user_rate=1e3", "local.item_rate=1e10")  # too large for one item, and for no other
    whole = build(name, small_problem(), ("cohort.size=12", *rates), secret=SECRET)
    data, rounds = whole.data, 2
    start = {key: values.copy() for key, values in whole.plan.start.items()}
    table = next(tensor.name for tensor in whole.plan.schema.tables)
    start[table][3] = 1e6
    plan = replace(whole.plan, start=start)
    run, usual = (Simulation(one, data, whole.histories, whole.seeds) for one in (plan, whole.plan))
    steps = [run.step(number) for number in range(rounds)]
    assert all(step.loss is None or np.isfinite(step.loss) for step in steps)
    usual.step(0)
    assert not same(run.server.weights, usual.server.weights)
    real = RealRun(tmp_path, plan, data, whole.seeds)
    for _ in range(rounds):
        assert not real.step().refused
    assert same(real.coordinator.server_state.server.weights, run.server.weights)
    real.close()


def test_a_run_that_diverges_for_everybody_says_so_only_where_nobody_is_promised_anything():
    run = build("fedmf", small_problem())
    for secret, said in ((None, float("nan")), (SECRET, None)):
        run.seeds = Seeds.all_from(SEED, secret)
        assert run._mean_loss(np.array([np.nan, np.inf], np.float32)) == pytest.approx(said, nan_ok=True)
        assert run._mean_loss(np.array([np.nan, 4.0, 2.0], np.float32)) == 3.0
