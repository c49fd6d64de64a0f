"""Compressed messages as published: what they keep is right, and what no noise covers is said."""

import numpy as np
import pytest

from tests.privacy.mechanisms.test_sums import ABOUT, SCHEMA, updates
from veilrec.core.errors import BadInput
from veilrec.core.schema import ClientUpdates, Rows, Schema, to_vectors
from veilrec.privacy.mechanisms import compression
from veilrec.privacy.mechanisms.compression import LargestEntries, LowRank, SentEntries, SparseDeep
from veilrec.privacy.mechanisms.local import RowwiseLaplace, UpdateNoise
from veilrec.privacy.randomness import SeededSource
from veilrec.wire import messages

TABLE = Schema(SCHEMA.tensors[:1])


def gaussian(clip_norm=1.0):
    return UpdateNoise(schema=SCHEMA, clip_norm=clip_norm, epsilon=2.0, delta=1e-5, calibration="as-published")


def by_row():
    return RowwiseLaplace(schema=TABLE, clip_norm=1.0, epsilon=2.0, calibration="as-published")


def entries(n=3):
    kept = Rows(np.arange(n + 1) * 2, np.tile(np.array([4, 9], np.int32), n), np.ones((2 * n, 1), np.float32))
    return ClientUpdates(5, n, entries={"far": kept})


@pytest.mark.parametrize(("size", "rank"), [((3, 12, 4), 1), ((3, 12, 4), 4), ((3, 400, 32), 16)])
def test_low_rank_is_the_truncated_singular_value_decomposition(size, rank):
    tables = np.random.default_rng(1).laplace(size=size).astype(np.float32)
    for table, product in zip(tables, compression.low_rank(tables, rank).product(), strict=True):
        left, scales, right = np.linalg.svd(table.astype(np.float64), full_matrices=False)
        best = (left[:, :rank] * scales[:rank]) @ right[:rank]
        assert np.linalg.norm(product - best) <= 1e-5 * np.linalg.norm(best)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, float("nan")])
def test_a_share_of_nothing_or_more_than_all_is_refused(share):
    for make in (
        lambda: LargestEntries(by_row(), share=share),
        lambda: SentEntries(gaussian(), share=share),
        lambda: SparseDeep(gaussian(), share=share, deep=("far",)),
    ):
        with pytest.raises(BadInput, match="above 0 and at most 1"):
            make()


def test_messages_survive_the_way_through_bytes():
    for mechanism, schema in [
        (LowRank(by_row(), rank=3), TABLE),
        (LargestEntries(by_row(), share=0.4), TABLE),
        (SparseDeep(gaussian(), share=0.25, deep=("far",)), SCHEMA),
    ]:
        sent = mechanism.message(updates(schema), ABOUT, SeededSource(0)).value
        sizes = messages.sizes(sent, schema)
        for client in range(3):
            content = messages.encode_update(sent, schema, client)
            assert len(content) == sizes[client], mechanism.name
            got = messages.decode_update(content, schema, 5)
            assert np.array_equal(to_vectors(got, schema)[0], to_vectors(sent, schema)[client])


def test_deep_and_shallow_parts_are_clipped_by_themselves():
    mechanism = SparseDeep(gaussian(0.5), share=0.5, deep=("far",))
    bounded = mechanism.bound(updates(), ABOUT)
    rows, far = bounded.tables["items"], bounded.entries["far"]
    for client in range(3):
        shallow = np.sum(rows.values[7 * client : 7 * client + 7] ** 2) + np.sum(bounded.dense["near"][client] ** 2)
        deep = np.sum(far.values[15 * client : 15 * client + 15] ** 2)
        assert np.sqrt([shallow, deep]) == pytest.approx([0.5, 0.5], rel=1e-4)
    assert set(mechanism.noise_of_messages(SCHEMA, np.ones(2), np.random.default_rng(0))) == {"items", "near"}
    each = mechanism.perturb_each(bounded, ABOUT, SeededSource(0))
    assert np.all(each.entries["far"].values != far.values)
    assert np.array_equal(each.tables["items"].values, rows.values)
    whole = mechanism.perturb(bounded, ABOUT, SeededSource(0))
    assert np.all(whole.dense["near"] != bounded.dense["near"])


