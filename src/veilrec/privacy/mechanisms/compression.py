"""Shorter noisy messages, as published: low rank, or the largest entries only.

Cutting what is noisy already costs nothing. The largest entries of a raw update tell where it is large, whatever noise
they get: no epsilon is finite. What is proven instead is part of the round spec (`veilrec.core.schema.RoundSpec`).

The entries of largest size of every client's update: exact, in a few passes, the same for any number of threads.

The bits of a float without its sign, read as a whole number, are in the order of its size; so the smallest size that
is kept is found digit by digit from counts. Of entries of that very size the first ones are kept.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from veilrec.core import resources
from veilrec.core.arrays import Doubles, Floats, Indices, Offsets
from veilrec.core.errors import BadInput
from veilrec.core.jit import jit
from veilrec.core.schema import (
    ClientUpdates,
    Factors,
    RoundSpec,
    Rows,
    Schema,
    Tensor,
    check_share,
    from_vectors,
    share_of,
    to_vectors,
)
from veilrec.privacy.checks import vectors
from veilrec.privacy.events import Event, NonPrivateEvent
from veilrec.privacy.mechanisms.base import Calibration, take_terms
from veilrec.privacy.mechanisms.clipping import rank_parameters
from veilrec.privacy.mechanisms.local import NoisyMessage, RowwiseLaplace, UpdateNoise
from veilrec.privacy.mechanisms.sums import UpdateMechanism
from veilrec.privacy.randomness import Source

Bits: TypeAlias = NDArray[np.uint32]

NoiseOrder = Literal["first", "last"]  # before the entries that are sent are chosen, or after

_SIGNLESS = np.uint32(0x7FFFFFFF)
_DIGITS = ((20, 11), (10, 10), (0, 10))  # (lowest bit, number of bits) of the three digits of a size
_MAX_DIGITS = 1 << 11


def largest_of_dense(values: Floats, count: int) -> Rows:
    """The entries of largest size of each of [n, ...], by their places in the flattened tensor."""
    flat = values.reshape(len(values), -1)
    return largest_of_rows(Rows(np.arange(len(flat) + 1), np.zeros(len(flat), np.int32), flat), count)


def largest_of_rows(rows: Rows, count: int) -> Rows:
    """The entries of largest size of each client's rows, by their places in the flattened table; all where there
    are fewer."""
    lengths = np.diff(rows.offsets)
    offsets = np.concatenate([[0], np.cumsum(np.minimum(lengths * rows.values.shape[1], count))])
    places, kept = np.empty(offsets[-1], np.int32), np.empty((offsets[-1], 1), np.float32)
    bits = np.ascontiguousarray(rows.values, np.float32).view(np.uint32)
    resources.run_all(
        [
            partial(
                _choose,
                rows.offsets[first : end + 1],
                rows.index,
                bits,
                offsets[first : end + 1],
                places,
                kept.view(np.uint32)[:, 0],
            )
            for first, end in resources.even_parts(lengths, resources.available())
        ]
    )
    return Rows(offsets, places, kept)


@jit
def _choose(  # type: ignore[no-untyped-def]
    starts: Offsets, index: Indices, bits: Bits, offsets: Offsets, places: Indices, kept: Bits
):
    width = bits.shape[1]
    counts = np.empty(_MAX_DIGITS, np.int64)
    for client in range(len(starts) - 1):
        place, end = offsets[client], offsets[client + 1]
        least, equal = _smallest_kept(bits[starts[client] : starts[client + 1]], end - place, counts)
        for row in range(starts[client], starts[client + 1]):
            for column in range(width):
                size = bits[row, column] & _SIGNLESS
                if size >= least:
                    if size == least:
                        if equal == 0:
                            continue
                        equal -= 1
                    places[place] = index[row] * width + column
                    kept[place] = bits[row, column]
                    place += 1


@jit
def _smallest_kept(mine: Bits, count, counts: Offsets):  # type: ignore[no-untyped-def]
    """The smallest size among the `count` largest, and how many of exactly that size are among them."""
    found, left = np.uint32(0), count  # the digits found so far
    for low, n_bits in _DIGITS:
        above, highest = np.uint32(low + n_bits), np.uint32((1 << n_bits) - 1)
        counts[:] = 0
        for row in range(len(mine)):
            for column in range(mine.shape[1]):
                size = mine[row, column] & _SIGNLESS
                if size >> above == found:
                    counts[(size >> np.uint32(low)) & highest] += 1
        digit = np.int64(highest)
        while digit > 0 and counts[digit] < left:
            left -= counts[digit]
            digit -= 1
        found = (found << np.uint32(n_bits)) | np.uint32(digit)
    return found, left


class _Compressed(UpdateMechanism):
    """A noisy message that is made shorter: whatever it says of privacy is that of the message."""

    noise_on = "message"
    perturbs_each = True
    calibrations: ClassVar[tuple[Calibration, ...]] = ("as-published",)
    calibration: Calibration = "as-published"

    def __init__(self, inner: NoisyMessage) -> None:
        self.inner = inner
        self.schema = inner.schema
        take_terms(self, inner)

    def bound(self, updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
        """As without compression."""
        return self.inner.bound(updates, spec)

    def reach(self, tensor: Tensor, spec: RoundSpec, weight: int = 1) -> float:
        """As without compression."""
        return self.inner.reach(tensor, spec, weight)

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

    def perturb_each(self, bounded: ClientUpdates, spec: RoundSpec, source: Source) -> ClientUpdates:
        """Noise first: the factors are then made of something that is noisy already."""
        full, factors = self.inner.perturb(bounded, spec, source), {}
        for tensor in spec.view(self.schema).tables:
            tables = full.tables[tensor.name].values.reshape(full.count, *tensor.shape)
            factors[tensor.name] = low_rank(tables, min(self.rank, *tensor.shape))
        return replace(full, tables={}, factors=factors)

    def reach(self, tensor: Tensor, spec: RoundSpec, weight: int = 1) -> float:
        """A number of an approximation may be larger than any of the message, up to the norm of all."""
        return super().reach(tensor, spec, weight) * math.sqrt(tensor.size)

    def event(self) -> Event:
        """Post-processing: that of the noisy message."""
        return self.inner.event()

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """That of the noisy message."""
        return self.inner.worst_pair()

    def counted_parameters(self, table: Tensor, spec: RoundSpec) -> int:
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

    def counted_parameters(self, table: Tensor, spec: RoundSpec) -> int:
        """The kept values; where they lie is not counted."""
        return share_of(table.size, self.share)


class LargestEntries(_SomeEntries):
    """DP-FedMF-TopK: the largest entries of the clipped update, chosen after the noise or before it.

    The paper does not say which. Of a noisy message the choice is post-processing; of the raw update it tells where it
    is large, and no epsilon is finite.
    """

    name = "top-k-update"

    def __init__(self, inner: NoisyMessage, *, share: float, noise: NoiseOrder = "last") -> None:
        super().__init__(inner, share=share)
        self.noise = noise

    def chooses_entries(self, tensor: Tensor) -> bool:
        """Those of every table."""
        return tensor.by_row

    def perturb_each(self, bounded: ClientUpdates, spec: RoundSpec, source: Source) -> ClientUpdates:
        """Choose among noisy entries, or add noise to what was chosen."""
        if self.noise == "first":
            return self._choose(self.inner.perturb(bounded, spec, source), spec)
        return self.inner.add_noise(self._choose(bounded, spec), source)

    def _choose(self, updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
        entries = {
            t.name: largest_of_rows(updates.tables[t.name], share_of(t.size, self.share))
            for t in spec.view(self.schema).tables
        }
        return replace(updates, tables={}, entries=entries)

    def event(self) -> Event:
        """That of the noisy message where noise comes first; otherwise nothing holds."""
        return self.inner.event() if self.noise == "first" else super().event()

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """That of the noisy message where noise comes first."""
        return self.inner.worst_pair() if self.noise == "first" else super().worst_pair()

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Two of eight entries."""
        schema = Schema((Tensor("items", (1, 8), by_row=True),))
        inner = RowwiseLaplace(schema=schema, clip_norm=1.0, epsilon=2.0, calibration="as-published")
        return (cls(inner, share=0.25),)


