"""What every method owes: it learns, repeats, resumes, takes in new users; a cohort is many devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from veilrec._csr import Csr
from veilrec.device.device import Device
from veilrec.device.learner import Cohort
from veilrec.errors import BadInput
from veilrec.methods.base import configure, setting_names
from veilrec.methods.registry import METHODS, get
from veilrec.simulate.simulation import Simulation
from veilrec.wire import codec

from .tastes import COHORT, ITEMS, SEED, build, measured, same, saved_state, small_problem, trained

LEARNING = [name for name in METHODS if name not in ("popularity", "random")]
FEDERATED = ["fedmf", "fedncf", "fcf"]
DRAWS_NOTHING = ("popularity", "ease")  # the seed changes nothing
ROUNDS = 3


def simulation(name: str, **changes: Any) -> Simulation:
    trainer = build(name, small_problem())
    assert isinstance(trainer, Simulation)
    for attribute, value in changes.items():
        setattr(trainer, attribute, value)
    return trainer


def distance(left: dict[str, Any], right: dict[str, Any]) -> float:
    """The largest relative difference between the tensors of two states."""
    assert left.keys() == right.keys()
    return max(float(np.linalg.norm(left[k] - right[k]) / np.linalg.norm(right[k])) for k in right)


@pytest.mark.parametrize("name", METHODS)
def test_is_registered_under_its_own_name(name: str) -> None:
    assert get(name).name == name
    assert (get(name).kind == "federated") == (name in FEDERATED)


@pytest.mark.parametrize("name", LEARNING)
def test_learns_above_popularity(name: str) -> None:
    # With 500 cases the standard error of hr@10 is at most 0.022: twice popularity's 0.17 is no accident.
    assert measured(name, "loo-99")["hr@10"] > 2 * measured("popularity", "loo-99")["hr@10"]
    assert measured(name, "loo-99")["ndcg@10"] > 2 * measured("popularity", "loo-99")["ndcg@10"]


@pytest.mark.parametrize("name", FEDERATED)
def test_real_devices_give_the_model_of_one_simulated_cohort(name: str) -> None:
    simulated = simulation(name, chunk=COHORT)
    real = simulation(name)
    server, train = real.server, real.train
    devices: dict[int, Device] = {}
    for number in range(ROUNDS):
        simulated.step(number)
        broadcast = codec.encode(server.broadcast(), server.schema)
        for d in map(int, real.sampler.draw(number)):
            if d not in devices:
                devices[d] = Device(
                    d,
                    train.row(d),
                    real.learner,
                    server.schema,
                    real.protection,
                    tell_examples=server.weighs_examples,
                )
            server.receive(devices[d].take_part(broadcast, number))
        server.step()
    assert len(devices) > COHORT  # the cohorts differ from round to round
    assert distance(server.state(), simulated.server.state()) <= 1e-5
    for d, device in devices.items():
        kept = {key: values[[d]] for key, values in simulated.private.items()}
        assert not kept or distance(device.private, kept) <= 1e-5


@pytest.mark.parametrize("name", FEDERATED)
def test_chunks_of_a_cohort_change_nothing(name: str) -> None:
    whole, parts = simulation(name, chunk=COHORT), simulation(name, chunk=7)
    for number in range(ROUNDS):
        whole.step(number)
        parts.step(number)
    assert distance(parts.state(), whole.state()) <= 1e-5


@pytest.mark.parametrize("name", FEDERATED)
def test_counted_bytes_are_the_bytes_of_the_messages(name: str) -> None:
    sim = simulation(name)
    schema = sim.server.schema
    devices = sim.sampler.draw(0)
    private = {key: values[devices] for key, values in sim.private.items()}
    model = sim.server.weights
    uploads = sim.protection.bound(
        sim.learner.learn(Cohort(devices, sim.train.take(devices), private), model, 0).uploads
    )
    lengths = [len(codec.encode(uploads, schema, device)) for device in range(len(devices))]
    assert codec.sizes(uploads, schema).tolist() == lengths

    report = simulation(name).step(0)
    assert report.up_bytes == sum(lengths)
    assert report.down_bytes == COHORT * len(codec.encode(sim.server.broadcast(), schema))


@pytest.mark.parametrize("name", METHODS)
def test_the_seed_decides_everything(name: str) -> None:
    first, again, other = (build(name, small_problem(seed=seed)) for seed in (SEED, SEED, SEED + 1))
    for number in range(2):
        for trainer in (first, again, other):
            trainer.step(number)
    assert same(first.state(), again.state())
    assert same(first.state(), other.state()) == (name in DRAWS_NOTHING)


@pytest.mark.parametrize("name", METHODS)
def test_resumes_bit_for_bit(name: str) -> None:
    straight, stopped, resumed = (build(name, small_problem()) for _ in range(3))
    for number in range(2):
        straight.step(number)
        stopped.step(number)
    resumed.load_state(saved_state(stopped), 2)
    assert same(resumed.state(), straight.state())
    for number in range(2, 5):
        straight.step(number)
        resumed.step(number)
    assert same(resumed.state(), straight.state())
    users = np.arange(10)
    assert np.array_equal(resumed.model().score_all(users), straight.model().score_all(users))


@pytest.mark.parametrize("name", METHODS)
def test_a_loaded_state_is_a_copy(name: str) -> None:
    source, target = build(name, small_problem()), build(name, small_problem())
    source.step(0)
    before = saved_state(source)
    target.load_state(source.state(), 1)
    target.step(1)
    assert same(source.state(), before)


@pytest.mark.parametrize("name", METHODS)
def test_scores_of_some_items_are_those_of_all(name: str) -> None:
    model = trained(name, "loo-99").model()
    users = np.array([3, 0, 17, 3])
    items = np.random.default_rng(1).integers(0, ITEMS, (4, 12)).astype(np.int32)
    everything, some = model.score_all(users), model.score_some(users, items)
    assert model.n_items == ITEMS
    assert everything.shape == (4, ITEMS)
    assert some.dtype == everything.dtype == np.float32
    assert np.allclose(
        some, np.take_along_axis(everything, items.astype(np.int64), axis=1), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", METHODS)
def test_takes_in_new_users(name: str) -> None:
    model = trained(name, "holdout-users").model()
    histories = Csr(
        np.array([0, 0, 1, 4]), np.array([5, 1, 2, 3], np.int32)
    )  # one of them has no history at all
    before = saved_state(trained(name, "holdout-users"))
    scores = model.fold_in(histories).score_all(np.arange(3))
    assert scores.shape == (3, ITEMS)
    assert np.isfinite(scores).all()
    assert same(saved_state(trained(name, "holdout-users")), before)


@pytest.mark.parametrize("name", LEARNING)
def test_ranks_for_new_users_far_above_chance(name: str) -> None:
    # 100 new users with some 12 items each to find: chance is 0.034, its standard error about 0.005.
    assert measured(name, "holdout-users")["hr@10"] > 3 * measured("random", "holdout-users")["hr@10"]


@pytest.mark.parametrize("name", METHODS)
def test_says_what_it_promises(name: str) -> None:
    method = get(name)
    config, _ = configure(method, preset="tuned", dataset="ml-1m")
    promise = method.guarantee(config)
    fields = (promise.unit, promise.adjacency, promise.epsilon, promise.delta, promise.scope, promise.trust)
    assert promise.basis in ("proven", "as published", "none")
    assert all(field is None for field in fields) == (promise.basis == "none")
    assert promise.caveats


@pytest.mark.parametrize("name", METHODS)
def test_refuses_settings_that_do_not_exist(name: str) -> None:
    method = get(name)
    with pytest.raises(BadInput, match="unknown setting") as error:
        configure(method, preset="tuned", dataset="", settings=["no_such_thing=1"])
    assert "\n" not in str(error.value)
    with pytest.raises(BadInput, match=r"unknown preset .*known are .*tuned"):
        configure(method, preset="no-such-preset", dataset="")
    with pytest.raises(BadInput, match="expected name=value"):
        configure(method, preset="tuned", dataset="", settings=["alone"])


@pytest.mark.parametrize("name", LEARNING)
def test_names_the_nearest_setting_and_refuses_bad_values(name: str) -> None:
    method = get(name)
    known = setting_names(method.config)[0]
    with pytest.raises(BadInput, match=f"did you mean .*{known}"):
        configure(method, preset="tuned", dataset="", settings=[f"{known}s=1"])
    with pytest.raises(BadInput, match=f"setting {known} of {name} is 'many'") as error:
        configure(method, preset="tuned", dataset="", settings=[f"{known}=many"])
    assert "\n" not in str(error.value)
