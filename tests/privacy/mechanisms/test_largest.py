"""The largest entries: those that a sort would give, whatever the sizes, ties and threads."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec.core.arrays import Floats
from veilrec.core.schema import Rows
from veilrec.privacy.mechanisms.compression import largest_of_dense, largest_of_rows

ITEMS, WIDTH = 40, 5
LENGTHS = [7, 0, 40, 1, 23]


def packed(seed: int = 0) -> Rows:
    generator = np.random.default_rng(seed)
    index = np.concatenate([generator.choice(ITEMS, n, replace=False) for n in LENGTHS]).astype(np.int32)
    sizes = 10.0 ** generator.uniform(-44, 38, (len(index), WIDTH))  # from below the normal floats up
    values = (generator.choice([-1.0, 1.0], sizes.shape) * sizes).astype(np.float32)
    return Rows(np.concatenate([[0], np.cumsum(LENGTHS)]), index, values)


def first_largest(flat: Floats, count: int) -> list[int]:
    """By a stable sort: of equal sizes the first."""
    return sorted(np.argsort(-np.abs(flat), kind="stable")[:count].tolist())


@pytest.mark.parametrize("count", [1, 9, 35, 1000])
def test_rows_give_what_a_sort_gives(count: int) -> None:
    rows = packed()
    found = largest_of_rows(rows, count)
    assert np.diff(found.offsets).tolist() == [min(n * WIDTH, count) for n in LENGTHS]
    for device in range(len(LENGTHS)):
        mine = slice(rows.offsets[device], rows.offsets[device + 1])
        part = slice(found.offsets[device], found.offsets[device + 1])
        expected = np.array(first_largest(rows.values[mine].reshape(-1), count), np.int64)
        assert np.array_equal(found.values[part, 0], rows.values[mine].reshape(-1)[expected])
        assert np.array_equal(found.index[part], rows.index[mine][expected // WIDTH] * WIDTH + expected % WIDTH)


@pytest.mark.parametrize("count", [1, 6, 29, 30])
def test_dense_tensors_give_what_a_sort_gives(count: int) -> None:
    generator = np.random.default_rng(1)
    values = generator.integers(-4, 5, (3, 5, 6)).astype(np.float32)  # many ties, many zeros
    found = largest_of_dense(values, count)
    for device, flat in enumerate(values.reshape(3, -1)):
        part = slice(count * device, count * (device + 1))
        assert found.index[part].tolist() == first_largest(flat, count)
        assert np.array_equal(found.values[part, 0], flat[found.index[part]])


def test_a_view_of_a_larger_array_is_read_right() -> None:
    whole = np.random.default_rng(2).standard_normal((4, 30)).astype(np.float32)
    part, turned = (largest_of_dense(whole[:, 10:20], 3), largest_of_dense(np.asfortranarray(whole[:, 10:20]), 3))
    again = largest_of_dense(whole[:, 10:20].copy(), 3)
    assert part.index.tolist() == turned.index.tolist() == again.index.tolist()


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for threads in ("1", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        found.append(largest_of_rows(packed(), 9))
    assert np.array_equal(found[0].index, found[1].index)
    assert np.array_equal(found[0].values, found[1].values)


def test_what_is_no_number_counts_as_largest_so_that_it_is_noticed() -> None:
    values = np.array([[1.0, np.nan, -np.inf, 3.0]], np.float32)
    assert largest_of_dense(values, 2).index.tolist() == [1, 2]


def test_no_devices_and_devices_without_rows() -> None:
    nobody = Rows(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty((0, WIDTH), np.float32))
    idle = Rows(np.zeros(3, np.int64), nobody.index, nobody.values)
    assert largest_of_rows(nobody, 4).offsets.tolist() == [0]
    assert largest_of_rows(idle, 4).offsets.tolist() == [0, 0, 0]
