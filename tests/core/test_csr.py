import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from veilrec.core.csr import Csr, csr_from_pairs, offsets_of


def test_rows_lengths_and_row_numbers(packed):
    csr = packed([[3, 1], [], [4], [5, 9, 2]])
    assert len(csr) == 4
    assert [csr.row(r).tolist() for r in range(4)] == [[3, 1], [], [4], [5, 9, 2]]
    assert csr.lengths().tolist() == [2, 0, 1, 3]
    assert csr.row_numbers().tolist() == [0, 0, 2, 3, 3, 3]


def test_take_repeats_reorders_keeps_empty_rows_and_reads_a_memory_map(packed, tmp_path):
    taken = packed([[3, 1], [], [4]]).take(np.array([2, 1, 0, 2]))
    assert [taken.row(r).tolist() for r in range(4)] == [[4], [], [3, 1], [4]]
    assert taken.items.dtype == np.int32
    taken = packed([[3, 1]]).take(np.array([], np.int64))
    assert len(taken) == 0
    assert len(taken.items) == 0
    np.save(tmp_path / "items.npy", np.array([7, 8, 9], np.int32))
    np.save(tmp_path / "offsets.npy", np.array([0, 1, 3]))
    mapped = Csr(np.load(tmp_path / "offsets.npy", mmap_mode="r"), np.load(tmp_path / "items.npy", mmap_mode="r"))
    assert mapped.take(np.array([1, 0])).items.tolist() == [8, 9, 7]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 99)), max_size=60))
def test_pairs_keep_their_order_within_a_row(pairs):
    rows = np.array([row for row, _ in pairs], np.int64)
    items = np.array([item for _, item in pairs], np.int32)
    csr = csr_from_pairs(rows, items, 7)
    assert len(csr) == 7
    for r in range(7):
        assert csr.row(r).tolist() == [item for row, item in pairs if row == r]


def test_offsets_are_where_rows_begin():
    assert offsets_of([2, 0, 3]).tolist() == [0, 2, 2, 5]
    assert offsets_of([]).tolist() == [0]
    assert offsets_of(np.array([True, False, True])).tolist() == [0, 1, 1, 2]
    assert offsets_of(np.full(3, 2**31, np.uint32))[-1] == 3 * 2**31
