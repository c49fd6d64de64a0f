"""A real device: bytes in, bytes out, and nothing more than the method says."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec._csr import Csr
from veilrec.device.device import Device, told, weights_of
from veilrec.device.learner import Cohort
from veilrec.device.mf import ITEMS, USER, MfLearner, MfSettings, schema, start_weights
from veilrec.device.protection import Unprotected
from veilrec.updates import Rows, Schema, Tensor, Uploads, whole_model
from veilrec.wire import codec
from veilrec.wire.codec import BadMessage

N_ITEMS, DIM, SEED = 30, 4, 9
SCHEMA = schema(N_ITEMS, DIM)
WEIGHTS = start_weights(N_ITEMS, DIM, 0.1, SEED)
OWN = np.array([3, 17, 5], np.int32)


def make_device(**options: bool) -> Device:
    return Device(6, OWN, MfLearner(MfSettings(dim=DIM), SEED), SCHEMA, Unprotected(), **options)


def broadcast(round_number: int = 0) -> bytes:
    return codec.encode(whole_model(SCHEMA, WEIGHTS, round_number), SCHEMA)


def test_the_message_is_what_the_learner_gives_for_a_cohort_of_one() -> None:
    answer = codec.decode(make_device().take_part(broadcast(2), 2), SCHEMA, 2)
    learner = MfLearner(MfSettings(dim=DIM), SEED)
    cohort = Cohort(np.array([6]), Csr(np.array([0, 3]), OWN), learner.fresh_private_state(np.array([6])))
    rows = learner.learn(cohort, WEIGHTS, 2).uploads.tables[ITEMS]
    order = np.argsort(rows.index)
    assert np.array_equal(answer.tables[ITEMS].index, rows.index[order])
    assert np.array_equal(answer.tables[ITEMS].values, rows.values[order])


def test_the_user_vector_stays_and_is_remembered() -> None:
    device = make_device()
    before = device.private[USER].copy()
    message = device.take_part(broadcast(), 0)
    after = device.private[USER].copy()
    assert not np.array_equal(before, after)
    assert set(codec.decode(message, SCHEMA, 0).tables) == {ITEMS}
    device.take_part(broadcast(1), 1)
    assert not np.array_equal(after, device.private[USER])


def test_the_number_of_examples_leaves_only_when_the_round_weighs_by_it() -> None:
    silent = codec.decode(make_device().take_part(broadcast(), 0), SCHEMA, 0)
    telling = codec.decode(make_device(tell_examples=True).take_part(broadcast(), 0), SCHEMA, 0)
    assert silent.examples is None
    assert telling.examples is not None
    assert telling.examples.tolist() == [3 * 5 * 5]
    assert told(telling, False).examples is None
    assert told(telling, True) is telling


def test_everything_that_leaves_went_through_the_protection() -> None:
    class Silence(Unprotected):
        def bound(self, uploads: Uploads) -> Uploads:
            rows = uploads.tables[ITEMS]
            return Uploads(uploads.round_number, 1, {ITEMS: Rows(rows.offsets, rows.index, 0.0 * rows.values)})

    device = Device(6, OWN, MfLearner(MfSettings(dim=DIM), SEED), SCHEMA, Silence())
    assert np.all(codec.decode(device.take_part(broadcast(), 0), SCHEMA, 0).tables[ITEMS].values == 0.0)


def test_a_broadcast_of_another_round_or_cut_short_is_refused_before_learning() -> None:
    device = make_device()
    before = device.private[USER].copy()
    for bad in (broadcast(1), broadcast()[:-1], b""):
        with pytest.raises(BadMessage):
            device.take_part(bad, 0)
    assert np.array_equal(before, device.private[USER])


def test_a_model_with_rows_missing_is_refused_before_learning() -> None:
    some = Rows(np.array([0, 2]), np.array([0, 1], np.int32), np.zeros((2, DIM), np.float32))
    for uploads in (Uploads(0, 1, {ITEMS: some}), Uploads(0, 1)):
        with pytest.raises(BadMessage, match="lacks items"):
            make_device().take_part(codec.encode(uploads, SCHEMA), 0)


def test_weights_of_gives_back_the_tensors_of_the_model() -> None:
    mixed = Schema((Tensor("items", (3, 2), True), Tensor("layer", (2, 2), False), Tensor("bias", (), False)))
    weights = {
        "items": np.ones((3, 2), np.float32),
        "layer": np.eye(2, dtype=np.float32),
        "bias": np.array(4.0, np.float32),
    }
    model = codec.decode(codec.encode(whole_model(mixed, weights, 0), mixed), mixed, 0)
    got = weights_of(model, mixed)
    assert got.keys() == weights.keys()
    for name, value in weights.items():
        assert got[name].shape == value.shape
        assert np.array_equal(got[name], value)
