"""Shorter messages: low rank, the largest entries, or entries that a public seed names.

The largest entries of a raw update tell where it is large, whatever noise they get: that is as published, and no
guarantee. Entries named by a public seed tell nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from veilrec._arrays import Floats, Offsets
from veilrec.device.largest import largest_of_dense, largest_of_rows
from veilrec.device.protection import NoisyMessage, Unprotected, clip_whole, fill
from veilrec.errors import BadInput
from veilrec.privacy.mechanisms.sparsify import random_coordinates
from veilrec.privacy.randomness import Source
from veilrec.updates import Factors, Rows, Schema, Tensor, Uploads


def check_share(name: str, share: float) -> None:
    """Refuse a share that keeps nothing or more than everything."""
    if not 0.0 < share <= 1.0:
        raise BadInput(f"{name} is {share}: it is the share that is kept, above 0 and at most 1")


def share_of(size: int, share: float) -> int:
    """How many of `size`, at least one."""
    return max(1, math.ceil(share * size))


def public_entries(size: int, share: float, public_seed: int, round_number: int) -> Offsets:
    """The entries of a flattened tensor that a round is about: the same for whoever knows the public seed."""
    return random_coordinates(size, share_of(size, share), public_seed=public_seed, round_number=round_number)


def public_basis(width: int, rank: int, public_seed: int, round_number: int) -> Floats:
    """An orthonormal basis [width, rank] that everybody can draw."""
    generator = np.random.default_rng([public_seed, round_number])
    basis: Floats = np.linalg.qr(generator.standard_normal((width, rank)))[0].astype(np.float32)
    return basis


def projected(rows: Floats, basis: Floats) -> Floats:
    """What an orthonormal basis leaves of rows `[..., width]`."""
    left: Floats = np.matmul(np.matmul(rows, basis, dtype=np.float32), basis.T, dtype=np.float32)
    return left


@dataclass(frozen=True, kw_only=True)
class PublicBasis(Unprotected):
    """The update in r directions that a public seed names, clipped as a whole: low rank without looking."""

    clip_norm: float
    rank: int
    public_seed: int

    def bound(self, uploads: Uploads) -> Uploads:
        """Clip what the directions leave of the update."""
        tables = {}
        for name, rows in uploads.tables.items():
            basis = public_basis(rows.values.shape[1], self.rank, self.public_seed, uploads.round_number)
            tables[name] = Rows(rows.offsets, rows.index, projected(rows.values, basis))
        return clip_whole(replace(uploads, tables=tables), self.clip_norm)

    def perturb_each(self, uploads: Uploads, schema: Schema, source: Source) -> Uploads:
        """Send the coordinates in those directions instead of the rows."""
        factors = {}
        full = fill(uploads, schema)
        for tensor in schema.tables:
            basis = public_basis(tensor.shape[1], self.rank, self.public_seed, uploads.round_number)
            left = full.tables[tensor.name].values.reshape(full.count, *tensor.shape) @ basis
            ones = np.ones((full.count, self.rank), np.float32)
            factors[tensor.name] = Factors(left, ones, np.tile(basis.T, (full.count, 1, 1)))
        return replace(full, tables={}, factors=factors)

    def counted_parameters(self, table: Tensor) -> int:
        """As for any table of rank r."""
        return self.rank * (table.shape[0] + table.shape[1] + 1)


@dataclass(frozen=True, kw_only=True)
class LowRank(Unprotected):
    """DP-FedMF-SVD as published: the noisy message of DP-FedMF, cut to its r largest singular values."""

    noisy: NoisyMessage
    rank: int

    def bound(self, uploads: Uploads) -> Uploads:
        """As DP-FedMF does."""
        return self.noisy.bound(uploads)

    def perturb_each(self, uploads: Uploads, schema: Schema, source: Source) -> Uploads:
        """Noise first: the factors are then made of something that is noisy already."""
        full = self.noisy.perturb(uploads, schema, source)
        factors = {}
        for tensor in schema.tables:
            tables = full.tables[tensor.name].values.reshape(full.count, *tensor.shape)
            factors[tensor.name] = low_rank(tables, min(self.rank, *tensor.shape))
        return replace(full, tables={}, factors=factors)

    def counted_parameters(self, table: Tensor) -> int:
        """Both factors and the singular values: r (rows + width + 1)."""
        return min(self.rank, *table.shape) * (table.shape[0] + table.shape[1] + 1)


def low_rank(tables: Floats, rank: int) -> Factors:
    """The best approximation of rank r of each of [n, rows, width], through the small side's Gram matrix."""
    values, vectors = np.linalg.eigh(np.einsum("nrw,nrv->nwv", tables, tables, optimize=True))
    right = vectors[:, :, : -rank - 1 : -1]  # eigenvalues ascend
    scales = np.sqrt(np.maximum(values[:, : -rank - 1 : -1], 0.0))
    left = (tables @ right) / np.maximum(scales, np.finfo(np.float32).tiny)[:, np.newaxis]
    return Factors(left, scales, np.ascontiguousarray(right.transpose(0, 2, 1)))


