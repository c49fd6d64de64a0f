"""Ways to serve a news model when only a private query leaves the device: how each is asked, and how it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

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
from veilrec.device.ways import MODES, OPTIONS, PRIVATE, Mode, Padding, Serving, Sizes, make_mechanism
from veilrec.errors import BadInput, known_name
from veilrec.evaluate.serving_public import PooledSpace, expected_users, pooled_space, public_interests
from veilrec.privacy.checks import positive
from veilrec.privacy.mechanisms.interests import PooledInterest
from veilrec.server.answering import AsTold, FromAttention, FromInterest, Reconstruction
from veilrec.wire.queries import Kind, Question

_LARGEST_POOL = 1000  # unless told otherwise
_PUBLIC_SEED = 0  # of made-up readers and public interests


def every_way(modes: tuple[Mode, ...], epsilons: tuple[float, ...], options: dict[str, Any]) -> list[Serving | Refused]:
    """Every mode at every epsilon, each with the options that mean something there; or why a mode cannot be served."""
    for epsilon in epsilons:
        positive(epsilon=epsilon)
    ways: list[Serving | Refused] = []
    for mode in modes:
        own = {name: value for name, value in options.items() if mode in OPTIONS.get(name, MODES)}
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
