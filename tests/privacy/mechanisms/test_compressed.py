"""Compressed messages as published: what they keep is right, and what no noise covers is said."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.core.schema import ClientUpdates, RoundSpec, Rows, Schema, Tensor, to_vectors
from veilrec.privacy.events import NonPrivateEvent
from veilrec.privacy.mechanisms.compression import LargestEntries, LowRank, SentEntries, SparseDeep, low_rank
from veilrec.privacy.mechanisms.local import RowwiseLaplace, UpdateNoise
from veilrec.privacy.mechanisms.sums import UpdateMechanism
from veilrec.privacy.randomness import SeededSource
from veilrec.wire import messages

SCHEMA = Schema((Tensor("items", (12, 4), True), Tensor("near", (3, 4), False), Tensor("far", (5, 6), False)))
TABLE = Schema(SCHEMA.tensors[:1])
ABOUT = RoundSpec(5)


def uploads(schema: Schema = SCHEMA, n: int = 3, seed: int = 0) -> ClientUpdates:
    generator = np.random.default_rng(seed)
    index = np.concatenate([generator.choice(12, 7, replace=False) for _ in range(n)]).astype(np.int32)
    rows = Rows(np.arange(n + 1) * 7, index, generator.standard_normal((7 * n, 4)).astype(np.float32))
    dense = {t.name: generator.standard_normal((n, *t.shape)).astype(np.float32) for t in schema.dense}
    return ClientUpdates(5, n, {"items": rows}, dense)


def gaussian(clip_norm: float = 1.0) -> UpdateNoise:
    return UpdateNoise(schema=SCHEMA, clip_norm=clip_norm, epsilon=2.0, delta=1e-5, calibration="as-published")


def by_row() -> RowwiseLaplace:
    return RowwiseLaplace(schema=TABLE, clip_norm=1.0, epsilon=2.0, calibration="as-published")


def entries(n: int = 3) -> ClientUpdates:
    kept = Rows(np.arange(n + 1) * 2, np.tile(np.array([4, 9], np.int32), n), np.ones((2 * n, 1), np.float32))
    return ClientUpdates(5, n, entries={"far": kept})


@pytest.mark.parametrize(("size", "rank"), [((3, 12, 4), 1), ((3, 12, 4), 4), ((3, 400, 32), 16)])
def test_low_rank_is_the_truncated_singular_value_decomposition(size: tuple[int, ...], rank: int) -> None:
    tables = np.random.default_rng(1).laplace(size=size).astype(np.float32)
    for table, product in zip(tables, low_rank(tables, rank).product(), strict=True):
        left, scales, right = np.linalg.svd(table.astype(np.float64), full_matrices=False)
        best = (left[:, :rank] * scales[:rank]) @ right[:rank]
        assert np.linalg.norm(product - best) <= 1e-5 * np.linalg.norm(best)


def test_low_rank_of_nothing_is_nothing() -> None:
    factors = low_rank(np.zeros((2, 12, 4), np.float32), 2)
    assert np.all(factors.product() == 0.0)
    assert np.isfinite(factors.left).all()


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, float("nan")])
def test_a_share_of_nothing_or_more_than_all_is_refused(share: float) -> None:
    for make in (
        lambda: LargestEntries(by_row(), share=share),
        lambda: SentEntries(gaussian(), share=share),
        lambda: SparseDeep(gaussian(), share=share, deep=("far",)),
    ):
        with pytest.raises(BadInput, match="above 0 and at most 1"):
            make()


@pytest.mark.parametrize(
    ("mechanism", "schema"),
    [
        (LowRank(by_row(), rank=3), TABLE),
        (LargestEntries(by_row(), share=0.4), TABLE),
        (SparseDeep(gaussian(), share=0.25, deep=("far",)), SCHEMA),
    ],
)
def test_messages_survive_the_way_through_bytes(mechanism: UpdateMechanism, schema: Schema) -> None:
    sent = mechanism.message(uploads(schema), ABOUT, SeededSource(0)).value
    sizes = messages.sizes(sent, schema)
    for device in range(3):
        content = messages.encode_update(sent, schema, device)
        assert len(content) == sizes[device]
        got = messages.decode_update(content, schema, 5)
        assert np.array_equal(to_vectors(got, schema)[0], to_vectors(sent, schema)[device])


def test_deep_and_shallow_parts_are_clipped_by_themselves() -> None:
    mechanism = SparseDeep(gaussian(0.5), share=0.5, deep=("far",))
    bounded = mechanism.bound(uploads(), ABOUT)
    rows, far = bounded.tables["items"], bounded.entries["far"]
    for device in range(3):
        shallow = np.sum(rows.values[7 * device : 7 * device + 7] ** 2) + np.sum(bounded.dense["near"][device] ** 2)
        deep = np.sum(far.values[15 * device : 15 * device + 15] ** 2)
        assert np.sqrt([shallow, deep]) == pytest.approx([0.5, 0.5], rel=1e-4)
    assert set(mechanism.noise_of_messages(SCHEMA, np.ones(2), np.random.default_rng(0))) == {"items", "near"}
    each = mechanism.perturb_each(bounded, ABOUT, SeededSource(0))
    assert np.all(each.entries["far"].values != far.values)
    assert np.array_equal(each.tables["items"].values, rows.values)
    whole = mechanism.perturb(bounded, ABOUT, SeededSource(0))
    assert np.all(whole.dense["near"] != bounded.dense["near"])


def test_noise_goes_to_what_is_sent() -> None:
    sent = SentEntries(gaussian(), share=0.1).message(entries(), ABOUT, SeededSource(0)).value
    assert np.all(sent.entries["far"].values != entries().entries["far"].values)
    assert sent.entries["far"].index.tolist() == [4, 9] * 3
    largest = LargestEntries(by_row(), share=0.25)
    chosen = largest.message(uploads(TABLE), ABOUT, SeededSource(0)).value.entries["items"]
    assert np.diff(chosen.offsets).tolist() == [12, 12, 12]


def test_support_of_the_published_message_is_the_data_section_7() -> None:
    mechanism = LargestEntries.examples()[0]
    source = SeededSource(3)
    for value in mechanism.worst_pair():
        sent = mechanism.release(np.tile(value, (200, 1)), source).value != 0.0
        # A noisy entry is 0 with probability 4e-7 on the lattice.
        np.testing.assert_array_equal(sent, np.tile(value != 0.0, (200, 1)))
    assert mechanism.delta(100.0) == 1.0


def test_only_what_follows_the_noise_keeps_its_epsilon() -> None:
    assert LowRank(by_row(), rank=2).event() == by_row().event()
    for mechanism in (LargestEntries(by_row(), share=0.5), SentEntries(gaussian(), share=0.5)):
        assert mechanism.event() == NonPrivateEvent()


def test_numbers_are_counted_as_the_paper_counts() -> None:
    table = SCHEMA["items"]
    assert LowRank(by_row(), rank=2).counted_parameters(table, ABOUT) == 2 * (12 + 4 + 1)
    assert LargestEntries(by_row(), share=0.25).counted_parameters(table, ABOUT) == 12
    assert SentEntries(gaussian(), share=0.25).counted_parameters(table, ABOUT) == 12
    assert SparseDeep(gaussian(), share=0.25, deep=("far",)).counted_parameters(table, ABOUT) == 48
