"""Ways to serve a news model when only a private query leaves the device: what is sent, and how it is read.

plain       the user vector as it is: no privacy
none-sent   nothing: the device downloads all news and ranks them itself
attention   noisy attention over the model's basis vectors (PrivateRec, Algorithms 1 and 2)
pooled      a noisy sum of the clicked news along public axes; the promise is for one click
interest    the nearest of a few public interests, or a lie; the device ranks the pool that comes back itself
vector      the user vector with noise (PrivateRec's baseline VDP)

`make_mechanism` makes what `serve` runs and `veilrec audit serving` attacks: there is no other copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np

from veilrec._arrays import Bools, Doubles, Floats
from veilrec.device.asking import (
    Asking,
    Attention,
    Encoder,
    NearestInterest,
    PlacedClicks,
    PooledClicks,
    UserModel,
    UserVectors,
    numbers_of,
)
from veilrec.errors import BadInput, known_name, unknown_name
from veilrec.evaluate.serving_public import PooledSpace, expected_users, pooled_space, public_interests
from veilrec.privacy.checks import positive, probability
from veilrec.privacy.mechanisms.attention import Noise, Normalisation, PaddedAttention, PrivateAttention
from veilrec.privacy.mechanisms.base import Calibration, Mechanism
from veilrec.privacy.mechanisms.interests import EmbeddingNoise, InterestResponse, PooledInterest
from veilrec.server.answering import AsTold, FromAttention, FromInterest, Reconstruction
from veilrec.wire.queries import Kind, Question

Mode = Literal["plain", "none-sent", "attention", "pooled", "interest", "vector"]
MODES: tuple[Mode, ...] = get_args(Mode)
PRIVATE: tuple[Mode, ...] = ("attention", "pooled", "interest", "vector")  # those that send a private query
_LARGEST_POOL = 1000  # unless told otherwise
_PUBLIC_SEED = 0  # of made-up readers and public interests
_CLIP: dict[str, float] = {"attention": 1.0, "vector": 0.001}  # theta; the paper's for vectors
# Which options mean something in which mode; others are refused there, so that nobody believes that they did something.
_OPTIONS: dict[str, tuple[Mode, ...]] = {
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
        for name, modes in _OPTIONS.items():
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


def every_way(modes: tuple[Mode, ...], epsilons: tuple[float, ...], options: dict[str, Any]) -> list[Serving | Refused]:
    """Every mode at every epsilon, each with the options that mean something there; or why a mode cannot be served."""
    for epsilon in epsilons:
        positive(epsilon=epsilon)
    ways: list[Serving | Refused] = []
    for mode in modes:
        own = {name: value for name, value in options.items() if mode in _OPTIONS.get(name, MODES)}
        if mode not in PRIVATE:
            ways.append(Serving(mode=mode, **own))
            continue
        try:
            ways += [Serving(mode=mode, epsilon=epsilon, **own) for epsilon in epsilons or (None,)]
        except BadInput as reason:
            ways.append(Refused(mode, str(reason)))
    return ways


@dataclass(frozen=True)
class Refused:
    """A way of serving that is not to be had, and why."""

    mode: Mode
    why: str


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


class ServedModel(UserModel, Protocol):
    """A news model that can be served."""

    @property
    def news(self) -> Floats:
        """The vectors of all news: [items, dim]."""

    @property
    def basis(self) -> Doubles | None:
        """Basis vectors, [B, dim]; None where the model has none."""

    @property
    def interests(self) -> Floats | None:
        """The user vector of each basis vector alone: [B, dim]."""

    @property
    def pad(self) -> Doubles | None:
        """What a padded click looks like."""


@dataclass(frozen=True)
class Plan:
    """Both sides of a private query: how devices ask, and how the server reads it."""

    asking: Asking
    reads: Reconstruction
    pool: int | None = None  # news that come back for the device to rank; None: the server ranks


def make_plan(serving: Serving, model: ServedModel, categories: list[str] | None) -> Plan:
    """What a private mode does with a model; `categories` are those of the news, where they are known."""
    if serving.mode == "attention":
        return _attention(serving, model)
    if serving.mode == "pooled":
        return _pooled(serving, model, categories)
    if serving.mode == "interest":
        return _interest(serving, model)
    dim = model.news.shape[1]
    mechanism = make_mechanism(serving, Sizes(dim=dim))
    return Plan(Asking(UserVectors(model), mechanism, Question("vector", dim), len(model.news)), AsTold())


def _attention(serving: Serving, model: ServedModel) -> Plan:
    basis, interests, pad = model.basis, model.interests, model.pad
    if basis is None or interests is None or pad is None:
        raise BadInput(
            "the model of this run has no basis vectors, so that there is no attention to send: serve by pooled,"
            " interest or none-sent, or train a model with basis vectors (privaterec)"
        )
    count, dim = basis.shape
    if count > dim:
        raise BadInput(
            f"the model has {count} basis vectors of {dim} numbers: attention over more of them than numbers hides"
            " nothing that the vector would not; serve by vector, or train with fewer"
        )
    sizes = Sizes(dim, count, model.longest, padding=Padding(_users_in_slots(model), basis, pad))
    encoder: Encoder = Attention(model, basis)
    if serving.padding:
        # As published only clicks are padded; with every slot filled, adding and removing a click are covered, too.
        encoder = PlacedClicks(model.news, pad, model.longest, fill=serving.calibrated == "proven")
    asking = Asking(encoder, make_mechanism(serving, sizes), Question("attention", count), len(model.news))
    return Plan(asking, FromAttention(interests, serving.normalisation))


def _users_in_slots(model: ServedModel) -> Callable[[Doubles, Bools], Doubles]:
    return lambda clicks, taken: numbers_of(model.users_in_slots(clicks, taken))


def _pooled(serving: Serving, model: ServedModel, categories: list[str] | None) -> Plan:
    axes = serving.axes or min(16, model.news.shape[1])
    if axes > model.news.shape[1]:
        raise BadInput(f"axes is {axes}: news vectors have {model.news.shape[1]} numbers, give at most that")
    space: PooledSpace = pooled_space(model.news, axes)
    sizes = Sizes(slots=model.longest, axes=axes, pooled_clip=space.clip_norm)
    mechanism = make_mechanism(serving, sizes)
    sensitive = None if serving.sensitive is None else in_categories(serving.sensitive, categories)
    encoder = PooledClicks(space.table, model.longest, sensitive)
    kind: Kind = "pooled" if sensitive is None else "pooled-and-clear"
    asking = Asking(encoder, mechanism, Question(kind, axes if sensitive is None else 2 * axes), len(model.news))
    noise = mechanism.sigma if isinstance(mechanism, PooledInterest) else 0.0
    return Plan(asking, expected_users(model, model.news, encoder, noise, _PUBLIC_SEED))


def in_categories(wanted: tuple[str, ...], categories: list[str] | None) -> Bools:
    """Which news are in one of these categories."""
    if categories is None:
        raise BadInput("the news have no categories: leave --sensitive out, and every click is protected")
    known = sorted(set(categories) - {""})
    chosen = {known_name("category", name, known) for name in wanted}
    if not chosen:
        raise BadInput("no category is sensitive: name at least one, or leave --sensitive out")
    return np.array([category in chosen for category in categories], np.bool_)


def _interest(serving: Serving, model: ServedModel) -> Plan:
    n_news = len(model.news)
    pool = min(_LARGEST_POOL, n_news) if serving.pool is None else serving.pool
    if pool > n_news:
        raise BadInput(f"pool is {pool}: there are {n_news} news, ask for at most that")
    encoder: Encoder
    interests = model.interests
    if model.basis is not None and interests is not None:
        if serving.interests is not None:
            raise BadInput("the model of this run has interests of its own, its basis vectors: leave --interests out")
        encoder = Attention(model, model.basis)
    else:
        count = serving.interests or 8
        if count < 2 or count > n_news:
            raise BadInput(f"interests is {count}: give 2 to the number of news, {n_news}")
        interests = public_interests(model, model.news, count, _PUBLIC_SEED)
        encoder = NearestInterest(model, interests.astype(np.float64))
    mechanism = make_mechanism(serving, Sizes(basis=len(interests)))
    keep = 1.0 / (1.0 + (len(interests) - 1) * np.exp(-(serving.epsilon or 0.0)))
    asking = Asking(encoder, mechanism, Question("interest", len(interests)), n_news)
    return Plan(asking, FromInterest(interests, float(keep)), pool)
