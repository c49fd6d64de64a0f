"""The simulator drives the same parts as real devices, counts their bytes, and can stop and go on at will."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from veilrec._arrays import Floats, Offsets
from veilrec._csr import Csr
from veilrec.device.device import Device
from veilrec.device.learner import Cohort, Learned
from veilrec.device.mf import ITEMS, USER, MfLearner, MfSettings, schema, start_weights
from veilrec.device.protection import Unprotected
from veilrec.server.optimise import ServerRate
from veilrec.server.server import Server
from veilrec.simulate.cohort import CohortSettings
from veilrec.simulate.simulation import Simulation, keep
from veilrec.updates import Rows, Schema, Tensor, Uploads
from veilrec.wire import codec

N_ITEMS, SEED = 60, 4
LOCAL = MfSettings(dim=8, epochs=2)
MIXED = Schema((Tensor("items", (N_ITEMS, 2), True), Tensor("layer", (2, 3), False)))


class Counting:
    """A learner with a table and a dense tensor: each device reports its own number."""

    def fresh_private_state(self, devices: Offsets) -> dict[str, Floats]:
        return {"rounds": np.zeros((len(devices), 1), np.float32)}

    def learn(self, cohort: Cohort, model: Mapping[str, Floats], round_number: int) -> Learned:
        assert model.keys() == {"items", "layer"}
        n = len(cohort.devices)
        cohort.private["rounds"][...] += 1.0
        own = cohort.devices.astype(np.float32)
        values = np.repeat(own, cohort.data.lengths())[:, np.newaxis] * np.ones((1, 2), np.float32)
        rows = Rows(cohort.data.offsets, cohort.data.items, values)
        dense = own[:, np.newaxis, np.newaxis] * np.ones((1, 2, 3), np.float32)
        uploads = Uploads(round_number, n, {"items": rows}, {"layer": dense}, cohort.data.lengths())
        return Learned(uploads, cohort.data.lengths(), own)


def no_model(public: Mapping[str, Floats], private: Mapping[str, Floats]) -> Any:
    return public, private


def fedmf(train: Csr, aggregation: Any = "mean", *, chunk: int = 16, **cohort: Any) -> Simulation:
    weights = start_weights(N_ITEMS, LOCAL.dim, LOCAL.start, SEED)
    server = Server(schema(N_ITEMS, LOCAL.dim), weights, aggregation, ServerRate("yogi", 0.1, 0.9))
    settings = CohortSettings(**({"size": 20} | cohort))
    return Simulation(train, MfLearner(LOCAL, SEED), server, settings, no_model, SEED, chunk=chunk)


def counting(train: Csr, aggregation: Any = "sum", *, chunk: int = 16, **cohort: Any) -> Simulation:
    weights = {"items": np.zeros((N_ITEMS, 2), np.float32), "layer": np.zeros((2, 3), np.float32)}
    server = Server(MIXED, weights, aggregation, ServerRate())
    settings = CohortSettings(**({"size": 20} | cohort))
    return Simulation(train, Counting(), server, settings, no_model, SEED, chunk=chunk)


@pytest.mark.parametrize("aggregation", ["mean", "weighted-mean"])
def test_a_simulated_round_is_what_real_devices_and_bytes_give(tiny_train: Csr, aggregation: str) -> None:
    simulation, real = fedmf(tiny_train, aggregation, drop_out=0.3), fedmf(tiny_train, aggregation).server
    devices: dict[int, Device] = {}
    for number in range(3):
        chosen = simulation.sampler.draw(number)
        arrives = simulation.sampler.arrives(number, chosen)
        broadcast = codec.encode(real.broadcast(), real.schema)
        messages = []
        for device in chosen.tolist():
            if device not in devices:
                devices[device] = Device(
                    device,
                    tiny_train.row(device),
                    MfLearner(LOCAL, SEED),
                    real.schema,
                    Unprotected(),
                    tell_examples=real.weighs_examples,
                )
            messages.append(devices[device].take_part(broadcast, number))
        arrived = [message for message, comes in zip(messages, arrives, strict=True) if comes]
        for message in arrived:
            real.receive(message)
        real.step()
        report = simulation.step(number)
        assert 0 < len(arrived) < 20
        assert report.devices == 20
        assert report.down_bytes == 20 * len(broadcast)
        assert report.up_bytes == sum(map(len, arrived))
        assert report.down_params == 20 * N_ITEMS * LOCAL.dim
        decoded = [codec.decode(message, real.schema, number) for message in arrived]
        assert report.up_params == sum(message.tables[ITEMS].values.size for message in decoded)
    assert np.array_equal(real.weights[ITEMS], simulation.server.weights[ITEMS])
    for number, device in devices.items():
        assert np.array_equal(device.private[USER][0], simulation.private[USER][number])


def test_the_size_of_the_chunks_changes_nothing(tiny_train: Csr) -> None:
    ways = [fedmf(tiny_train, drop_out=0.3, chunk=chunk) for chunk in (1, 7, 100)]
    reports = [[way.step(number) for number in range(3)] for way in ways]
    assert reports[0] == reports[1] == reports[2]
    for name, value in ways[0].state().items():
        assert np.array_equal(value, ways[1].state()[name])
        assert np.array_equal(value, ways[2].state()[name])


def test_drop_outs_learn_but_do_not_count(tiny_train: Csr) -> None:
    simulation = counting(tiny_train, drop_out=0.4)
    chosen = simulation.sampler.draw(0)
    arrives = simulation.sampler.arrives(0, chosen)
    assert 0 < arrives.sum() < len(chosen)
    report = simulation.step(0)
    assert np.all(simulation.server.weights["layer"] == chosen[arrives].sum())
    expected = np.zeros(N_ITEMS)
    for device in chosen[arrives]:
        expected[tiny_train.row(device)] += device
    assert np.array_equal(simulation.server.weights["items"][:, 0], expected.astype(np.float32))
    took_part = np.zeros(len(tiny_train))
    took_part[chosen] = 1.0
    assert np.array_equal(simulation.private["rounds"][:, 0], took_part)
    assert report.loss == pytest.approx(chosen.mean())


@pytest.mark.parametrize("aggregation", ["sum", "mean", "weighted-mean", "row-mean", "row-sqrt"])
@pytest.mark.parametrize("chunk", [1, 16])
def test_a_round_whose_messages_are_all_lost_changes_nothing(tiny_train: Csr, aggregation: str, chunk: int) -> None:
    simulation = counting(tiny_train, aggregation, drop_out=1.0 - 1e-9, chunk=chunk)
    report = simulation.step(0)
    assert (report.devices, report.up_bytes, report.up_params) == (20, 0, 0)
    assert all(np.all(value == 0.0) for value in simulation.server.weights.values())
    assert simulation.server.round_number == 1


def test_a_round_that_reaches_nobody_changes_nothing(tiny_train: Csr) -> None:
    simulation = counting(tiny_train, available=1e-9)
    report = simulation.step(0)
    assert (report.devices, report.down_bytes, report.up_bytes, report.loss) == (0, 0, 0, None)
    assert all(np.all(value == 0.0) for value in simulation.server.weights.values())


def test_devices_without_data_never_take_part(tiny_train: Csr) -> None:
    simulation = counting(tiny_train, size=38)
    simulation.step(0)
    assert np.flatnonzero(simulation.private["rounds"][:, 0] == 0.0).tolist() == [0, 7]


def test_every_message_goes_through_the_protection(tiny_train: Csr) -> None:
    class Halve(Unprotected):
        def bound(self, uploads: Uploads) -> Uploads:
            dense = {name: values / 2 for name, values in uploads.dense.items()}
            return Uploads(uploads.round_number, uploads.count, {}, dense)

    plain, halved = counting(tiny_train), counting(tiny_train)
    halved.protection = Halve()
    plain.step(0)
    halved.step(0)
    assert np.array_equal(halved.server.weights["layer"], plain.server.weights["layer"] / 2)
    assert np.all(halved.server.weights["items"] == 0.0)


def test_stopping_and_going_on_is_exact(tiny_train: Csr) -> None:
    straight, stopped, resumed = (fedmf(tiny_train, drop_out=0.2) for _ in range(3))
    reports = [straight.step(number) for number in range(6)]
    for number in range(3):
        stopped.step(number)
    resumed.load_state({name: value.copy() for name, value in stopped.state().items()}, 3)
    assert [resumed.step(number) for number in range(3, 6)] == reports[3:]
    assert straight.state().keys() == resumed.state().keys()
    for name, value in straight.state().items():
        assert np.array_equal(value, resumed.state()[name])


def test_the_model_is_made_of_public_weights_and_private_states(tiny_train: Csr) -> None:
    simulation = fedmf(tiny_train)
    public, private = simulation.model()  # type: ignore[misc]
    assert public[ITEMS] is simulation.server.weights[ITEMS]
    assert private[USER].shape == (40, LOCAL.dim)


def test_keep_picks_whole_messages() -> None:
    rows = Rows(
        np.array([0, 2, 2, 5]), np.array([1, 2, 3, 4, 5], np.int32), np.arange(10, dtype=np.float32).reshape(5, 2)
    )
    dense = {"layer": np.arange(18, dtype=np.float32).reshape(3, 2, 3)}
    uploads = Uploads(0, 3, {"items": rows}, dense, np.array([7, 8, 9]))
    kept = keep(uploads, np.array([False, True, True]))
    assert kept.count == 2
    assert kept.tables["items"].offsets.tolist() == [0, 0, 3]
    assert kept.tables["items"].index.tolist() == [3, 4, 5]
    assert np.array_equal(kept.tables["items"].values, rows.values[2:])
    assert np.array_equal(kept.dense["layer"], dense["layer"][1:])
    assert kept.examples is not None
    assert kept.examples.tolist() == [8, 9]
    for device, message in enumerate((1, 2)):
        assert codec.encode(kept, MIXED, device) == codec.encode(uploads, MIXED, message)
    assert keep(uploads, np.ones(3, np.bool_)) is uploads


def test_the_model_that_ranks_may_be_a_running_mean(tiny_train: Csr) -> None:
    plain = fedmf(tiny_train)
    averaged = Simulation(
        tiny_train, plain.learner, fedmf(tiny_train).server, plain.sampler.settings, no_model, SEED, averaging=0.75
    )
    mean = plain.server.weights[ITEMS].copy()
    for number in range(3):
        plain.step(number)
        averaged.step(number)
        mean = 0.75 * mean + 0.25 * plain.server.weights[ITEMS]
    public, _ = averaged.model()  # type: ignore[misc]
    assert np.allclose(public[ITEMS], mean, atol=1e-6)
    assert np.array_equal(averaged.server.weights[ITEMS], plain.server.weights[ITEMS])