def test_noise_goes_to_what_is_sent():
    sent = SentEntries(gaussian(), share=0.1).message(entries(), ABOUT, SeededSource(0)).value
    assert np.all(sent.entries["far"].values != entries().entries["far"].values)
    assert sent.entries["far"].index.tolist() == [4, 9] * 3
    largest = LargestEntries(by_row(), share=0.25)
    chosen = largest.message(updates(TABLE), ABOUT, SeededSource(0)).value.entries["items"]
    assert np.diff(chosen.offsets).tolist() == [12, 12, 12]


ITEMS, WIDTH = 40, 5
LENGTHS = [7, 0, 40, 1, 23]


def some_rows(seed=0):
    generator = np.random.default_rng(seed)
    index = np.concatenate([generator.choice(ITEMS, n, replace=False) for n in LENGTHS]).astype(np.int32)
    sizes = 10.0 ** generator.uniform(-44, 38, (len(index), WIDTH))  # from below the normal floats up
    values = (generator.choice([-1.0, 1.0], sizes.shape) * sizes).astype(np.float32)
    return Rows(np.concatenate([[0], np.cumsum(LENGTHS)]), index, values)


def first_largest(flat, count):
    """By a stable sort: of equal sizes the first."""
    return sorted(np.argsort(-np.abs(flat), kind="stable")[:count].tolist())


@pytest.mark.parametrize("count", [1, 9, 35, 1000])
def test_rows_give_what_a_sort_gives(count):
    rows = some_rows()
    found = compression.largest_of_rows(rows, count)
    assert np.diff(found.offsets).tolist() == [min(n * WIDTH, count) for n in LENGTHS]
    for client in range(len(LENGTHS)):
        mine = slice(rows.offsets[client], rows.offsets[client + 1])
        part = slice(found.offsets[client], found.offsets[client + 1])
        expected = np.array(first_largest(rows.values[mine].reshape(-1), count), np.int64)
        assert np.array_equal(found.values[part, 0], rows.values[mine].reshape(-1)[expected])
        assert np.array_equal(found.index[part], rows.index[mine][expected // WIDTH] * WIDTH + expected % WIDTH)


@pytest.mark.parametrize("count", [1, 6, 29, 30])
def test_dense_tensors_give_what_a_sort_gives(count):
    generator = np.random.default_rng(1)
    values = generator.integers(-4, 5, (3, 5, 6)).astype(np.float32)  # many ties, many zeros
    found = compression.largest_of_dense(values, count)
    for client, flat in enumerate(values.reshape(3, -1)):
        part = slice(count * client, count * (client + 1))
        assert found.index[part].tolist() == first_largest(flat, count)
        assert np.array_equal(found.values[part, 0], flat[found.index[part]])


def test_largest_entries_of_nobody_of_no_number_and_by_threads(monkeypatch):
    found = []
    for threads in ("1", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        found.append(compression.largest_of_rows(some_rows(), 9))
    assert np.array_equal(found[0].index, found[1].index)
    assert np.array_equal(found[0].values, found[1].values)
    values = np.array([[1.0, np.nan, -np.inf, 3.0]], np.float32)
    assert compression.largest_of_dense(values, 2).index.tolist() == [1, 2]
    nobody = Rows(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty((0, WIDTH), np.float32))
    idle = Rows(np.zeros(3, np.int64), nobody.index, nobody.values)
    assert compression.largest_of_rows(nobody, 4).offsets.tolist() == [0]
    assert compression.largest_of_rows(idle, 4).offsets.tolist() == [0, 0, 0]


def test_the_largest_entries_are_those_of_the_noisy_message_or_of_the_raw_one():
    sent = updates(TABLE)
    raw = to_vectors(by_row().bound(sent, ABOUT), TABLE)
    for noise, chooses in (("first", lambda full: full), ("last", lambda full: raw)):
        mechanism = LargestEntries(by_row(), share=0.25, noise=noise)
        got = to_vectors(mechanism.perturb_each(mechanism.bound(sent, ABOUT), ABOUT, SeededSource(3)), TABLE)
        full = to_vectors(by_row().perturb(by_row().bound(sent, ABOUT), ABOUT, SeededSource(3)), TABLE)
        count = (got[0] != 0.0).sum()
        for client in range(3):
            least = np.sort(np.abs(chooses(full)[client]))[-count]
            kept = np.abs(chooses(full)[client]) >= least
            assert count == 12 and np.array_equal(got[client] != 0.0, kept)
    noisy = LargestEntries(by_row(), share=0.25, noise="first")
    assert noisy.event() == by_row().event()
