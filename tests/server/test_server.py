from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from veilrec.core.errors import VeilrecError
from veilrec.core.plan import Plan
from veilrec.core.schema import ClientUpdates, RoundSpec, Rows, Schema, Tensor
from veilrec.privacy.accounting import Rounds
from veilrec.privacy.mechanisms.clipping import BadUpdate
from veilrec.privacy.mechanisms.sums import CohortSum, NoNoise
from veilrec.privacy.randomness import SeededSource
from veilrec.server.aggregation import ServerRate
from veilrec.server.round_specs import CohortSettings
from veilrec.server.server import Server
from veilrec.wire import messages
from veilrec.wire.messages import BadMessage

SCHEMA = Schema((Tensor("items", (6, 2), True), Tensor("bias", (3,), False)))


def plan_of(aggregation: str = "mean", rate: ServerRate | None = None, **other: Any) -> Plan:
    return Plan(
        schema=SCHEMA,
        start={"items": np.arange(12, dtype=np.float32).reshape(6, 2), "bias": np.zeros(3, np.float32)},
        learner=None,  # type: ignore[arg-type]
        ranker=None,  # type: ignore[arg-type]
        cohort=CohortSettings(size=2),
        rounds=9,
        aggregation=aggregation,  # type: ignore[arg-type]
        server=rate or ServerRate(),
        **({"mechanism": NoNoise(SCHEMA)} | other),
    )


def make_server(*arguments: Any, **other: Any) -> Server:
    return Server(plan_of(*arguments, **other))


def protected() -> Server:
    everybody = Rounds(rounds=1, population=2, cohort=2)
    mechanism = CohortSum(schema=SCHEMA, clip_norm=20.0, noise_multiplier=1.0, taking_part=everybody, delta=1e-6)
    return make_server("sum", mechanism=mechanism)


def message(round_number: int, row: int, value: float) -> bytes:
    rows = Rows(np.array([0, 1]), np.array([row], np.int32), np.full((1, 2), value, np.float32))
    dense = {"bias": np.full((1, 3), value, np.float32)}
    return messages.encode_update(ClientUpdates(round_number, 1, {"items": rows}, dense), SCHEMA)


def test_a_round_from_messages_to_the_next_model() -> None:
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
    assert server.about.number == 1
    with pytest.raises(BadMessage, match="round 0, expected round 1"):
        server.receive(message(0, 1, 4.0))
    server.step()  # nothing of the first round is left
    assert np.array_equal(server.weights["items"], expected)
    decaying = make_server(decay_share=0.25)
    decaying.receive(message(0, 1, 4.0))
    decaying.step()
    expected = 0.75 * plan.start["items"]
    expected[1] += 4.0
    assert np.allclose(decaying.weights["items"], expected)


def test_a_sum_is_used_with_its_noise_only_and_nothing_is_added_to_it_then() -> None:
    server = protected()
    server.receive(message(0, 1, 4.0))
    with pytest.raises(VeilrecError, match="no noise yet"):
        server.step()
    server.protect(SeededSource(0))
    with pytest.raises(VeilrecError, match="has its noise already"):
        server.receive(message(0, 5, 2.0))
    with pytest.raises(VeilrecError, match="has its noise already"):
        server.open_round(RoundSpec(0))
    with pytest.raises(VeilrecError, match="has its noise already"):
        server.protect(SeededSource(0))
    server.step()
    server.receive(message(1, 5, 2.0))


def test_a_message_that_is_too_long_changes_nothing() -> None:
    server = protected()
    with pytest.raises(BadUpdate, match="takes at most 20"):
        server.receive(message(0, 1, 400.0))
    assert all(np.all(total == 0.0) for total in server._aggregator.sums.values())


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
