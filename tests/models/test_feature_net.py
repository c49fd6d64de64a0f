"""The feature network: where its tensors lie, and how it starts."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec.models.feature_net import FeatureNet

NET = FeatureNet((3, 4), 1, (5,), 2, embedding=6, hidden=(7, 8))


def test_tensors_and_the_flat_vector_are_the_same_numbers() -> None:
    assert NET.inputs == 3 * 6 + 3
    assert NET.tensors["layer1.weight"] == (21, 7)
    assert NET.size == 7 * 6 + 5 * 6 + 21 * 7 + 7 + 7 * 8 + 8 + 8 + 1
    flat = np.arange(NET.size, dtype=np.float32)
    assert np.array_equal(NET.flat(NET.named(flat)), flat)
    two = NET.named(np.stack([flat, -flat]))
    assert two["layer2.weight"].shape == (2, 7, 8)
    assert np.shares_memory(NET.named(flat)["layer3.bias"], flat)


def test_compiled_code_finds_every_code_in_the_first_layer() -> None:
    net = NET.net
    assert net.user_rows.tolist() == [0] * 3 + [6] * 4
    assert net.item_rows.tolist() == [13] * 5
    assert (net.user_number_row, net.item_number_row, net.item_start) == (12, 19, 42)


def test_the_start_is_that_of_the_seed_and_scores_can_start_at_their_offsets() -> None:
    first, again, other = (NET.start(seed) for seed in (1, 1, 2))
    for name, values in first.items():
        assert np.array_equal(values, again[name])
        assert name.endswith("bias") or not np.array_equal(values, other[name])
    zero = NET.start(1, zero_output=True)
    assert not zero["layer3.weight"].any()
    assert zero["layer2.weight"].any()
    wide = FeatureNet((), 0, (2000,), 0, embedding=50, hidden=(400,)).start(3, spread=0.2)
    assert wide["items.embedding"].std() == pytest.approx(0.2, rel=0.02)
    assert wide["layer1.weight"].std() == pytest.approx((2 / 50) ** 0.5, rel=0.03)


def test_a_linear_network_has_one_layer() -> None:
    net = FeatureNet((), 0, (), 4, embedding=0, hidden=())
    assert net.tensors == {"layer1.weight": (4, 1), "layer1.bias": (1,)}
