"""What a device learns from. The statistical tests have a false-alarm rate of one in a million each."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from veilrec import _draws
from veilrec._arrays import Floats, Indices
from veilrec.device.sampling import draw_epoch

ALMOST_NEVER = 1e-6
N_ITEMS = 50


def epochs(own: list[int], negatives: int, count: int, device: int = 0) -> tuple[Indices, Floats]:
    """Items and labels of some epochs: [count, examples]."""
    mine = np.array(own, np.int32)
    is_own = np.full(N_ITEMS, -1, np.int32)
    is_own[mine] = 3
    start = np.uint64(_draws.stream(1, _draws.LEARNING, 0, device))
    items = np.empty((count, len(own) * (1 + negatives)), np.int32)
    labels = np.empty(items.shape, np.float32)
    counter = 0
    for epoch in range(count):
        counter = draw_epoch(mine, is_own, 3, N_ITEMS, negatives, start, counter, items[epoch], labels[epoch])
    return items, labels


@pytest.mark.parametrize("own", [[7], [0, 49], list(range(0, 48)), list(range(0, 50, 2))])
def test_every_own_item_once_per_epoch_and_never_as_a_negative(own: list[int]) -> None:
    items, labels = epochs(own, 4, 30)
    for drawn, label in zip(items, labels, strict=True):
        assert sorted(drawn[label == 1.0]) == own
        assert np.array_equal(label, np.tile([1, 0, 0, 0, 0], len(own)).astype(np.float32))
        assert not np.isin(drawn[label == 0.0], own).any()


def test_negatives_are_uniform_over_all_other_items_the_held_out_one_included() -> None:
    own, held_out = [1, 2, 3, 5, 8, 13, 21], 34
    items, labels = epochs(own, 4, 1_000)
    counts = np.bincount(items[labels == 0.0], minlength=N_ITEMS)
    others = np.setdiff1d(np.arange(N_ITEMS), own)
    assert counts[own].sum() == 0
    assert stats.chisquare(counts[others]).pvalue > ALMOST_NEVER
    assert held_out in others
    alone = stats.binomtest(int(counts[held_out]), int(counts.sum()), 1 / len(others))
    assert alone.pvalue > ALMOST_NEVER


def test_the_order_of_own_items_is_uniform() -> None:
    items, labels = epochs([10, 20, 30], 1, 6_000)
    orders = [tuple(row) for row in items[labels == 1.0].reshape(6_000, 3)]
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > ALMOST_NEVER


def test_epochs_and_devices_differ() -> None:
    items, _ = epochs(list(range(10)), 4, 2)
    other, _ = epochs(list(range(10)), 4, 1, device=1)
    assert not np.array_equal(items[0], items[1])
    assert not np.array_equal(items[0], other[0])


def test_no_negatives_need_no_other_item() -> None:
    items, labels = epochs(list(range(N_ITEMS)), 0, 2)
    assert np.array_equal(np.sort(items, axis=1), np.tile(np.arange(N_ITEMS), (2, 1)))
    assert np.all(labels == 1.0)
