"""Labels of impressions of any length: told as often as the mechanism of each length says."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec.privacy.mechanisms.attention import PaddedNoise
from veilrec.privacy.mechanisms.responses import LabelPermutation, LabelPerturbation, LabelResponse
from veilrec.privacy.randomness import SeededSource

ITEMS = np.tile(np.array([2, 5, 9], np.int64), 4000)


@pytest.mark.parametrize("way", [LabelPermutation, LabelResponse])
def test_every_length_lies_as_often_as_its_own_mechanism(way: type[LabelPermutation] | type[LabelResponse]) -> None:
    labels = LabelPerturbation(way, negatives=4, epsilon=1.5)
    clicks = np.ones(len(ITEMS), np.int64)
    told = labels.release(clicks, ITEMS, SeededSource(3))
    assert told.shape == (len(ITEMS), 5)
    for items in (2, 5, 9):
        rows = told[items == ITEMS]
        alone = labels.of(items).release(np.ones(4000, np.int64), SeededSource(4)).value
        kept, wanted = (rows[:, 0] == 1).mean(), (alone.label == 1).mean()
        assert kept == pytest.approx(wanted, abs=0.06)  # 4,000 coins each: five standard errors
        real = min(5, items)
        assert (rows[:, :real] >= 0).all()
        assert (rows[:, :real] < items).all()
        assert (rows[:, real:] == -1).all()
        assert all(len(set(row[:real])) == real for row in rows[:50].tolist())


def test_responses_do_not_always_hold_the_click() -> None:
    clicks, items = np.zeros(500, np.int64), np.full(500, 30, np.int64)
    first = LabelPerturbation(LabelResponse, negatives=2, epsilon=0.1).release(clicks, items, SeededSource(1))
    around = LabelPerturbation(LabelPermutation, negatives=2, epsilon=0.1).release(clicks, items, SeededSource(1))
    assert (around == 0).any(1).all()
    assert not (first == 0).any(1).all()


def test_masks_and_scale_of_padded_noise_are_the_papers() -> None:
    noise = PaddedNoise(
        basis=5, clip_norm=1.0, epsilon=1.0, delta=0.0, pad_probability=0.5, noise="laplace", calibration="as-published"
    )
    assert noise.scale == pytest.approx(0.671195, rel=1e-5)  # 1 / log((e - 0.5) / 0.5)
    masks = noise.masks((200, 50), SeededSource(2))
    assert masks.mean() == pytest.approx(0.5, abs=0.025)  # 10,000 coins: five standard errors
    plain = np.full((3, 5), 0.2)
    assert np.abs(noise.add(plain, SeededSource(5)) - plain).max() > 0.0


def test_attention_is_clipped_before_the_noise() -> None:
    noise = PaddedNoise(
        basis=5, clip_norm=0.4, epsilon=1.0, delta=0.0, pad_probability=0.0, noise="laplace", calibration="proven"
    )
    assert np.linalg.norm(noise.clipped(np.eye(5)), axis=1) == pytest.approx(0.4, rel=1e-6)
    # Noise of mean 0 and scale 1.26 on 20,000 vectors: the mean is off by more than 0.09 less than once in 10^6
    released = noise.add(np.tile(np.eye(5)[:1], (20_000, 1)), SeededSource(1))
    assert released[:, 0].mean() == pytest.approx(0.4, abs=0.09)
