"""Shorter noisy messages, as published: low rank, or the largest entries only.

Cutting what is noisy already costs nothing. The largest entries of a raw update tell where it is large, whatever noise
they get: no epsilon is finite. What is proven instead is part of what a round is about (`veilrec.updates.Round`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np

from veilrec._arrays import Doubles, Floats, Offsets
from veilrec.errors import BadInput
from veilrec.privacy.checks import vectors
from veilrec.privacy.events import Event, NonPrivateEvent
from veilrec.privacy.mechanisms.base import Calibration
from veilrec.privacy.mechanisms.bounding import rank_parameters
from veilrec.privacy.mechanisms.largest import largest_of_dense, largest_of_rows
from veilrec.privacy.mechanisms.messages import NoisyMessage, RowwiseLaplace, UpdateNoise
from veilrec.privacy.mechanisms.updates import UpdateMechanism
from veilrec.privacy.randomness import Source
from veilrec.updates import Factors, Round, Schema, Tensor, Uploads, check_share, from_vectors, share_of, to_vectors


class _Compressed(UpdateMechanism):
    """A noisy message that is made shorter: whatever it says of privacy is that of the message."""

    noise_on = "message"
    perturbs_each = True
    calibrations: ClassVar[tuple[Calibration, ...]] = ("as-published",)

    def __init__(self, inner: NoisyMessage) -> None:
        self._set_calibration("as-published")
        self.inner = inner
        self.schema = inner.schema
        self.unit, self.adjacency = inner.unit, inner.adjacency
        self.sensitivity = inner.sensitivity
        self.claimed_epsilon, self.claimed_delta = inner.claimed_epsilon, inner.claimed_delta

    def bound(self, uploads: Uploads, about: Round) -> Uploads:
        """As without compression."""
        return self.inner.bound(uploads, about)

    def reach(self, tensor: Tensor, about: Round, weight: int = 1) -> float:
        """As without compression."""
        return self.inner.reach(tensor, about, weight)

    def event(self) -> Event:
        """Which entries are sent is decided by the data and told exactly: no noise makes it private."""
        return NonPrivateEvent()

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Two updates whose largest entries are in different places."""
        first, second = np.zeros(self.dimension), np.zeros(self.dimension)
        quarter = self.dimension // 4
        first[:quarter], second[quarter : 2 * quarter] = 1.0, 1.0
        return first, second


class LowRank(_Compressed):
    """DP-FedMF-SVD: the noisy message of DP-FedMF, cut to its r largest singular values."""

    name = "low-rank-update"

    def __init__(self, inner: NoisyMessage, *, rank: int) -> None:
        super().__init__(inner)
        self.rank = rank

    def perturb_each(self, bounded: Uploads, about: Round, source: Source) -> Uploads:
        """Noise first: the factors are then made of something that is noisy already."""
        full, factors = self.inner.perturb(bounded, about, source), {}
        for tensor in about.view(self.schema).tables:
            tables = full.tables[tensor.name].values.reshape(full.count, *tensor.shape)
            factors[tensor.name] = low_rank(tables, min(self.rank, *tensor.shape))
        return replace(full, tables={}, factors=factors)

    def reach(self, tensor: Tensor, about: Round, weight: int = 1) -> float:
        """A number of an approximation may be larger than any of the message, up to the norm of all."""
        return super().reach(tensor, about, weight) * math.sqrt(tensor.size)

    def event(self) -> Event:
        """Post-processing: that of the noisy message."""
        return self.inner.event()

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """That of the noisy message."""
        return self.inner.worst_pair()

    def counted_parameters(self, table: Tensor, about: Round) -> int:
        """Both factors and the singular values."""
        return rank_parameters(table, min(self.rank, *table.shape))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """A table of one row, whose rank is 1: nothing is cut, and the claim fails as that of the message does."""
        schema = Schema((Tensor("items", (1, 4), by_row=True),))
        inner = RowwiseLaplace(schema=schema, clip_norm=1.0, epsilon=0.4, calibration="as-published")
        return (cls(inner, rank=1),)


def low_rank(tables: Floats, rank: int) -> Factors:
    """The best approximation of rank r of each of [n, rows, width], through the small side's Gram matrix."""
    values, directions = np.linalg.eigh(np.einsum("nrw,nrv->nwv", tables, tables, optimize=True))
    right = directions[:, :, : -rank - 1 : -1]  # eigenvalues ascend
    scales = np.sqrt(np.maximum(values[:, : -rank - 1 : -1], 0.0))
    left = (tables @ right) / np.maximum(scales, np.finfo(np.float32).tiny)[:, np.newaxis]
    return Factors(left, scales, np.ascontiguousarray(right.transpose(0, 2, 1)))


