from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from veilrec.errors import BadInput
from veilrec.privacy.mechanisms.sparsify import MaskedUpdate, TopKUpdate, expanded, random_coordinates
from veilrec.privacy.randomness import SeededSource


def test_both_sides_draw_the_same_coordinates() -> None:
    first = random_coordinates(100, 10, public_seed=7, round_number=3)
    np.testing.assert_array_equal(first, random_coordinates(100, 10, public_seed=7, round_number=3))
    assert len(np.unique(first)) == 10
    assert (first != random_coordinates(100, 10, public_seed=7, round_number=4)).any()


def test_random_coordinates_scaled_up_are_unbiased() -> None:
    update = np.random.default_rng(1).normal(size=12)
    total = np.zeros(12)
    for round_number in range(4000):
        kept = random_coordinates(12, 3, public_seed=1, round_number=round_number)
        total += expanded(update[kept], kept, 12, unbiased=True)
    # Each entry is 4 x with probability 1/4: a standard deviation of sqrt 3 |x|; 5 of them.
    np.testing.assert_allclose(total / 4000, update, atol=5.0 * np.sqrt(3.0 / 4000) * np.abs(update).max())


def test_a_chosen_mask_is_not_scaled() -> None:
    np.testing.assert_array_equal(expanded(np.array([1.0, 2.0]), np.array([0, 3]), 4, unbiased=False), [1, 0, 0, 2])


def test_support_of_the_message_does_not_depend_on_the_data_section_7() -> None:
    mechanism = MaskedUpdate.examples()[0]
    first, second = mechanism.worst_pair()
    shapes = {mechanism.release(value, SeededSource(2)).value.shape for value in (first, second, 0 * first)}
    assert shapes == {(4,)}


def test_support_of_the_published_message_is_the_data_section_7() -> None:
    mechanism = TopKUpdate.examples()[0]
    source = SeededSource(3)
    for value in mechanism.worst_pair():
        sent = mechanism.release(np.tile(value, (200, 1)), source).value != 0.0
        # A noisy entry is 0 with probability 4e-7 on the lattice.
        np.testing.assert_array_equal(sent, np.tile(value != 0.0, (200, 1)))
    assert mechanism.delta(100.0) == 1.0


def test_noise_goes_to_the_kept_coordinates_only() -> None:
    mechanism = MaskedUpdate.examples()[0]
    assert mechanism.release(np.zeros((5, 16)), SeededSource(4)).value.shape == (5, 4)
    # k sigma^2 instead of d sigma^2: sigma itself is that of a whole update
    full = MaskedUpdate(dimension=16, coordinates=np.arange(16), clip_norm=1.0, epsilon=2.0, delta=1e-6)
    assert full.sigma == pytest.approx(mechanism.sigma)


@pytest.mark.parametrize("coordinates", [[], [1, 1], [16], [-1], [0.5]])
def test_bad_masks_are_refused(coordinates: list[Any]) -> None:
    with pytest.raises(BadInput, match="coordinates"):
        MaskedUpdate(dimension=16, coordinates=coordinates, clip_norm=1.0, epsilon=2.0, delta=1e-6)


def test_more_than_everything_cannot_be_kept() -> None:
    with pytest.raises(BadInput, match="kept"):
        random_coordinates(3, 4, public_seed=1, round_number=1)
    with pytest.raises(BadInput, match="kept"):
        TopKUpdate(dimension=3, kept=4, clip_norm=1.0, noise_multiplier=1.0, epsilon=1.0)
