from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from veilrec.core import csr
from veilrec.core.csr import Csr, csr_from_pairs, offsets_of


def test_rows_lengths_and_row_numbers(packed) -> None:
    rows = packed([[3, 1], [], [4], [5, 9, 2]])
    assert len(rows) == 4
    assert [rows.row(r).tolist() for r in range(4)] == [[3, 1], [], [4], [5, 9, 2]]
    assert rows.lengths().tolist() == [2, 0, 1, 3]
    assert rows.row_numbers().tolist() == [0, 0, 2, 3, 3, 3]


def test_take_repeats_reorders_and_keeps_empty_rows(packed) -> None:
    taken = packed([[3, 1], [], [4]]).take(np.array([2, 1, 0, 2]))
    assert [taken.row(r).tolist() for r in range(4)] == [[4], [], [3, 1], [4]]
    assert taken.items.dtype == np.int32


def test_take_reads_a_memory_mapped_population(tmp_path: Path) -> None:
    np.save(tmp_path / "items.npy", np.array([7, 8, 9], np.int32))
    np.save(tmp_path / "offsets.npy", np.array([0, 1, 3]))
    mapped = Csr(np.load(tmp_path / "offsets.npy", mmap_mode="r"), np.load(tmp_path / "items.npy", mmap_mode="r"))
    assert mapped.take(np.array([1, 0])).items.tolist() == [8, 9, 7]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 99)), max_size=60))
def test_pairs_keep_their_order_within_a_row(pairs: list[tuple[int, int]]) -> None:
    rows = np.array([row for row, _ in pairs], np.int64)
    items = np.array([item for _, item in pairs], np.int32)
    made = csr_from_pairs(rows, items, 7)
    assert len(made) == 7
    for r in range(7):
        assert made.row(r).tolist() == [item for row, item in pairs if row == r]


def test_repeats_offsets_and_packing(packed) -> None:
    assert not packed([[3, 1], [], [3, 1], [0]]).has_repeats()
    assert packed([[0], [3, 1, 3]]).has_repeats()
    assert not packed([[], []]).has_repeats()
    assert offsets_of([]).tolist() == [0]
    assert offsets_of(np.array([True, False, True])).tolist() == [0, 1, 1, 2]
    assert offsets_of(np.full(3, 2**31, np.uint32))[-1] == 3 * 2**31
    made = csr.packed([[], np.array([5, 2]), [7]])
    assert (made.offsets.tolist(), made.items.tolist(), made.items.dtype) == ([0, 0, 2, 3], [5, 2, 7], np.int32)
    assert len(csr.packed([])) == 0
