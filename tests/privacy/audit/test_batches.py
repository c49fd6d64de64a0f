"""A batch of one is a release, bit for bit, and batches are independent draws of the same law."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec.privacy.audit.batches import adaptive_batch, batch, cohort_batch, padded_batch, pooled_batch
from veilrec.privacy.mechanisms import mechanism_class
from veilrec.privacy.mechanisms.attention import PaddedAttention
from veilrec.privacy.randomness import SeededSource

RESTATED = {"padded-attention": padded_batch, "pooled-interest": pooled_batch, "cohort-sum": cohort_batch}
CASES = [(make, example) for name, make in RESTATED.items() for example in mechanism_class(name).examples()]


def two_slots() -> PaddedAttention:
    return PaddedAttention(
        encode=lambda history: history.mean(axis=0),
        basis_vectors=np.eye(3),
        pad=np.zeros(3),
        slots=2,
        clip_norm=0.5,
        epsilon=1.0,
        delta=1e-6,
        pad_probability=0.3,
    )


@pytest.mark.parametrize(("make", "mechanism"), [*CASES, (padded_batch, two_slots())])
def test_a_batch_of_one_is_a_release(make, mechanism) -> None:
    pair = mechanism.worst_pair()
    for side in (0, 1):
        for seed in range(40):  # enough that every mask and cohort of these small cases turns up
            released = mechanism.release(pair[side], SeededSource(seed, side)).value
            restated = make(mechanism)(side, 1, SeededSource(seed, side))
            assert np.array_equal(restated, released[np.newaxis])


def test_an_adaptive_batch_of_one_is_a_round() -> None:
    (mechanism,) = mechanism_class("adaptive-sum").examples()
    pair = mechanism.worst_pair()
    for side in (0, 1):
        for seed in range(40):
            released = mechanism.release(pair[side], SeededSource(seed, side)).value
            restated = adaptive_batch(mechanism)(side, 1, SeededSource(seed, side))[0]
            assert np.array_equal(restated, np.append(released.total, released.unclipped_fraction))


def test_a_batch_has_different_noise_in_every_row() -> None:
    (mechanism, *_) = mechanism_class("update-noise").examples()
    messages = batch(mechanism)(0, 500, SeededSource(1))
    assert messages.shape == (500, 16)
    assert len(np.unique(messages, axis=0)) == 500