@dataclass(frozen=True, kw_only=True)
class LargestEntries(Unprotected):
    """DP-FedMF-TopK as published: the largest entries of the clipped update, with noise on those only."""

    noisy: NoisyMessage
    share: float  # of all entries of a table

    def __post_init__(self) -> None:
        check_share("compression.share", self.share)

    def bound(self, uploads: Uploads) -> Uploads:
        """As DP-FedMF does."""
        return self.noisy.bound(uploads)

    def perturb_each(self, uploads: Uploads, schema: Schema, source: Source) -> Uploads:
        """Choose, then add noise to what was chosen."""
        entries = {t.name: largest_of_rows(uploads.tables[t.name], share_of(t.size, self.share)) for t in schema.tables}
        return self.noisy.add_noise(replace(uploads, tables={}, entries=entries), source)

    def counted_parameters(self, table: Tensor) -> int:
        """The kept values; where they lie is not counted."""
        return share_of(table.size, self.share)


@dataclass(frozen=True, kw_only=True)
class SentEntries(Unprotected):
    """DP-FedNCF-DGC as published: what the compression sends is clipped, and gets noise where it is sent."""

    noisy: NoisyMessage
    share: float  # of all entries of a table

    def bound(self, uploads: Uploads) -> Uploads:
        """One clip over everything."""
        return clip_whole(uploads, self.noisy.clip_norm)

    def perturb_each(self, uploads: Uploads, schema: Schema, source: Source) -> Uploads:
        """Noise on what is sent."""
        return self.noisy.add_noise(uploads, source)

    def counted_parameters(self, table: Tensor) -> int:
        """The kept values; where they lie is not counted."""
        return share_of(table.size, self.share)


@dataclass(frozen=True, kw_only=True)
class SparseDeep(Unprotected):
    """Priv-FedNCF-Sub-Compress as published (Algorithm 3): shallow and deep parts clipped by themselves, Gaussian
    noise on all of the shallow one and on the largest entries of every deep tensor (eq. 12 to 14)."""

    noisy: NoisyMessage
    share: float  # of every deep tensor
    deep: tuple[str, ...]

    def __post_init__(self) -> None:
        check_share("compression.share", self.share)

    @property
    def fills_messages(self) -> bool:
        """Every row of the shallow part has noise."""
        return True

    def bound(self, uploads: Uploads) -> Uploads:
        """Choose in the deep part, then clip both."""
        deep, shallow = _split(uploads.dense, self.deep)
        largest = {
            name: largest_of_dense(values, share_of(values[0].size, self.share)) for name, values in deep.items()
        }
        first = clip_whole(replace(uploads, dense=shallow), self.noisy.clip_norm)
        second = clip_whole(Uploads(uploads.round_number, uploads.count, entries=largest), self.noisy.clip_norm)
        return replace(first, entries=second.entries)

    def perturb(self, uploads: Uploads, schema: Schema, source: Source) -> Uploads:
        """Noise on everything that is sent."""
        return self.noisy.add_noise(fill(uploads, schema), source)

    def perturb_each(self, uploads: Uploads, schema: Schema, source: Source) -> Uploads:
        """Noise on the deep part, whose entries lie elsewhere in every message."""
        deep = Uploads(uploads.round_number, uploads.count, entries=uploads.entries)
        return replace(uploads, entries=self.noisy.add_noise(deep, source).entries)

    def noise_of_sum(self, schema: Schema, devices: int, generator: np.random.Generator) -> dict[str, Floats]:
        """Of the shallow part."""
        shallow = Schema(tuple(t for t in schema.tensors if t.name not in self.deep))
        return self.noisy.noise_of_sum(shallow, devices, generator)


@dataclass(frozen=True, kw_only=True)
class PublicEntries(Unprotected):
    """Some entries of some dense tensors, named by a public seed and the round; then one clip over everything."""

    clip_norm: float
    share: float
    names: tuple[str, ...]
    public_seed: int

    def __post_init__(self) -> None:
        check_share("compression.share", self.share)

    def bound(self, uploads: Uploads) -> Uploads:
        """Leave out what the round is not about, and clip the rest."""
        masked, whole = _split(uploads.dense, self.names)
        entries = dict(uploads.entries)
        for name, values in masked.items():
            flat = values.reshape(uploads.count, -1)
            kept = public_entries(flat.shape[1], self.share, self.public_seed, uploads.round_number)
            entries[name] = entries_at(flat, kept)
        return clip_whole(replace(uploads, dense=whole, entries=entries), self.clip_norm)


def _split(tensors: Mapping[str, Floats], names: tuple[str, ...]) -> tuple[dict[str, Floats], dict[str, Floats]]:
    inside = {name: values for name, values in tensors.items() if name in names}
    return inside, {name: values for name, values in tensors.items() if name not in names}


def entries_at(flat: Floats, kept: Offsets) -> Rows:
    """The same entries of each of [n, size]."""
    offsets = np.arange(len(flat) + 1, dtype=np.int64) * len(kept)
    return Rows(offsets, np.tile(kept.astype(np.int32), len(flat)), flat[:, kept].reshape(-1, 1))