class SentEntries(_SomeEntries):
    """DP-FedNCF-DGC: what the trainer chose to send is clipped, and gets noise where it is sent."""

    name = "sent-entries"

    def chooses_entries(self, tensor: Tensor) -> bool:
        """Those of every tensor: the trainer chooses them."""
        return True

    def perturb_each(self, bounded: ClientUpdates, spec: RoundSpec, source: Source) -> ClientUpdates:
        """Noise on what is sent."""
        return self.inner.add_noise(bounded, source)

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """As the trainer sends it: the largest entries of every tensor."""
        checked = vectors(self.dimension, update=value)
        updates = from_vectors(checked.reshape(-1, checked.shape[-1]), self.schema)
        entries = {
            name: largest_of_dense(values, share_of(values[0].size, self.share))
            for name, values in updates.dense.items()
        }
        bounded = self.bound(ClientUpdates(0, updates.count, entries=entries), RoundSpec(0))
        return to_vectors(self.perturb(bounded, RoundSpec(0), source), self.schema).reshape(value.shape)

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

    def bound(self, updates: ClientUpdates, spec: RoundSpec) -> ClientUpdates:
        """Choose in the deep part, then clip both."""
        deep = {name: values for name, values in updates.dense.items() if name in self.deep}
        shallow = {name: values for name, values in updates.dense.items() if name not in self.deep}
        largest = {
            name: largest_of_dense(values, share_of(values[0].size, self.share)) for name, values in deep.items()
        }
        first = self.inner.bound(replace(updates, dense=shallow), spec)
        second = self.inner.bound(ClientUpdates(updates.round_number, updates.count, entries=largest), spec)
        return replace(first, entries=second.entries)

    def chooses_entries(self, tensor: Tensor) -> bool:
        """Those of the deep part."""
        return tensor.name in self.deep

    def perturb(self, bounded: ClientUpdates, spec: RoundSpec, source: Source) -> ClientUpdates:
        """Noise on everything that is sent."""
        return self.inner.perturb(bounded, spec, source)

    def perturb_each(self, bounded: ClientUpdates, spec: RoundSpec, source: Source) -> ClientUpdates:
        """Noise on the deep part, whose entries lie elsewhere in every message."""
        deep = ClientUpdates(bounded.round_number, bounded.count, entries=bounded.entries)
        return replace(bounded, entries=self.inner.add_noise(deep, source).entries)

    def noise_of_messages(
        self, view: Schema, weights: Doubles | Offsets, generator: np.random.Generator
    ) -> dict[str, Floats]:
        """Sum of the noise on the shallow part."""
        shallow = Schema(tuple(t for t in view.tensors if t.name not in self.deep))
        return self.inner.noise_of_messages(shallow, weights, generator)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Two of eight deep entries, and one shallow number."""
        schema = Schema((Tensor("deep", (8,), by_row=False), Tensor("layer", (1,), by_row=False)))
        inner = UpdateNoise(schema=schema, clip_norm=1.0, epsilon=2.0, delta=1e-5, calibration="as-published")
        return (cls(inner, share=0.25, deep=("deep",)),)
