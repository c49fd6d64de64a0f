"""Ways to ask when only a private query leaves the device: what is sent, and the mechanism that releases it.

plain       the user vector as it is: no privacy
none-sent   nothing: the device downloads all news and ranks them itself
attention   noisy attention over the model's basis vectors (PrivateRec, Algorithms 1 and 2)
pooled      a noisy sum of the clicked news along public axes; the promise is for one click
interest    the nearest of a few public interests, or a lie; the device ranks the pool that comes back itself
vector      the user vector with noise (PrivateRec's baseline VDP)

`make_mechanism` makes what a device runs, what is measured, and what `veilrec audit serving` attacks: no other copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from veilrec._arrays import Bools, Doubles
from veilrec.errors import BadInput, unknown_name
from veilrec.privacy.checks import positive, probability
from veilrec.privacy.mechanisms.attention import Noise, Normalisation, PaddedAttention, PrivateAttention
from veilrec.privacy.mechanisms.base import Calibration, Mechanism
from veilrec.privacy.mechanisms.interests import EmbeddingNoise, InterestResponse, PooledInterest

Mode = Literal["plain", "none-sent", "attention", "pooled", "interest", "vector"]
MODES: tuple[Mode, ...] = get_args(Mode)
PRIVATE: tuple[Mode, ...] = ("attention", "pooled", "interest", "vector")  # those that send a private query
_CLIP: dict[str, float] = {"attention": 1.0, "vector": 0.001}  # theta; the paper's for vectors
# Which options mean something in which mode; others are refused there, so that nobody believes that they did something.
OPTIONS: dict[str, tuple[Mode, ...]] = {
    "epsilon": PRIVATE,
    "delta": PRIVATE,
    "calibration": PRIVATE,
    "noise": ("attention", "vector"),
    "normalise": ("attention",),
    "clip": ("attention", "vector"),
    "padding": ("attention",),
    "axes": ("pooled",),
    "interests": ("interest",),
    "pool": ("interest",),
    "sensitive": ("pooled",),
    "queries": PRIVATE,
    "memoised": PRIVATE,
}


@dataclass(frozen=True, kw_only=True)
class Serving:
    """How a model is served; what is None or empty is as usual for the mode."""

    mode: Mode
    epsilon: float | None = None  # of one query
    delta: float | None = None  # of one query; for pure mechanisms, of several together
    calibration: Calibration | None = None
    noise: Noise | None = None  # Gaussian where a delta is given, else Laplace
    normalise: Normalisation | None = None  # as published softplus, else simplex
    clip: float | None = None  # theta: longest attention, or longest user vector
    padding: float | None = None  # p: chance that a click is replaced by the pad
    axes: int | None = None  # principal axes of the news that clicks are pooled along: 16
    interests: int | None = None  # public interests of a model without basis vectors: 8
    pool: int | None = None  # news that come back for an interest: 1000, or all if there are fewer
    sensitive: tuple[str, ...] | None = None  # categories whose clicks alone are protected
    queries: int | None = None  # how many a device asks, for what they give away together
    memoised: bool | None = None  # whether a query is drawn once per public period
    seed: int = 0  # of the noise alone: whatever is public is the same for everybody

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise unknown_name("way of serving", self.mode, MODES)
        for name, modes in OPTIONS.items():
            if getattr(self, name) not in (None, False) and self.mode not in modes:
                raise BadInput(f"{name} means nothing for {self.mode}: leave it out, or serve by {' or '.join(modes)}")
        if self.mode in PRIVATE:
            self._check_private()

    def _check_private(self) -> None:
        if self.epsilon is None:
            raise BadInput(f"serving by {self.mode} needs an epsilon: give --epsilon, of one query")
        positive(epsilon=self.epsilon)
        if self.delta is not None:
            probability(delta=self.delta)
        elif self.mode == "pooled" or self.noise == "gaussian":
            raise BadInput(f"serving by {self.mode} with Gaussian noise needs a delta: give --delta, such as 1e-6")
        if self.calibration == "as-published" and self.mode not in ("attention", "vector"):
            raise BadInput(f"no paper publishes {self.mode}: leave the calibration out, it is proven")
        if self.clip is not None:
            positive(clip=self.clip)
        if self.padding is not None and not 0.0 <= self.padding < 1.0:
            raise BadInput(f"padding is {self.padding}: give a chance from 0 to below 1")
        for name in ("axes", "interests", "pool", "queries"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"{name} is {value}: give at least 1")

    @property
    def calibrated(self) -> Calibration:
        """Proven unless told otherwise."""
        return self.calibration or "proven"

    @property
    def law(self) -> Noise:
        """Of the noise."""
        return self.noise or ("laplace" if self.delta is None else "gaussian")

    @property
    def normalisation(self) -> Normalisation:
        """As in the paper, or the nearest point."""
        return self.normalise or ("softplus" if self.calibrated == "as-published" else "simplex")


@dataclass(frozen=True)
class Padding:
    """What padded attention needs of a model."""

    encode: Callable[[Doubles, Bools], Doubles]  # [devices, slots, dim] and which places are taken -> [devices, dim]
    basis: Doubles
    pad: Doubles


@dataclass(frozen=True)
class Sizes:
    """What a mechanism depends on beside its settings; all public."""

    dim: int = 64  # of a user vector
    basis: int = 5  # basis vectors, or public interests
    slots: int = 50
    axes: int = 16
    pooled_clip: float = 1.0
    padding: Padding | None = None


def make_mechanism(serving: Serving, sizes: Sizes) -> Mechanism[Any, Any]:
    """The mechanism of a mode that sends a private query."""
    epsilon, delta = serving.epsilon or 0.0, serving.delta or 0.0
    clip = serving.clip or _CLIP.get(serving.mode, 1.0)
    noise_delta = delta if serving.law == "gaussian" else 0.0
    match serving.mode:
        case "pooled":
            return PooledInterest(
                projection=np.eye(sizes.axes),
                clip_norm=sizes.pooled_clip,
                slots=sizes.slots,
                epsilon=epsilon,
                delta=delta,
            )
        case "interest":
            return InterestResponse(basis=sizes.basis, epsilon=epsilon)
        case "vector":
            return EmbeddingNoise(
                dimension=sizes.dim,
                clip_norm=clip,
                epsilon=epsilon,
                delta=noise_delta,
                noise=serving.law,
                calibration=serving.calibrated,
            )
        case "attention" if not serving.padding:
            return PrivateAttention(
                basis=sizes.basis,
                clip_norm=clip,
                epsilon=epsilon,
                delta=noise_delta,
                noise=serving.law,
                calibration=serving.calibrated,
            )
        case "attention" if sizes.padding is not None:
            parts = sizes.padding
            return PaddedAttention(
                encode=lambda history: parts.encode(history[np.newaxis], np.ones((1, len(history)), np.bool_))[0],
                encode_many=parts.encode,
                basis_vectors=parts.basis,
                pad=parts.pad,
                slots=sizes.slots,
                clip_norm=clip,
                epsilon=epsilon,
                delta=noise_delta,
                pad_probability=serving.padding or 0.0,
                noise=serving.law,
                calibration=serving.calibrated,
            )
    raise BadInput(f"{serving.mode} sends no private query: there is no mechanism")
