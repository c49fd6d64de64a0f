"""Bounds and noise of messages: what is cut, what is added, and that sums of noise may be drawn at once."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from scipy.stats import ks_2samp

from veilrec.device.protection import NoisyMessage, Unprotected, WholeUpdateClip, fill
from veilrec.privacy.randomness import SeededSource
from veilrec.updates import Rows, Schema, Tensor, Uploads

SCHEMA = Schema((Tensor("items", (8, 3), True), Tensor("layer", (2, 5), False)))
FALSE_ALARM = 1e-4  # of each test of a distribution


def uploads(n: int = 4, seed: int = 0, size: float = 1.0) -> Uploads:
    generator = np.random.default_rng(seed)
    offsets = np.arange(n + 1, dtype=np.int64) * 2
    index = np.concatenate([generator.choice(8, 2, replace=False) for _ in range(n)]).astype(np.int32)
    values = size * generator.standard_normal((2 * n, 3)).astype(np.float32)
    dense = size * generator.standard_normal((n, 2, 5)).astype(np.float32)
    return Uploads(3, n, {"items": Rows(offsets, index, values)}, {"layer": dense})


def norms(message: Uploads) -> np.ndarray:
    rows = message.tables["items"]
    squares = np.add.reduceat((rows.values.astype(np.float64) ** 2).sum(axis=1), rows.offsets[:-1])
    return np.sqrt(squares + (message.dense["layer"].astype(np.float64) ** 2).sum(axis=(1, 2)))


def test_nothing_is_nothing() -> None:
    sent = uploads()
    protection = Unprotected()
    assert protection.bound(sent) is sent
    assert protection.perturb(sent, SCHEMA, SeededSource(1)) is sent
    assert protection.noise_of_sum(SCHEMA, 4, np.random.default_rng(0)) == {}
    assert protection.counted_parameters(SCHEMA["items"]) == 24


@pytest.mark.parametrize(
    "protection", [WholeUpdateClip(clip_norm=0.7), NoisyMessage(clip_norm=0.7, scale=1.0, clip="update")]
)
def test_one_bound_over_all_that_a_device_sends(protection: WholeUpdateClip | NoisyMessage) -> None:
    sent = uploads(size=3.0)
    bounded = protection.bound(sent)
    assert np.all(norms(sent) > 0.7)
    assert np.all(norms(bounded) <= 0.7)
    assert np.allclose(norms(bounded), 0.7, rtol=1e-5)
    small = uploads(size=0.01)
    assert np.array_equal(protection.bound(small).tables["items"].values, small.tables["items"].values)


def test_a_bound_on_every_row() -> None:
    sent = uploads(size=3.0)
    rows = NoisyMessage(clip_norm=0.5, scale=1.0).bound(sent).tables["items"].values
    expected = sent.tables["items"].values
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.allclose(rows, expected * np.minimum(1.0, 0.5 / lengths), rtol=1e-5)
    assert np.all(np.linalg.norm(expected, axis=1) > 0.5)  # and the sender's own copy was left alone


def test_a_filled_message_has_every_row_and_the_same_sum() -> None:
    sent = uploads()
    full = fill(sent, SCHEMA).tables["items"]
    assert np.array_equal(np.diff(full.offsets), np.full(4, 8))
    total = np.zeros((8, 3), np.float32)
    np.add.at(total, sent.tables["items"].index, sent.tables["items"].values)
    assert np.allclose(full.values.reshape(4, 8, 3).sum(axis=0), total, atol=1e-6)


class LikeARealDevice(SeededSource):
    """Repeatable words for the noise that protects."""

    protects = True


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("source", [SeededSource, LikeARealDevice])
def test_noise_of_the_sum_is_the_sum_of_the_noise(
    noise: Literal["laplace", "gaussian"], source: type[SeededSource]
) -> None:
    """Two-sample Kolmogorov-Smirnov, 20,000 draws each: fails by chance once in 10,000 runs."""
    wide = Schema((Tensor("items", (2000, 10), True),))
    protection = NoisyMessage(clip_norm=1.0, scale=0.3, noise=noise)
    nothing = Rows(np.zeros(6, np.int64), np.zeros(0, np.int32), np.zeros((0, 10), np.float32))
    each = protection.perturb(Uploads(0, 5, {"items": nothing}), wide, source(2))
    summed = each.tables["items"].values.reshape(5, -1).sum(axis=0)
    at_once = protection.noise_of_sum(wide, 5, np.random.default_rng(3))["items"].ravel()
    assert ks_2samp(summed, at_once).pvalue > FALSE_ALARM
    one_device_less = protection.noise_of_sum(wide, 4, np.random.default_rng(3))["items"].ravel()
    assert ks_2samp(summed, one_device_less).pvalue < FALSE_ALARM


def test_noise_goes_to_dense_tensors_and_entries_too() -> None:
    protection = NoisyMessage(clip_norm=1.0, scale=1.0, noise="gaussian", clip="update")
    entries = Rows(np.array([0, 1]), np.array([4], np.int32), np.zeros((1, 1), np.float32))
    quiet = Uploads(0, 1, {}, {"layer": np.zeros((1, 2, 5), np.float32)}, entries={"items": entries})
    noisy = protection.perturb(quiet, SCHEMA, SeededSource(4))
    assert np.all(noisy.dense["layer"] != 0.0)
    assert np.all(noisy.entries["items"].values != 0.0)
    assert "items" not in noisy.tables
    assert set(protection.noise_of_sum(SCHEMA, 3, np.random.default_rng(0))) == {"items", "layer"}
    assert protection.noise_of_sum(SCHEMA, 0, np.random.default_rng(0)) == {}
