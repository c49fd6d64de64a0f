import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluation.toys import csr
from veilrec.evaluation.split import draw_unused, mark_some

Z = 5.0  # a standard normal number is beyond it once in 1.7 million draws


def test_draws_of_a_user_are_unused_items_and_depend_on_nobody_else():
    drawn = draw_unused(csr([[0, 3], [4, 2], []]), np.arange(3), 5, 3, seed=1, purpose=1)
    assert [sorted(row) for row in drawn.tolist()[:2]] == [[1, 2, 4], [0, 1, 3]]  # none is left over
    assert len(set(drawn[2].tolist())) == 3
    both = draw_unused(csr([[0, 1], [2]]), np.array([4, 9]), 50, 5, seed=1, purpose=1)
    alone, seeded, purposed = (
        draw_unused(csr([[2]]), np.array([9]), 50, 5, seed=seed, purpose=purpose)[0].tolist()
        for seed, purpose in ((1, 1), (2, 1), (1, 2))
    )
    assert both[1].tolist() == alone
    assert alone not in (seeded, purposed)


@given(st.sets(st.integers(0, 29), max_size=20), st.integers(0, 2**31), st.integers(1, 10))
def test_draws_are_distinct_and_unused(used, seed, count):
    drawn = draw_unused(csr([sorted(used, reverse=True)]), np.array([7]), 30, count, seed, purpose=1)[0].tolist()
    assert len(set(drawn)) == count
    assert not used & set(drawn)
    assert set(drawn) <= set(range(30))


def test_every_unused_item_is_drawn_equally_often():
    # 10 counts, each beyond Z once in 1.7 million: a false alarm in 170,000 seeds.
    n = 20_000
    used = csr([[1, 5, 11]] * n)
    drawn = draw_unused(used, np.arange(n), 13, 4, seed=3, purpose=1)
    counts = np.delete(np.bincount(drawn.ravel(), minlength=13), [1, 5, 11])
    assert np.abs(counts - n * 0.4).max() < Z * np.sqrt(n * 0.4 * 0.6)


def test_marks_as_many_entries_as_asked_each_equally_often():
    # 5 + 3 counts: a false alarm in 200,000 seeds.
    n = 20_000
    offsets = np.concatenate([[0], np.cumsum(np.tile([5, 3], n))]).astype(np.int64)
    marked = mark_some(offsets, np.tile([2, 1], n), seed=5, purpose=1).reshape(n, 8)
    for share, part in ((0.4, marked[:, :5]), (1 / 3, marked[:, 5:])):
        assert (part.sum(axis=1) == round(share * part.shape[1])).all()
        assert np.abs(part.sum(axis=0) - n * share).max() < Z * np.sqrt(n * share * (1 - share))
    marked = mark_some(np.array([0, 3, 3, 5]), np.array([0, 0, 2]), seed=1, purpose=1)
    assert marked.tolist() == [False, False, False, True, True]
