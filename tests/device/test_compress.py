"""Compressed messages: what they keep is right, and what they leave out is not chosen by the data where it must not."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec.device.compress import (
    LargestEntries,
    LowRank,
    PublicBasis,
    PublicEntries,
    SparseDeep,
    low_rank,
    public_basis,
    public_entries,
)
from veilrec.device.protection import NoisyMessage
from veilrec.errors import BadInput
from veilrec.privacy.randomness import SeededSource
from veilrec.updates import Rows, Schema, Tensor, Uploads
from veilrec.wire import codec

SCHEMA = Schema((Tensor("items", (12, 4), True), Tensor("near", (3, 4), False), Tensor("far", (5, 6), False)))
QUIET = NoisyMessage(clip_norm=100.0, scale=0.0)


def uploads(n: int = 3, seed: int = 0) -> Uploads:
    generator = np.random.default_rng(seed)
    offsets = np.arange(n + 1, dtype=np.int64) * 7
    index = np.concatenate([generator.choice(12, 7, replace=False) for _ in range(n)]).astype(np.int32)
    rows = Rows(offsets, index, generator.standard_normal((7 * n, 4)).astype(np.float32))
    dense = {t.name: generator.standard_normal((n, *t.shape)).astype(np.float32) for t in SCHEMA.dense}
    return Uploads(5, n, {"items": rows}, dense)


def dense_tables(sent: Uploads) -> np.ndarray:
    tables = np.zeros((sent.count, 12, 4), np.float32)
    rows = sent.tables["items"]
    tables[np.repeat(np.arange(sent.count), np.diff(rows.offsets)), rows.index] = rows.values
    return tables


@pytest.mark.parametrize("rank", [1, 3, 4])
def test_low_rank_is_the_truncated_singular_value_decomposition(rank: int) -> None:
    tables = dense_tables(uploads())
    for table, product in zip(tables, low_rank(tables, rank).product(), strict=True):
        left, scales, right = np.linalg.svd(table.astype(np.float64), full_matrices=False)
        assert np.allclose(product, (left[:, :rank] * scales[:rank]) @ right[:rank], atol=1e-4)


def test_low_rank_of_nothing_is_nothing() -> None:
    factors = low_rank(np.zeros((2, 12, 4), np.float32), 2)
    assert np.all(factors.product() == 0.0)
    assert np.isfinite(factors.left).all()


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, float("nan")])
def test_a_share_of_nothing_or_more_than_all_is_refused(share: float) -> None:
    for make in (
        lambda: LargestEntries(noisy=QUIET, share=share),
        lambda: SparseDeep(noisy=QUIET, share=share, deep=("far",)),
        lambda: PublicEntries(clip_norm=1.0, share=share, names=("far",), public_seed=0),
    ):
        with pytest.raises(BadInput, match="above 0 and at most 1"):
            make()


def test_support_of_a_public_message_is_the_same_for_any_two_datasets() -> None:
    masked = PublicEntries(clip_norm=1.0, share=0.3, names=("far",), public_seed=8)
    one, other = (masked.bound(uploads(seed=seed)) for seed in (1, 2))
    assert np.array_equal(one.entries["far"].index, other.entries["far"].index)
    expected = public_entries(30, 0.3, 8, 5)
    assert one.entries["far"].index[:9].tolist() == expected.tolist()
    assert "far" not in one.dense


def test_public_parts_change_with_the_round() -> None:
    assert public_entries(30, 0.3, 8, 5).tolist() != public_entries(30, 0.3, 8, 6).tolist()
    basis = public_basis(4, 2, 8, 5)
    assert np.allclose(basis.T @ basis, np.eye(2), atol=1e-6)
    assert not np.allclose(basis, public_basis(4, 2, 8, 6))


def test_a_public_basis_keeps_the_projection_of_the_update() -> None:
    protection = PublicBasis(clip_norm=100.0, rank=2, public_seed=8)
    sent = uploads()
    message = protection.perturb_each(protection.bound(sent), SCHEMA, SeededSource(0))
    basis = public_basis(4, 2, 8, 5)
    assert np.allclose(message.factors["items"].product(), dense_tables(sent) @ basis @ basis.T, atol=1e-5)
    assert protection.counted_parameters(SCHEMA["items"]) == 2 * (12 + 4 + 1)


@pytest.mark.parametrize(
    "protection",
    [
        LowRank(noisy=QUIET, rank=3),
        LargestEntries(noisy=QUIET, share=0.4),
        SparseDeep(noisy=QUIET, share=0.25, deep=("far",)),
        PublicEntries(clip_norm=1.0, share=0.25, names=("far",), public_seed=3),
        PublicBasis(clip_norm=1.0, rank=2, public_seed=3),
    ],
)
def test_messages_survive_the_way_through_bytes(protection: LowRank) -> None:
    sent = protection.perturb(protection.bound(uploads()), SCHEMA, SeededSource(0))
    sizes = codec.sizes(sent, SCHEMA)
    for device in range(3):
        content = codec.encode(sent, SCHEMA, device)
        assert len(content) == sizes[device]
        got = codec.decode(content, SCHEMA, 5)
        for name, rows in sent.entries.items():
            part = slice(rows.offsets[device], rows.offsets[device + 1])
            order = np.argsort(rows.index[part])
            assert np.array_equal(got.entries[name].index, rows.index[part][order])
            assert np.array_equal(got.entries[name].values, rows.values[part][order])
        for name, factors in sent.factors.items():
            assert np.array_equal(got.factors[name].product()[0], factors.product()[device])


def test_deep_and_shallow_parts_are_clipped_by_themselves() -> None:
    protection = SparseDeep(
        noisy=NoisyMessage(clip_norm=0.5, scale=0.1, noise="gaussian", clip="update"), share=0.5, deep=("far",)
    )
    bounded = protection.bound(uploads())
    rows, far = bounded.tables["items"], bounded.entries["far"]
    for device in range(3):
        shallow = np.sum(rows.values[7 * device : 7 * device + 7] ** 2) + np.sum(bounded.dense["near"][device] ** 2)
        deep = np.sum(far.values[15 * device : 15 * device + 15] ** 2)
        assert np.sqrt([shallow, deep]) == pytest.approx([0.5, 0.5], rel=1e-4)
    assert set(protection.noise_of_sum(SCHEMA, 2, np.random.default_rng(0))) == {"items", "near"}
    each = protection.perturb_each(bounded, SCHEMA, SeededSource(0))
    assert not np.array_equal(each.entries["far"].values, far.values)
    assert np.array_equal(each.tables["items"].values, rows.values)


def test_low_rank_of_a_noisy_message_is_right_to_one_in_a_hundred_thousand() -> None:
    tables = np.random.default_rng(1).laplace(size=(3, 400, 32)).astype(np.float32)
    for table, product in zip(tables, low_rank(tables, 16).product(), strict=True):
        left, scales, right = np.linalg.svd(table.astype(np.float64), full_matrices=False)
        best = (left[:, :16] * scales[:16]) @ right[:16]
        assert np.linalg.norm(product - best) <= 1e-5 * np.linalg.norm(best)
