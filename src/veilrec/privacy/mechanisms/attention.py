"""PrivateRec's private attention (GetPrivAttn, Algorithm 2), with the noise that it needs, and its
alternatives.

A user embedding u is decomposed over B public basis vectors b, alpha = softmax(u b^T / sqrt(d)), clipped to
L2 norm theta and sent with noise. The paper takes S = theta for its sensitivity; the truth is the diameter of
the set of clipped attention vectors (`privacy.checks.attention_l2` and `attention_l1`). As a diameter it
protects a whole history at once.

Histories of many clients at once, as the mechanisms that read clicks take them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, Self, get_args

import numpy as np

from veilrec.core.arrays import Bools, Doubles, Indices, Offsets
from veilrec.core.errors import BadInput, unknown_name
from veilrec.privacy.accounting.gaussian import amplified_epsilon, base_epsilon
from veilrec.privacy.checks import attention_l1, attention_l2, finite, positive, probability, vectors, whole
from veilrec.privacy.events import Event, GaussianEvent, LaplaceEvent, PureEvent, SampledEvent
from veilrec.privacy.mechanisms import base
from veilrec.privacy.mechanisms.base import Calibration, Mechanism, Sensitivity
from veilrec.privacy.mechanisms.clipping import clip_flat
from veilrec.privacy.mechanisms.responses import happens
from veilrec.privacy.randomness import Source
from veilrec.privacy.samplers import Law, add_noise


@dataclass(frozen=True)
class ClickHistories:
    """Histories packed end to end: client i clicked the rows `items[offsets[i]:offsets[i + 1]]` of public vectors."""

    table: Doubles  # [news, d]: public
    offsets: Offsets  # [clients + 1]
    items: Indices  # [clicks]

    def __post_init__(self) -> None:
        finite(table=self.table)
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.items) or (np.diff(self.offsets) < 0).any():
            raise BadInput("offsets of packed histories run from 0 to the number of clicks, and never fall")
        if self.items.size and not (self.items.min() >= 0 and self.items.max() < len(self.table)):
            raise BadInput(f"a click is on none of the {len(self.table)} public vectors")

    @classmethod
    def of(cls, history: Doubles) -> ClickHistories:
        """One client with these vectors."""
        count = len(history)
        return cls(history, np.array([0, count], np.int64), np.arange(count, dtype=np.int32))

    def sums(self, table: Doubles) -> Doubles:
        """Per client the sum of the rows of another table of the same news: [clients, width].

        A client's clicks are added up one after another, so that who else is there changes no bit of its sum.
        """
        out = np.zeros((len(self.offsets) - 1, table.shape[1]))
        owners = np.repeat(np.arange(len(out)), np.diff(self.offsets))
        np.add.at(out, owners, table[self.items])
        return out


@dataclass(frozen=True)
class Slots:
    """Histories in places: an absent click is a place that is not taken, and never becomes a pad."""

    vectors: Doubles  # [clients, slots, d]
    taken: Bools  # [clients, slots]

    def __post_init__(self) -> None:
        finite(vectors=self.vectors)
        if self.vectors.ndim != 3 or self.taken.shape != self.vectors.shape[:2]:
            raise BadInput(
                f"vectors have shape {self.vectors.shape} and places {self.taken.shape}: give [clients, slots, width]"
                " and [clients, slots]"
            )


Noise = Law
Normalisation = Literal["relu", "softplus", "simplex"]
_BELOW_ONE = 1.0 - 2.0**-40  # a softmax in float32 may add up to a little more than 1


def decompose(user: Doubles, basis_vectors: Doubles) -> Doubles:
    """Attention of user embeddings `[..., d]` over the basis `[B, d]` (Algorithm 2, line 7)."""
    scores = user @ basis_vectors.T / math.sqrt(basis_vectors.shape[1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), np.float64)


def uniform_if_overflown(attention: Doubles) -> Doubles:
    """Attention `[..., B]`, uniform where it is no number: a history on which a model overflows is not told by that."""
    whole = np.isfinite(attention).all(axis=-1, keepdims=True)
    return np.where(whole, attention, 1.0 / attention.shape[-1])


def normalise(noisy: Doubles, how: Normalisation) -> Doubles:
    """Noisy attention back on the simplex: post-processing, anybody may do it.

    softplus and relu are the paper's (serving and training); simplex, the nearest point of the simplex, keeps
    more. Where ReLU leaves nothing above 0, which the paper divides by, the answer is uniform.
    """
    if how not in get_args(Normalisation):
        raise unknown_name("normalisation", how, get_args(Normalisation))
    if how == "simplex":
        return _nearest_on_simplex(noisy)
    raised = np.logaddexp(0.0, noisy) if how == "softplus" else np.maximum(noisy, 0.0)
    totals = raised.sum(axis=-1, keepdims=True)
    uniform = np.full_like(raised, 1.0 / noisy.shape[-1])
    np.divide(raised, totals, out=uniform, where=totals > 0.0)
    return uniform


def _nearest_on_simplex(noisy: Doubles) -> Doubles:
    # Subtract the one number that makes the positive parts add up to 1 (Held, Wolfe and Crowder 1974).
    falling = -np.sort(-noisy, axis=-1)
    surplus = (np.cumsum(falling, axis=-1) - 1.0) / np.arange(1, noisy.shape[-1] + 1)
    last = (falling > surplus).sum(axis=-1, keepdims=True) - 1
    return np.maximum(noisy - np.take_along_axis(surplus, last, axis=-1), 0.0)


def calibrated(
    noise: Noise,
    *,
    l2: float,
    l1: float,
    dimension: int,
    epsilon: float,
    delta: float,
    published: tuple[float, float] | None,
) -> tuple[Sensitivity, float]:
    """Choose the scale of noise on vectors of these diameters; as published, for another sensitivity and delta."""
    if noise not in get_args(Noise):
        raise unknown_name("noise", noise, get_args(Noise))
    if noise == "gaussian":
        scale = base.classical_sigma(epsilon, published[1], published[0]) if published else None
        return Sensitivity(l2, "L2"), scale or l2 / base.lattice_mu(epsilon, delta, dimension)
    if delta != 0.0:
        raise BadInput(f"delta is {delta}: Laplace noise has delta 0")
    return Sensitivity(l1, "L1"), published[0] / epsilon if published else base.laplace_scale(epsilon, l1, dimension)


class AttentionNoise:
    """Clip, then Gaussian or Laplace noise on B coordinates; knows nothing of padding."""

    def __init__(
        self, *, basis: int, clip_norm: float, noise: Noise, epsilon: float, delta: float, published_delta: float | None
    ) -> None:
        whole(basis=basis)
        positive(epsilon=epsilon, clip_norm=clip_norm)
        self.basis, self.clip_norm, self.noise = basis, clip_norm, noise
        self.sensitivity, self.scale = calibrated(
            noise,
            l2=attention_l2(clip_norm),
            l1=attention_l1(clip_norm, basis),
            dimension=basis,
            epsilon=epsilon,
            delta=delta,
            published=None if published_delta is None else (clip_norm, published_delta),  # S = theta
        )

    def clipped(self, attention: Doubles) -> Doubles:
        """Attention within the bound that the sensitivity rests on."""
        if attention.size and (attention.min() < 0.0 or abs(attention.sum(axis=-1) - 1.0).max() > 1e-4):
            raise BadInput("attention has to be a softmax: not negative, and adding up to 1")
        inside = attention / np.maximum(attention.sum(axis=-1, keepdims=True), 1.0) * _BELOW_ONE
        # Cutting towards zero keeps all that the sensitivity rests on: signs, L1 and L2 norms.
        return clip_flat(inside, self.clip_norm)

    def add(self, attention: Doubles, source: Source) -> Doubles:
        """Clipped attention with noise."""
        return add_noise(self.clipped(attention), law=self.noise, scale=self.scale, source=source)

    def event(self) -> GaussianEvent | LaplaceEvent:
        """Privacy event of one noisy vector."""
        ratio = self.sensitivity.value / self.scale
        return (
            GaussianEvent(ratio) if self.noise == "gaussian" else LaplaceEvent(ratio + base.sampler_epsilon(self.basis))
        )

    def worst_supports(self) -> tuple[list[int], list[int]]:
        """Which interests the two attention vectors that lie farthest apart are uniform on."""
        half = self.basis // 2
        split = 1 if self.noise == "gaussian" else max(half, 1)
        last = 2 if self.noise == "gaussian" else self.basis
        return list(range(split)), list(range(split, last))


class PaddedNoise(AttentionNoise):
    """All that `PaddedAttention` draws, for whoever encodes many histories at once: fresh masks, and the noise."""

    def __init__(
        self,
        *,
        basis: int,
        clip_norm: float,
        epsilon: float,
        delta: float,
        pad_probability: float,
        noise: Noise,
        calibration: Calibration,
    ) -> None:
        inner_delta = delta / (1.0 - pad_probability)
        super().__init__(
            basis=basis,
            clip_norm=clip_norm,
            noise=noise,
            epsilon=base_epsilon(epsilon, pad_probability=pad_probability),
            delta=inner_delta,
            published_delta=inner_delta if calibration == "as-published" else None,
        )
        self.pad_probability = pad_probability

    def masks(self, shape: tuple[int, ...], source: Source) -> Bools:
        """Which clicks become the pad."""
        if self.pad_probability == 0.0:
            return np.zeros(shape, np.bool_)
        return happens(self.pad_probability, shape, source)


def _uniform_on(support: list[int], basis: int) -> Doubles:
    attention = np.zeros(basis)
    attention[support] = 1.0 / len(support)
    return attention


class PrivateAttention(Mechanism[Doubles, Doubles]):
    """Attention vectors `[..., B]` of whole histories, without padding."""

    name = "attention"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven", "as-published")

    def __init__(
        self,
        *,
        basis: int,
        clip_norm: float,
        epsilon: float,
        delta: float,
        noise: Noise = "gaussian",
        calibration: Calibration = "proven",
    ) -> None:
        self._set_calibration(calibration)
        self.unit, self.adjacency = "history", "replace-one"
        published = delta if calibration == "as-published" else None
        self.noise = AttentionNoise(
            basis=basis, clip_norm=clip_norm, noise=noise, epsilon=epsilon, delta=delta, published_delta=published
        )
        self.sensitivity = self.noise.sensitivity
        self.claimed_epsilon, self.claimed_delta = epsilon, delta

    def _perturb(self, value: Doubles, source: Source) -> Doubles:
        """Clipped attention with noise, to be normalised by whoever uses it; one event per vector."""
        checked = vectors(self.noise.basis, attention=value)
        return self.noise.add(checked, source)

    def event(self) -> Event:
        """Privacy event of the noise, for the diameter of all clipped attention vectors."""
        return self.noise.event()

    def delta(self, epsilon: float) -> float:
        """The exact profile, with the sampler's errors."""
        if self.noise.noise == "laplace":
            return super().delta(epsilon)
        return base.lattice_delta(self.event(), epsilon, self.noise.basis)

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """Two vertices (Gaussian), or uniform vectors on complementary halves (Laplace)."""
        first, second = self.noise.worst_supports()
        return _uniform_on(first, self.noise.basis), _uniform_on(second, self.noise.basis)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Five basis vectors, clip norm 0.4 (PrivateRec): proven and as published."""
        build = partial(cls, basis=5, clip_norm=0.4)
        return (
            build(epsilon=1.0, delta=1e-6),
            build(epsilon=1.0, delta=0.0, noise="laplace"),
            build(epsilon=1.0, delta=1e-6, calibration="as-published"),
            build(epsilon=10.0, delta=1e-3, calibration="as-published"),
            build(epsilon=1.0, delta=0.0, noise="laplace", calibration="as-published"),
        )


class PaddedAttention(Mechanism[Doubles | Slots, Doubles]):
    """All of GetPrivAttn: clicks are replaced by a pad with probability p, then encoded, decomposed, clipped,
    noised.

    A history is `[slots, d]`: every click keeps its position, and an absent one is the pad, so that adding or
    removing a click is replacing it. The mask is drawn afresh with every noise, stays on the client, and
    `pad` is fixed before the data. The gain is for one click; a whole history is protected as without
    padding.

    Many clients come as `Slots`, and `encode_many` then takes the vectors `[clients, slots, d]` and which places are
    taken. Only what is taken is padded: where places stay empty, how many are is no part of the promise.
    """

    name = "padded-attention"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("proven", "as-published")

    def __init__(
        self,
        *,
        encode: Callable[[Doubles], Doubles],
        basis_vectors: Doubles,
        pad: Doubles,
        slots: int,
        clip_norm: float,
        epsilon: float,
        delta: float,
        pad_probability: float,
        noise: Noise = "gaussian",
        calibration: Calibration = "proven",
        encode_many: Callable[[Doubles, Bools], Doubles] | None = None,
    ) -> None:
        self._set_calibration(calibration)
        whole(slots=slots)
        probability(pad_probability=pad_probability)
        finite(basis_vectors=basis_vectors, pad=pad)
        self.unit, self.adjacency = "click", "replace-one"
        self.encode, self.basis_vectors, self.pad, self.slots = encode, basis_vectors, pad, slots
        self.pad_probability, self.encode_many = pad_probability, encode_many
        self.noise = PaddedNoise(
            basis=len(basis_vectors),
            clip_norm=clip_norm,
            epsilon=epsilon,
            delta=delta,
            pad_probability=pad_probability,
            noise=noise,
            calibration=calibration,
        )
        self.sensitivity = self.noise.sensitivity
        self.claimed_epsilon, self.claimed_delta = epsilon, delta

    def _perturb(self, value: Doubles | Slots, source: Source) -> Doubles:
        """The noisy attention of one history, `[B]`, or of those of many clients, `[clients, B]`."""
        if isinstance(value, Slots):
            return self._perturb_clients(value, source)
        only: Doubles = self._perturb_many(value, 1, source)[0]
        return only

    def _perturb_clients(self, histories: Slots, source: Source) -> Doubles:
        if self.encode_many is None:
            raise BadInput("this mechanism was made for one history at a time: give it encode_many")
        if histories.vectors.shape[1:] != (self.slots, len(self.pad)):
            raise BadInput(
                f"histories have shape {histories.vectors.shape}: give {self.slots} slots of width {len(self.pad)}"
            )
        padded = self.noise.masks(histories.taken.shape, source) & histories.taken
        clicks = np.where(padded[..., np.newaxis], self.pad, histories.vectors)
        users = vectors(self.basis_vectors.shape[1], users=self.encode_many(clicks, histories.taken))
        return self.noise.add(decompose(users, self.basis_vectors), source)

    def _perturb_many(self, value: Doubles | Slots, count: int, source: Source) -> Doubles:
        """Release one history many times, `[count, B]`, with fresh masks; each mask that turns up is encoded once."""
        if isinstance(value, Slots):
            raise BadInput("many releases are of one history: give its vectors, [slots, d]")
        history = vectors(len(self.pad), history=value)
        if history.shape != (self.slots, len(self.pad)):
            raise BadInput(f"history has shape {history.shape}: give {self.slots} slots, the pad for an absent click")
        masks = self.noise.masks((count, self.slots), source)
        places = np.packbits(masks, axis=1).view(f"V{(self.slots + 7) // 8}").ravel()  # one value per mask
        _, first, number = np.unique(places, return_index=True, return_inverse=True)
        padded = [np.where(mask[:, np.newaxis], self.pad, history) for mask in masks[first]]
        return self.noise.add(np.stack([self.attention(clicks) for clicks in padded])[number], source)

    def attention(self, history: Doubles) -> Doubles:
        """Attention of a history over the basis, `[B]`, before it is clipped and noised."""
        return decompose(vectors(self.basis_vectors.shape[1], user=self.encode(history)), self.basis_vectors)

    def event(self) -> Event:
        """Noise that meets the click only with probability 1 - p."""
        rate, inner = 1.0 - self.pad_probability, self.noise.event()
        if isinstance(inner, GaussianEvent):
            return SampledEvent(inner.mu, rate, "padding")
        return PureEvent(amplified_epsilon(inner.epsilon, rate=rate))

    def delta(self, epsilon: float) -> float:
        """Exact for a click whose encoding reaches the sensitivity (joint convexity is tight)."""
        inner = self.noise.event()
        if isinstance(inner, GaussianEvent):
            return base.lattice_delta(self.event(), epsilon, self.noise.basis)
        rate = 1.0 - self.pad_probability
        left = inner.epsilon - (base_epsilon(epsilon, pad_probability=self.pad_probability) if epsilon > 0.0 else 0.0)
        return -rate * math.expm1(-left / 2.0) if left > 1e-12 * inner.epsilon else 0.0

    def worst_pair(self) -> tuple[Doubles, Doubles]:
        """A click that points to some interests, and one that points to others; no further clicks."""
        first, second = self.noise.worst_supports()
        histories = np.tile(self.pad, (2, self.slots, 1)).astype(np.float64)
        histories[0, 0] = self.basis_vectors[first].sum(axis=0)
        histories[1, 0] = self.basis_vectors[second].sum(axis=0)
        return histories[0], histories[1]

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """One slot, and interests so far apart that a click decides the attention."""
        far = 20.0 * np.eye(5)  # scores 400 / sqrt(5) apart
        build = partial(
            cls, encode=_only_slot, basis_vectors=far, pad=far[4], slots=1, pad_probability=0.5, clip_norm=1.0
        )
        return (
            build(epsilon=1.0, delta=1e-6),
            build(epsilon=1.0, delta=0.0, noise="laplace"),
            build(epsilon=1.0, delta=1e-6, calibration="as-published"),
            build(epsilon=1.0, delta=0.0, noise="laplace", calibration="as-published"),
        )


def _only_slot(history: Doubles) -> Doubles:
    return np.asarray(history[0])
