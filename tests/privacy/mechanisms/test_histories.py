"""Many devices at once give what each gives by itself: no device's clicks touch another's message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from veilrec.core.arrays import Bools, Doubles, offsets_of
from veilrec.core.errors import BadInput
from veilrec.privacy.mechanisms.attention import ClickHistories, PaddedAttention, Slots
from veilrec.privacy.mechanisms.clipping import clip_flat
from veilrec.privacy.mechanisms.interests import PooledInterest
from veilrec.privacy.randomness import SeededSource

WIDTH, SLOTS = 6, 9


def _clicks(devices: int = 40) -> ClickHistories:
    generator = np.random.default_rng(3)
    lengths = generator.integers(0, SLOTS + 1, devices)
    lengths[:2] = (0, SLOTS)
    items = generator.integers(0, 30, lengths.sum()).astype(np.int32)
    return ClickHistories(2.0 * generator.normal(size=(30, WIDTH)), offsets_of(lengths), items)


def _pooled(**options: Any) -> PooledInterest:
    right: dict[str, Any] = {"projection": np.eye(4, WIDTH), "clip_norm": 1.0, "slots": SLOTS}
    return PooledInterest(**right | {"epsilon": 1.0, "delta": 1e-6} | options)


def test_pooling_of_many_devices_is_that_of_each() -> None:
    clicks, mechanism = _clicks(), _pooled()
    together = mechanism.pooled(clicks)
    for device in range(40):
        own = clicks.items[clicks.offsets[device] : clicks.offsets[device + 1]]
        np.testing.assert_array_equal(together[device], mechanism.pooled(clicks.table[own]))
    first = clip_flat(clicks.table, 1.0)[clicks.items[: clicks.offsets[2]]].sum(axis=0)[:4] / SLOTS
    np.testing.assert_allclose(together[1], first, atol=1e-8)
    np.testing.assert_array_equal(together[0], np.zeros(4))


def test_every_device_has_noise_of_its_own_of_the_stated_size() -> None:
    """4,000 numbers: the spread is off by 5 standard errors (5.6 %) once in two million runs."""
    mechanism = _pooled()
    nobody = ClickHistories(np.zeros((1, WIDTH)), np.zeros(1001, np.int64), np.zeros(0, np.int32))
    noise = mechanism.release(nobody, SeededSource(1)).value
    assert noise.shape == (1000, 4)
    assert len(np.unique(noise, axis=0)) == 1000
    assert noise.std() == pytest.approx(mechanism.sigma, rel=0.056)


def test_a_history_that_is_too_long_is_refused_among_many() -> None:
    long = ClickHistories(np.zeros((1, WIDTH)), np.array([0, 1, 2 + SLOTS]), np.zeros(2 + SLOTS, np.int32))
    with pytest.raises(BadInput, match=f"has {SLOTS + 1} clicks"):
        _pooled().release(long, SeededSource(0))


@pytest.mark.parametrize(
    ("offsets", "items", "match"),
    [
        ([0, 2], [0], "offsets"),
        ([0, 2, 1, 2], [0, 0], "offsets"),
        ([0, 1], [5], "none of the 3"),
        ([0, 1], [-1], "none"),
    ],
)
def test_histories_that_do_not_fit_are_refused(offsets: list[int], items: list[int], match: str) -> None:
    with pytest.raises(BadInput, match=match):
        ClickHistories(np.zeros((3, 2)), np.array(offsets), np.array(items, np.int32))


def _mean(clicks: Doubles, taken: Bools) -> Doubles:
    return np.asarray((clicks * taken[..., np.newaxis]).sum(axis=1) / np.maximum(taken.sum(axis=1), 1)[:, np.newaxis])


def _padded(**options: Any) -> PaddedAttention:
    right: dict[str, Any] = {
        "encode": lambda history: _mean(history[np.newaxis], np.ones((1, len(history)), np.bool_))[0],
        "encode_many": _mean,
        "basis_vectors": 5.0 * np.eye(3, WIDTH),
        "pad": np.full(WIDTH, 0.5),
        "slots": SLOTS,
        "clip_norm": 1.0,
        "epsilon": 1.0,
        "delta": 1e-6,
        "pad_probability": 0.4,
    }
    return PaddedAttention(**right | options)


def test_padded_attention_of_many_devices_follows_the_law_of_one() -> None:
    """Means of 6,000 and 6,000 draws, 5 standard errors apart at most: once in a million runs and coordinate."""
    history = np.random.default_rng(4).normal(size=(SLOTS, WIDTH)) * 3.0
    mechanism = _padded(epsilon=30.0)
    same = Slots(np.broadcast_to(history, (6000, SLOTS, WIDTH)), np.ones((6000, SLOTS), np.bool_))
    many = mechanism.release(same, SeededSource(5)).value
    one = mechanism.release_many(history, 6000, SeededSource(6)).value
    error = 5.0 * np.sqrt((many.var(axis=0) + one.var(axis=0)) / 6000)
    assert (np.abs(many.mean(axis=0) - one.mean(axis=0)) < error).all()
    np.testing.assert_allclose(many.std(axis=0), one.std(axis=0), rtol=0.06)


def test_a_place_without_a_click_never_becomes_a_pad() -> None:
    seen: list[Doubles] = []

    def encode(clicks: Doubles, taken: Bools) -> Doubles:
        seen.append(clicks)
        return _mean(clicks, taken)

    vectors, taken = np.full((50, SLOTS, WIDTH), 7.0), np.zeros((50, SLOTS), np.bool_)
    taken[:, :3] = True
    _padded(encode_many=encode, pad_probability=0.9).release(Slots(vectors, taken), SeededSource(7))
    assert (seen[0][:, 3:] == 7.0).all()
    assert (seen[0][:, :3] == 0.5).all(axis=2).mean() > 0.7


def test_many_devices_need_an_encoder_of_many_and_the_right_shape() -> None:
    slots = Slots(np.zeros((2, SLOTS, WIDTH)), np.ones((2, SLOTS), np.bool_))
    with pytest.raises(BadInput, match="encode_many"):
        _padded(encode_many=None).release(slots, SeededSource(0))
    with pytest.raises(BadInput, match="shape"):
        _padded(slots=SLOTS + 1).release(slots, SeededSource(0))
    with pytest.raises(BadInput, match="one history"):
        _padded().release_many(slots, 3, SeededSource(0))
    with pytest.raises(BadInput, match="shape"):
        Slots(np.zeros((2, SLOTS, WIDTH)), np.ones((2, SLOTS + 1), np.bool_))
