"""What a feature network reads: popularity that is finite whatever the votes, and codes as ones and zeros."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.feature_reference import N_ITEMS, some_features
from veilrec.models.feature_net import FEWEST_VOTES, POPULARITY, Inputs


def inputs(embedding: int = 3, *, popularity: bool = True) -> Inputs:
    features = some_features(4)
    return Inputs(features.users.take(np.zeros(0, np.int64)), features.items, embedding, popularity)


@pytest.mark.parametrize(
    "votes",
    [
        np.zeros(N_ITEMS),
        np.full(N_ITEMS, 7.0),
        np.linspace(-50.0, 0.0, N_ITEMS),
        np.linspace(-1e30, 1e38, N_ITEMS),
        np.full(N_ITEMS, 3e38),
        np.where(np.arange(N_ITEMS) == 3, 1e-30, 0.0),
    ],
    ids=["none", "all alike", "noise below zero", "huge", "as large as can be", "next to nothing"],
)
def test_popularity_is_finite_whatever_the_votes(votes: np.ndarray) -> None:
    made = inputs()
    items = made.of_items({POPULARITY: votes.astype(np.float32).reshape(-1, 1)})
    of_popularity = items.numbers[:, -3:]
    assert np.isfinite(items.offsets).all()
    assert np.isfinite(items.numbers).all()
    assert of_popularity.min() >= 0.0
    assert of_popularity.max() <= 1.0 + 1e-6
    assert items.numbers.shape[1] == made.net(()).item_numbers
    assert items.offsets.dtype == items.numbers.dtype == np.float32


def test_offsets_are_logarithms_and_numbers_say_how_far_above() -> None:
    votes = np.full(N_ITEMS, -4.0, np.float32)
    votes[[1, 2]] = FEWEST_VOTES * np.e**2, FEWEST_VOTES * np.e**4
    items = inputs().of_items({POPULARITY: votes.reshape(-1, 1)})
    np.testing.assert_allclose(items.offsets[:3] - np.log(FEWEST_VOTES), [0.0, 2.0, 4.0], atol=1e-6)
    np.testing.assert_allclose(items.numbers[:3, -3:], [[0, 0, 0], [0.5, 0, 0], [1, 1, 1]], atol=1e-6)


def test_without_embeddings_codes_are_ones_and_zeros() -> None:
    features = some_features(4)
    embedded, plain = inputs(popularity=False), inputs(0, popularity=False)
    codes, numbers = embedded.of_people(features.users)
    none, ones = plain.of_people(features.users)
    assert none.shape == (4, 0)
    for row in range(4):
        assert set(np.flatnonzero(ones[row, :-1]).tolist()) == set(codes[row].tolist()) - {-1}
    np.testing.assert_array_equal(ones[:, -1:], numbers)
    items = plain.of_items({})
    assert items.numbers.shape == (N_ITEMS, plain.net(()).item_numbers)
    assert not items.offsets.any()


def test_a_network_of_nobodys_features_has_no_table_for_people() -> None:
    features = some_features(4)
    nobody = features.users.select([])
    net = Inputs(nobody.take(np.zeros(0, np.int64)), features.items, 3, popularity=False).net((5,))
    assert "users.embedding" not in net.tensors
    assert net.inputs == 2 * 3 + 2