class _SomeEntries(_Compressed):
    """A share of the entries of every tensor, with noise on those only."""

    def __init__(self, inner: NoisyMessage, *, share: float) -> None:
        super().__init__(inner)
        check_share("compression.share", share)
        self.share = share

    def counted_parameters(self, table: Tensor, about: Round) -> int:
        """The kept values; where they lie is not counted."""
        return share_of(table.size, self.share)


class LargestEntries(_SomeEntries):
    """DP-FedMF-TopK: the largest entries of the clipped update."""

    name = "top-k-update"

    def perturb_each(self, bounded: Uploads, about: Round, source: Source) -> Uploads:
        """Choose, then add noise to what was chosen."""
        entries = {
            t.name: largest_of_rows(bounded.tables[t.name], share_of(t.size, self.share))
            for t in about.view(self.schema).tables
        }
        return self.inner.add_noise(replace(bounded, tables={}, entries=entries), source)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Two of eight entries."""
        schema = Schema((Tensor("items", (1, 8), by_row=True),))
        inner = RowwiseLaplace(schema=schema, clip_norm=1.0, epsilon=2.0, calibration="as-published")
        return (cls(inner, share=0.25),)


class SentEntries(_SomeEntries):
    """DP-FedNCF-DGC: what the learner chose to send is clipped, and gets noise where it is sent."""

    name = "sent-entries"

    def perturb_each(self, bounded: Uploads, about: Round, source: Source) -> Uploads:
        """Noise on what is sent."""
        return self.inner.add_noise(bounded, source)

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """As the learner sends it: the largest entries of every tensor."""
        checked = vectors(self.dimension, update=value)
        uploads = from_vectors(checked.reshape(-1, checked.shape[-1]), self.schema)
        entries = {
            name: largest_of_dense(values, share_of(values[0].size, self.share))
            for name, values in uploads.dense.items()
        }
        bounded = self.bound(Uploads(0, uploads.count, entries=entries), Round(0))
        return to_vectors(self.perturb(bounded, Round(0), source), self.schema).reshape(value.shape)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Two of eight entries."""
        schema = Schema((Tensor("layer", (8,), by_row=False),))
        inner = UpdateNoise(schema=schema, clip_norm=1.0, epsilon=2.0, delta=1e-5, calibration="as-published")
        return (cls(inner, share=0.25),)


class SparseDeep(_Compressed):
    """Priv-FedNCF-Sub-Compress (Algorithm 3): shallow and deep parts clipped by themselves, Gaussian noise on all of
    the shallow one and on the largest entries of every deep tensor (eq. 12 to 14).

    The paper clips the deep part twice, to C and then to P, which is one clip to the smaller of them.
    """

    name = "sparse-deep-update"
    fills_messages = True  # the rows of the shallow part

    def __init__(self, inner: UpdateNoise, *, share: float, deep: tuple[str, ...]) -> None:
        super().__init__(inner)
        check_share("compression.share", share)
        if not deep:
            raise BadInput("no layer is deep: give the network at least three layers, or use priv-fedncf-sub")
        self.share, self.deep = share, deep

    def bound(self, uploads: Uploads, about: Round) -> Uploads:
        """Choose in the deep part, then clip both."""
        deep = {name: values for name, values in uploads.dense.items() if name in self.deep}
        shallow = {name: values for name, values in uploads.dense.items() if name not in self.deep}
        largest = {
            name: largest_of_dense(values, share_of(values[0].size, self.share)) for name, values in deep.items()
        }
        first = self.inner.bound(replace(uploads, dense=shallow), about)
        second = self.inner.bound(Uploads(uploads.round_number, uploads.count, entries=largest), about)
        return replace(first, entries=second.entries)

    def perturb(self, bounded: Uploads, about: Round, source: Source) -> Uploads:
        """Noise on everything that is sent."""
        return self.inner.perturb(bounded, about, source)

    def perturb_each(self, bounded: Uploads, about: Round, source: Source) -> Uploads:
        """Noise on the deep part, whose entries lie elsewhere in every message."""
        deep = Uploads(bounded.round_number, bounded.count, entries=bounded.entries)
        return replace(bounded, entries=self.inner.add_noise(deep, source).entries)

    def noise_of_messages(
        self, view: Schema, weights: Doubles | Offsets, generator: np.random.Generator
    ) -> dict[str, Floats]:
        """Of the shallow part."""
        shallow = Schema(tuple(t for t in view.tensors if t.name not in self.deep))
        return self.inner.noise_of_messages(shallow, weights, generator)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Two of eight deep entries, and one shallow number."""
        schema = Schema((Tensor("deep", (8,), by_row=False), Tensor("layer", (1,), by_row=False)))
        inner = UpdateNoise(schema=schema, clip_norm=1.0, epsilon=2.0, delta=1e-5, calibration="as-published")
        return (cls(inner, share=0.25, deep=("deep",)),)
