"""Feature networks: what they read, where their tensors lie, and how they start."""

import numpy as np
import pytest

from tests.kernels.feature_reference import N_ITEMS, some_features
from veilrec.models.feature_net import FEWEST_VOTES, POPULARITY, FeatureNet, Inputs

NET = FeatureNet((3, 4), 1, (5,), 2, embedding=6, hidden=(7, 8))


def test_tensors_and_the_flat_vector_are_the_same_numbers():
    assert NET.inputs == 3 * 6 + 3 and NET.tensors["layer1.weight"] == (21, 7)
    assert NET.size == 7 * 6 + 5 * 6 + 21 * 7 + 7 + 7 * 8 + 8 + 8 + 1
    flat = np.arange(NET.size, dtype=np.float32)
    assert np.array_equal(NET.flat(NET.named(flat)), flat)
    two = NET.named(np.stack([flat, -flat]))
    assert two["layer2.weight"].shape == (2, 7, 8) and np.shares_memory(NET.named(flat)["layer3.bias"], flat)


def test_compiled_code_finds_every_code_in_the_first_layer():
    net = NET.net
    assert net.user_rows.tolist() == [0] * 3 + [6] * 4 and net.item_rows.tolist() == [13] * 5
    assert (net.user_number_row, net.item_number_row, net.item_start) == (12, 19, 42)


def test_the_start_is_that_of_the_seed_and_scores_can_start_at_their_offsets():
    first, again, other = (NET.start(seed) for seed in (1, 1, 2))
    for name, values in first.items():
        assert np.array_equal(values, again[name])
        assert name.endswith("bias") or not np.array_equal(values, other[name])
    zero = NET.start(1, zero_output=True)
    assert not zero["layer3.weight"].any() and zero["layer2.weight"].any()
    wide = FeatureNet((), 0, (2000,), 0, embedding=50, hidden=(400,)).start(3, spread=0.2)
    assert wide["items.embedding"].std() == pytest.approx(0.2, rel=0.02)
    assert wide["layer1.weight"].std() == pytest.approx((2 / 50) ** 0.5, rel=0.03)


def test_a_linear_network_has_one_layer():
    net = FeatureNet((), 0, (), 4, embedding=0, hidden=())
    assert net.tensors == {"layer1.weight": (4, 1), "layer1.bias": (1,)}


def inputs(embedding=3, *, popularity=True):
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
def test_popularity_is_finite_whatever_the_votes(votes):
    made = inputs()
    items = made.of_items({POPULARITY: votes.astype(np.float32).reshape(-1, 1)})
    of_popularity = items.numbers[:, -3:]
    assert np.isfinite(items.offsets).all() and np.isfinite(items.numbers).all() and of_popularity.min() >= 0.0
    assert of_popularity.max() <= 1.0 + 1e-6 and items.numbers.shape[1] == made.net(()).item_numbers
    assert items.offsets.dtype == items.numbers.dtype == np.float32


def test_offsets_are_logarithms_and_numbers_say_how_far_above():
    votes = np.full(N_ITEMS, -4.0, np.float32)
    votes[[1, 2]] = FEWEST_VOTES * np.e**2, FEWEST_VOTES * np.e**4
    items = inputs().of_items({POPULARITY: votes.reshape(-1, 1)})
    np.testing.assert_allclose(items.offsets[:3] - np.log(FEWEST_VOTES), [0.0, 2.0, 4.0], atol=1e-6)
    np.testing.assert_allclose(items.numbers[:3, -3:], [[0, 0, 0], [0.5, 0, 0], [1, 1, 1]], atol=1e-6)


def test_without_embeddings_codes_are_ones_and_zeros():
    features = some_features(4)
    embedded, plain = inputs(popularity=False), inputs(0, popularity=False)
    codes, numbers = embedded.of_people(features.users)
    none, ones = plain.of_people(features.users)
    assert none.shape == (4, 0)
    for row in range(4):
        assert set(np.flatnonzero(ones[row, :-1]).tolist()) == set(codes[row].tolist()) - {-1}
    np.testing.assert_array_equal(ones[:, -1:], numbers)
    items = plain.of_items({})
    assert items.numbers.shape == (N_ITEMS, plain.net(()).item_numbers) and not items.offsets.any()


def test_a_network_of_nobodys_features_has_no_table_for_people():
    features = some_features(4)
    nobody = features.users.select([])
    net = Inputs(nobody.take(np.zeros(0, np.int64)), features.items, 3, popularity=False).net((5,))
    assert "users.embedding" not in net.tensors and net.inputs == 2 * 3 + 2
