"""The inner loops against plain references. The statistical tests have a false-alarm rate of one in a million each."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from veilrec.core import rng
from veilrec.kernels import loops

ALMOST_NEVER = 1e-6
N_ITEMS = 50
SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 101]


def epochs(own, negatives, count, client=0):
    """Items and labels of some epochs: [count, examples]."""
    mine = np.array(own, np.int32)
    is_own = np.full(N_ITEMS, -1, np.int32)
    is_own[mine] = 3
    start = np.uint64(rng.stream(1, rng.LEARNING, 0, client))
    items = np.empty((count, len(own) * (1 + negatives)), np.int32)
    labels = np.empty(items.shape, np.float32)
    counter = 0
    for epoch in range(count):
        counter = loops.draw_epoch(mine, is_own, 3, N_ITEMS, negatives, start, counter, items[epoch], labels[epoch])
    return items, labels


@pytest.mark.parametrize("own", [[7], [0, 49], list(range(0, 48)), list(range(0, 50, 2))])
def test_every_own_item_once_per_epoch_and_never_as_a_negative(own):
    items, labels = epochs(own, 4, 30)
    for drawn, label in zip(items, labels, strict=True):
        assert sorted(drawn[label == 1.0]) == own
        assert np.array_equal(label, np.tile([1, 0, 0, 0, 0], len(own)).astype(np.float32))
        assert not np.isin(drawn[label == 0.0], own).any()


def test_negatives_are_uniform_over_all_other_items_the_held_out_one_included():
    own, held_out = [1, 2, 3, 5, 8, 13, 21], 34
    items, labels = epochs(own, 4, 1_000)
    counts = np.bincount(items[labels == 0.0], minlength=N_ITEMS)
    others = np.setdiff1d(np.arange(N_ITEMS), own)
    assert counts[own].sum() == 0 and stats.chisquare(counts[others]).pvalue > ALMOST_NEVER and held_out in others
    alone = stats.binomtest(int(counts[held_out]), int(counts.sum()), 1 / len(others))
    assert alone.pvalue > ALMOST_NEVER


def test_the_order_of_own_items_is_uniform():
    items, labels = epochs([10, 20, 30], 1, 6_000)
    orders = [tuple(row) for row in items[labels == 1.0].reshape(6_000, 3)]
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 6 and stats.chisquare(counts).pvalue > ALMOST_NEVER


def sigmoids_of(values):
    result = values.astype(np.float32)
    loops.sigmoids(result, len(result), np.empty(len(result), np.int32))
    return result


def test_sigmoids_to_four_units_in_the_last_place():
    x = np.linspace(-87.0, 87.0, 400_001).astype(np.float32)
    exact = expit(x.astype(np.float64))
    assert np.max(np.abs(sigmoids_of(x) / exact - 1.0)) < 4 * np.finfo(np.float32).eps


def test_sigmoids_are_flat_but_finite_beyond_87():
    below, above = np.array([-1e30, -1000.0, -100.0, -88.0]), np.array([88.0, 100.0, 1000.0, 1e30])
    assert np.max(np.abs(sigmoids_of(below) - expit(below))) < 2e-38
    assert np.max(np.abs(sigmoids_of(above) - expit(above))) <= np.finfo(np.float32).eps


def test_sigmoids_touch_only_the_first_values():
    values = np.full(6, 3.0, np.float32)
    loops.sigmoids(values, 4, np.empty(6, np.int32))
    assert values[4:].tolist() == [3.0, 3.0] and np.allclose(values[:4], expit(3.0))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dim", [1, 3, 8, 33])
def test_row_dots_and_scaled_rows_for_every_remainder(size, dim):
    generator = np.random.default_rng(size * 100 + dim)
    rows = generator.standard_normal((20, dim)).astype(np.float32)
    vector = generator.standard_normal(dim).astype(np.float32)
    scales = generator.standard_normal(size).astype(np.float32)
    slots = generator.integers(0, 20, size).astype(np.int32)
    exact = rows.astype(np.float64)[slots]

    dots = np.full(size + 1, 7.0, np.float32)
    loops.row_dots(rows, slots, vector, dots)
    assert np.allclose(dots[:size], exact @ vector, rtol=1e-5, atol=1e-5) and dots[size] == 7.0

    total = vector.copy()
    loops.add_scaled_rows(rows, slots, scales, total)
    assert np.allclose(total, vector + scales.astype(np.float64) @ exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_inner_product_and_add_scaled(size):
    left, right = np.random.default_rng(size).standard_normal((2, size)).astype(np.float32)
    assert loops.inner_product(left, right) == pytest.approx(left.astype(np.float64) @ right, rel=1e-5, abs=1e-5)
    exact = left + 0.3 * right.astype(np.float64)
    loops.add_scaled(left, right, np.float32(0.3))
    assert np.allclose(left, exact, rtol=1e-6, atol=1e-6)


def test_mean_logistic_loss():
    scores = np.array([-3.0, 0.5, 2.0, 4.0])
    labels = np.array([0.0, 1.0, 0.0, 1.0])
    exact = np.mean(np.logaddexp(0.0, -(2.0 * labels - 1.0) * scores))
    errors = (expit(scores) - labels).astype(np.float32)
    assert (
        loops.mean_logistic_loss(errors) == pytest.approx(exact, rel=1e-5)
        and loops.mean_logistic_loss(errors[:0]) == 0.0
    )
    assert np.isfinite(loops.mean_logistic_loss(np.array([1.0, -1.0], np.float32)))
