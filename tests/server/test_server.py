from __future__ import annotations

import numpy as np
import pytest

from veilrec.core.errors import VeilrecError
from veilrec.core.schema import ClientUpdates, RoundSpec, Rows, Schema, Tensor
from veilrec.privacy.accounting import Rounds
from veilrec.privacy.mechanisms.clipping import BadUpdate
from veilrec.privacy.mechanisms.sums import CohortSum, NoNoise
from veilrec.privacy.randomness import SeededSource
from veilrec.server.aggregation import ServerRate
from veilrec.server.server import Server
from veilrec.wire import messages
from veilrec.wire.messages import BadMessage

SCHEMA = Schema((Tensor("items", (6, 2), True), Tensor("bias", (3,), False)))


def make_server(aggregation: str = "mean", rate: ServerRate | None = None) -> Server:
    weights = {"items": np.arange(12, dtype=np.float32).reshape(6, 2), "bias": np.zeros(3, np.float32)}
    return Server(SCHEMA, weights, NoNoise(SCHEMA), aggregation, rate or ServerRate())  # type: ignore[arg-type]


def protected() -> Server:
    everybody = Rounds(rounds=1, population=2, cohort=2)
    mechanism = CohortSum(schema=SCHEMA, clip_norm=20.0, noise_multiplier=1.0, taking_part=everybody, delta=1e-6)
    return Server(SCHEMA, make_server().weights, mechanism, "sum", ServerRate())


def message(round_number: int, row: int, value: float) -> bytes:
    rows = Rows(np.array([0, 1]), np.array([row], np.int32), np.full((1, 2), value, np.float32))
    dense = {"bias": np.full((1, 3), value, np.float32)}
    return messages.encode_update(ClientUpdates(round_number, 1, {"items": rows}, dense), SCHEMA)


def test_a_round_from_messages_to_the_next_model() -> None:
    server = make_server()
    server.receive(message(0, 1, 4.0))
    server.receive(message(0, 5, 2.0))
    server.step()
    expected = np.arange(12, dtype=np.float32).reshape(6, 2)
    expected[1] += 2.0
    expected[5] += 1.0
    assert np.array_equal(server.weights["items"], expected)
    assert server.weights["bias"].tolist() == [3.0, 3.0, 3.0]
    assert server.about.number == 1
    server.step()  # nothing of the first round is left
    assert np.array_equal(server.weights["items"], expected)


def test_nothing_is_added_to_a_sum_that_has_its_noise() -> None:
    server = protected()
    server.receive(message(0, 1, 4.0))
    server.protect(SeededSource(0))
    with pytest.raises(VeilrecError, match="has its noise already"):
        server.receive(message(0, 5, 2.0))
    with pytest.raises(VeilrecError, match="has its noise already"):
        server.open_round(RoundSpec(0))
    with pytest.raises(VeilrecError, match="has its noise already"):
        server.protect(SeededSource(0))
    server.step()
    server.receive(message(1, 5, 2.0))


def test_nothing_is_used_of_a_sum_without_its_noise() -> None:
    server = protected()
    server.receive(message(0, 1, 4.0))
    with pytest.raises(VeilrecError, match="no noise yet"):
        server.step()


def test_a_message_that_is_too_long_changes_nothing() -> None:
    server = protected()
    with pytest.raises(BadUpdate, match="takes at most 20"):
        server.receive(message(0, 1, 400.0))
    assert all(np.all(total == 0.0) for total in server._aggregator.sums.values())


def test_the_server_may_pull_its_weights_towards_nothing() -> None:
    start = make_server().weights
    server = Server(SCHEMA, start, NoNoise(SCHEMA), "mean", ServerRate(), decay_share=0.25)
    server.receive(message(0, 1, 4.0))
    server.step()
    expected = 0.75 * start["items"]
    expected[1] += 4.0
    assert np.allclose(server.weights["items"], expected)


def test_a_bad_message_changes_nothing() -> None:
    clean, attacked = make_server(), make_server()
    good = message(0, 1, 4.0)
    clean.receive(good)
    attacked.receive(good)
    for bad in (good[:-1], good + b"\0", message(1, 1, 4.0), message(0, 1, np.nan), b""):
        with pytest.raises(BadMessage):
            attacked.receive(bad)
    clean.step()
    attacked.step()
    for name, value in clean.weights.items():
        assert np.array_equal(value, attacked.weights[name])


def test_a_late_message_of_the_last_round_is_refused() -> None:
    server = make_server()
    server.step()
    with pytest.raises(BadMessage, match="round 0, expected round 1"):
        server.receive(message(0, 1, 4.0))


def test_the_broadcast_is_the_model() -> None:
    server = make_server()
    model = messages.decode_update(messages.encode_update(server.broadcast(), SCHEMA), SCHEMA, 0)
    assert np.array_equal(model.tables["items"].values, server.weights["items"])
    assert np.array_equal(model.dense["bias"][0], server.weights["bias"])


def test_the_weights_given_at_the_start_are_not_changed() -> None:
    given = {"items": np.zeros((6, 2), np.float32), "bias": np.zeros(3, np.float32)}
    server = Server(SCHEMA, given, NoNoise(SCHEMA), "sum", ServerRate())
    server.receive(message(0, 1, 4.0))
    server.step()
    assert all(np.all(value == 0.0) for value in given.values())


@pytest.mark.parametrize("rate", [ServerRate(momentum=0.9), ServerRate("yogi", rate=0.1, momentum=0.9)])
def test_going_on_from_a_checkpoint_is_exact(rate: ServerRate) -> None:
    def rounds(server: Server, start: int, end: int) -> None:
        for number in range(start, end):
            server.receive(message(number, number % 6, 0.1 * number + 0.3))
            server.step()

    straight, stopped, resumed = make_server(rate=rate), make_server(rate=rate), make_server(rate=rate)
    rounds(straight, 0, 7)
    rounds(stopped, 0, 3)
    resumed.load_state({name: value.copy() for name, value in stopped.state().items()}, 3)
    rounds(resumed, 3, 7)
    assert resumed.about.number == 7
    assert straight.state().keys() == resumed.state().keys()
    for name, value in straight.state().items():
        assert np.array_equal(value, resumed.state()[name])


@pytest.mark.parametrize(("aggregation", "weighs"), [("weighted-mean", True), ("mean", False), ("row-mean", False)])
def test_only_the_weighted_mean_asks_for_example_counts(aggregation: str, weighs: bool) -> None:
    assert make_server(aggregation).weighs_examples is weighs
