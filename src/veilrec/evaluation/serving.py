"""Ways to serve a news model when only a private query leaves the device: how each is asked, and how it is read.

What a way of serving promises: of one query, and of all that a device asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from veilrec.audit.flawed import FLAWS
from veilrec.client.queries import (
    MODES,
    OPTIONS,
    PRIVATE,
    AttentionInput,
    Encoder,
    Mode,
    NearestInterest,
    Padding,
    PlacedInput,
    PooledInput,
    QueryMethod,
    Serving,
    Sizes,
    UserModel,
    UserVectors,
    make_mechanism,
    numbers_of,
)
from veilrec.core.arrays import Bools, Doubles, Floats
from veilrec.core.errors import BadInput, known_name
from veilrec.evaluation.serving_public import PooledSpace, expected_users, pooled_space, public_interests
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.checks import positive
from veilrec.privacy.events import repeated
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.privacy.mechanisms.base import Mechanism
from veilrec.privacy.mechanisms.interests import EmbeddingNoise, PooledInterest
from veilrec.serving.answering import AsTold, FromAttention, FromInterest, Reconstruction
from veilrec.wire.queries import Kind, QueryShape

_LARGEST_POOL = 1000  # unless told otherwise
_PUBLIC_SEED = 0  # of made-up readers and public interests


def every_way(
    modes: tuple[Mode, ...], epsilons: tuple[float, ...], options: dict[str, Any]
) -> list[Serving | UnavailableMode]:
    """Every mode at every epsilon, each with the options that mean something there; or why a mode cannot be served."""
    for epsilon in epsilons:
        positive(epsilon=epsilon)
    ways: list[Serving | UnavailableMode] = []
    for mode in modes:
        own = {name: value for name, value in options.items() if mode in OPTIONS.get(name, MODES)}
        if mode not in PRIVATE:
            ways.append(Serving(mode=mode, **own))
            continue
        try:
            ways += [Serving(mode=mode, epsilon=epsilon, **own) for epsilon in epsilons or (None,)]
        except BadInput as reason:
            ways.append(UnavailableMode(mode, str(reason)))
    return ways


@dataclass(frozen=True)
class UnavailableMode:
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
class ServingPlan:
    """Both sides of a private query: how devices ask, and how the server reads it."""

    asking: QueryMethod
    reads: Reconstruction
    pool: int | None = None  # news that come back for the device to rank; None: the server ranks


def make_plan(serving: Serving, model: ServedModel, categories: list[str] | None) -> ServingPlan:
    """What a private mode does with a model; `categories` are those of the news, where they are known."""
    if serving.mode == "attention":
        return _attention(serving, model)
    if serving.mode == "pooled":
        return _pooled(serving, model, categories)
    if serving.mode == "interest":
        return _interest(serving, model)
    dim = model.news.shape[1]
    mechanism = make_mechanism(serving, Sizes(dim=dim))
    return ServingPlan(QueryMethod(UserVectors(model), mechanism, QueryShape("vector", dim), len(model.news)), AsTold())


def _attention(serving: Serving, model: ServedModel) -> ServingPlan:
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
    encoder: Encoder = AttentionInput(model, basis)
    if serving.padding:
        # As published only clicks are padded; with every slot filled, adding and removing a click are covered, too.
        encoder = PlacedInput(model.news, pad, model.longest, fill=serving.calibrated == "proven")
    asking = QueryMethod(encoder, make_mechanism(serving, sizes), QueryShape("attention", count), len(model.news))
    return ServingPlan(asking, FromAttention(interests, serving.normalisation))


def _users_in_slots(model: ServedModel) -> Callable[[Doubles, Bools], Doubles]:
    return lambda clicks, taken: numbers_of(model.users_in_slots(clicks, taken))


def _pooled(serving: Serving, model: ServedModel, categories: list[str] | None) -> ServingPlan:
    axes = serving.axes or min(16, model.news.shape[1])
    if axes > model.news.shape[1]:
        raise BadInput(f"axes is {axes}: news vectors have {model.news.shape[1]} numbers, give at most that")
    space: PooledSpace = pooled_space(model.news, axes)
    sizes = Sizes(slots=model.longest, axes=axes, pooled_clip=space.clip_norm)
    mechanism = make_mechanism(serving, sizes)
    sensitive = None if serving.sensitive is None else in_categories(serving.sensitive, categories)
    encoder = PooledInput(space.table, model.longest, sensitive)
    kind: Kind = "pooled" if sensitive is None else "pooled-and-clear"
    asking = QueryMethod(encoder, mechanism, QueryShape(kind, axes if sensitive is None else 2 * axes), len(model.news))
    noise = mechanism.sigma if isinstance(mechanism, PooledInterest) else 0.0
    return ServingPlan(asking, expected_users(model, model.news, encoder, noise, _PUBLIC_SEED))


def in_categories(wanted: tuple[str, ...], categories: list[str] | None) -> Bools:
    """Which news are in one of these categories."""
    if categories is None:
        raise BadInput("the news have no categories: leave --sensitive out, and every click is protected")
    known = sorted(set(categories) - {""})
    chosen = {known_name("category", name, known) for name in wanted}
    if not chosen:
        raise BadInput("no category is sensitive: name at least one, or leave --sensitive out")
    return np.array([category in chosen for category in categories], np.bool_)


def _interest(serving: Serving, model: ServedModel) -> ServingPlan:
    n_news = len(model.news)
    pool = min(_LARGEST_POOL, n_news) if serving.pool is None else serving.pool
    if pool > n_news:
        raise BadInput(f"pool is {pool}: there are {n_news} news, ask for at most that")
    encoder: Encoder
    interests = model.interests
    if model.basis is not None and interests is not None:
        if serving.interests is not None:
            raise BadInput("the model of this run has interests of its own, its basis vectors: leave --interests out")
        encoder = AttentionInput(model, model.basis)
    else:
        count = serving.interests or 8
        if count < 2 or count > n_news:
            raise BadInput(f"interests is {count}: give 2 to the number of news, {n_news}")
        interests = public_interests(model, model.news, count, _PUBLIC_SEED)
        encoder = NearestInterest(model, interests.astype(np.float64))
    mechanism = make_mechanism(serving, Sizes(basis=len(interests)))
    keep = 1.0 / (1.0 + (len(interests) - 1) * np.exp(-(serving.epsilon or 0.0)))
    asking = QueryMethod(encoder, mechanism, QueryShape("interest", len(interests)), n_news)
    return ServingPlan(asking, FromInterest(interests, float(keep)), pool)


SIMULATED = "Measured with seeded noise on a log that lies in one place: the measurement protects nobody."
ONLY_THE_QUERY = "Only the query is covered: not what the model gives away of those it learnt from."
CLICKS_FOLLOW = "Clicks that follow, and that a device asks at all, are another matter."
_CLICK_ONLY = "One click is covered, not a habit: all clicks on one subject together move the message further."


def guarantee_of(serving: Serving, mechanism: Mechanism[Any, Any] | None) -> Guarantee:
    """Of one query."""
    if serving.mode == "plain":
        return no_guarantee("The server gets the user vector as it is.")
    if serving.mode == "none-sent":
        nothing = "Nothing is sent: the device downloads the same news as every other one and ranks them itself."
        return Guarantee(
            "proven", "history", "replace-one", 0.0, 0.0, "lifetime", "nobody", (nothing, ONLY_THE_QUERY, CLICKS_FOLLOW)
        )
    if mechanism is None:
        raise BadInput(f"serving by {serving.mode} has no mechanism, and so no guarantee")
    caveats = [*_scope(serving, mechanism), ONLY_THE_QUERY, CLICKS_FOLLOW, SIMULATED]
    honest: dict[str, Any] = {}
    published = mechanism.calibration == "as-published"
    if published:
        # A paper's delta of 0 is asked of pure noise only, which has an honest epsilon at 0.
        delta = mechanism.claimed_delta
        why = _why(mechanism) if mechanism.delta(mechanism.claimed_epsilon) > delta * (1.0 + 1e-6) else ""
        honest = {"honest_epsilon": epsilon_of(mechanism.event(), delta), "honest_delta": delta, "honest_note": why}
    return Guarantee(
        "as published" if published else "proven",
        mechanism.unit,
        mechanism.adjacency,
        mechanism.claimed_epsilon,
        mechanism.claimed_delta,
        mechanism.scope,
        mechanism.trust,
        tuple(caveats),
        event=mechanism.event(),
        **honest,
    )


def _why(mechanism: Mechanism[Any, Any]) -> str:
    if isinstance(mechanism, EmbeddingNoise) and mechanism.noise == "gaussian":
        return "the textbook formula for sigma is proved for epsilon below 1 only"
    return FLAWS[mechanism.name]


def _scope(serving: Serving, mechanism: Mechanism[Any, Any]) -> list[str]:
    told = []
    if serving.sensitive is not None:
        names = ", ".join(serving.sensitive)
        told.append(
            f"Only clicks on {names} are covered, and only being there, not there, or another one of these. All other"
            " clicks are told exactly, and what they let guess of the covered ones is not covered. The list of"
            " categories is visible itself, so it has to be the same for many people."
        )
    if mechanism.unit == "click":
        told.append(_CLICK_ONLY)
    if serving.padding and mechanism.calibration == "as-published":
        told.append("How many clicks there are is not covered: only clicks are padded, not the places without one.")
    return told


def composed(serving: Serving, mechanism: Mechanism[Any, Any] | None) -> Guarantee | None:
    """Of all queries that a device asks, honestly, whatever was claimed of one; None where one was asked about."""
    if serving.queries is None and not serving.memoised:
        return None
    if mechanism is None:
        raise BadInput(f"{serving.mode} sends no private query: leave --queries and --memoised out")
    count = serving.queries or 1
    drawn = 1 if serving.memoised else count
    delta = serving.delta or mechanism.claimed_delta
    event = repeated(mechanism.event(), drawn)
    asked = "1 query" if count == 1 else f"{count:,} queries"
    how = (
        f"{asked} of one public period and one version of the model, drawn once and then repeated: every further period"
        " and every new version costs as much again."
        if serving.memoised
        else f"{asked}, each with noise of its own; a device that asks more has spent more."
    )
    return Guarantee(
        "proven",
        mechanism.unit,
        mechanism.adjacency,
        epsilon_of(event, delta),
        delta,
        "per message" if serving.memoised else "lifetime",  # the next period's is another message
        mechanism.trust,
        (how, *_scope(serving, mechanism), ONLY_THE_QUERY, CLICKS_FOLLOW, SIMULATED),
        event=event,
    )
