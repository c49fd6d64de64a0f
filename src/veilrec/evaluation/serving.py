"""Public parts of a private query: made of the model and the news alone, without anybody's clicks.

Synthetic readers stand in for people here: histories drawn at random from groups of similar news. The model says what
vector each would have; from that come public interests, and what vector to expect of a pooled history.

Serving modes in which only a private query leaves the client: how each is asked, and how it is read.

The guarantees of a serving mode: of one query, and of all that a client asks.

What a user gets when a model is served privately: scores of what was shown, recall of the best, skew, bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

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
from veilrec.core.arrays import Bools, Doubles, Floats, Indices, Offsets
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.errors import BadInput, known_name
from veilrec.data.population import Impressions, Strings
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.checks import positive
from veilrec.privacy.events import repeated
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.privacy.mechanisms.base import PUBLISHED_FLAWS, Mechanism
from veilrec.privacy.mechanisms.clipping import clip_flat
from veilrec.privacy.mechanisms.interests import EmbeddingNoise, PooledInterest
from veilrec.privacy.randomness import SeededSource
from veilrec.serving.answering import (
    AsTold,
    FromAttention,
    FromInterest,
    FromPooled,
    Reconstruction,
    best_of,
    marked,
    scores_in_lists,
)
from veilrec.wire.queries import Kind, QueryShape

_GROUPS, _READERS, _STEPS = 20, 4000, 25
_FEW_GROUPS = 0.2  # of the Dirichlet distribution that a synthetic reader's interests are drawn from
_SHORTEST = 2


def groups_of(vectors: Doubles, count: int, seed: int) -> tuple[Doubles, Offsets]:
    """k-means: the centres of so many groups, [count, d], and the group of every vector; the same for the same seed."""
    generator = np.random.default_rng(seed)
    centres = vectors[[int(generator.integers(len(vectors)))]]
    nearest = _distances(vectors, centres)[:, 0]
    while len(centres) < count:  # the next one far from those that are there (k-means++)
        total = nearest.sum()
        chances = nearest / total if total > 0.0 else None
        centres = np.concatenate((centres, vectors[[int(generator.choice(len(vectors), p=chances))]]))
        nearest = np.minimum(nearest, _distances(vectors, centres[-1:])[:, 0])
    group = np.zeros(len(vectors), np.int64)
    for _ in range(_STEPS):
        group = _distances(vectors, centres).argmin(axis=1)
        sizes = np.bincount(group, minlength=count)
        sums = np.zeros_like(centres)
        np.add.at(sums, group, vectors)
        moved = np.where(sizes[:, np.newaxis] > 0, sums / np.maximum(sizes, 1)[:, np.newaxis], centres)
        if np.array_equal(moved, centres):
            break
        centres = moved
    return centres, group


def _distances(vectors: Doubles, centres: Doubles) -> Doubles:
    """Squared, [vectors, centres]; not below 0."""
    squares = (vectors**2).sum(axis=1)[:, np.newaxis] + (centres**2).sum(axis=1)
    return np.asarray(np.maximum(squares - 2.0 * vectors @ centres.T, 0.0))


def made_up_histories(news: Floats, longest: int, seed: int) -> Csr:
    """Draw synthetic histories: of any length up to the longest, each from a few groups of similar news."""
    generator = np.random.default_rng([seed, 1])
    _, group = groups_of(news.astype(np.float64), min(_GROUPS, len(news)), seed)
    members = np.argsort(group, kind="stable")
    sizes = np.bincount(group)
    begins = offsets_of(sizes)
    taste = generator.dirichlet(np.full(len(sizes), _FEW_GROUPS), _READERS)
    weighed = taste * (sizes > 0)
    weighed /= np.maximum(weighed.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    lengths = generator.integers(min(_SHORTEST, longest), longest + 1, _READERS)
    owners = np.repeat(np.arange(_READERS), lengths)
    cumulated = np.cumsum(weighed, axis=1)
    chosen = (cumulated[owners] < generator.random(len(owners))[:, np.newaxis]).sum(axis=1)
    chosen = np.minimum(chosen, len(sizes) - 1)
    place = (generator.random(len(owners)) * np.maximum(sizes[chosen], 1)).astype(np.int64)
    items = members[np.minimum(begins[chosen] + place, len(members) - 1)]
    return Csr(offsets_of(lengths), items.astype(np.int32))


def public_interests(model: UserModel, news: Floats, count: int, seed: int) -> Floats:
    """Return the typical user vectors of `count` kinds of synthetic readers: [count, dim]."""
    users = model.users(made_up_histories(news, model.longest, seed)).astype(np.float64)
    return groups_of(users, count, seed)[0].astype(np.float32)


@dataclass(frozen=True)
class PooledSpace:
    """News along their principal axes, cut to one length: what a pooled history is a sum of."""

    table: Doubles  # [items, axes]
    clip_norm: float
    centre: Doubles  # [dim]: the mean of the news
    axes: Doubles  # [dim, axes]


def pooled_space(news: Floats, axes: int) -> PooledSpace:
    """The main axes of the news vectors around their mean; half of the news are cut to the length of the median."""
    centre = news.astype(np.float64).mean(axis=0)
    centred = news.astype(np.float64) - centre
    _, directions = np.linalg.eigh(centred.T @ centred)
    main = np.ascontiguousarray(directions[:, ::-1][:, :axes])
    along = centred @ main
    norm = float(np.median(np.linalg.norm(along, axis=1)))
    clip_norm = norm if norm > 0.0 else 1.0
    return PooledSpace(clip_flat(along, clip_norm), clip_norm, centre, main)


def expected_users(model: UserModel, news: Floats, pooled: PooledInput, noise: float, seed: int) -> FromPooled:
    """Fit the best linear guess of a user vector from a noisy pooled one, over synthetic readers.

    Much noise makes the guess cautious: towards the vector that all readers have in common.
    """
    histories = made_up_histories(news, model.longest, seed)
    told = PooledInput(pooled.table, pooled.slots).inputs(histories).sums(pooled.table) / pooled.slots
    users = model.users(histories).astype(np.float64)
    told_mean, mean = told.mean(axis=0), users.mean(axis=0)
    spread = (told - told_mean).T @ (told - told_mean) / len(told)
    together = (told - told_mean).T @ (users - mean) / len(told)
    tiny = 1e-9 * max(float(np.trace(spread)), np.finfo(np.float64).tiny)
    slope = np.linalg.solve(spread + (noise**2 + tiny) * np.eye(len(spread)), together)
    return FromPooled(slope, mean, told_mean)


_LARGEST_POOL = 1000  # unless told otherwise
_PUBLIC_SEED = 0  # of synthetic readers and public interests


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
    """A serving mode that this model cannot offer, and why."""

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
    """Both sides of a private query: how clients ask, and how the server reads it."""

    asking: QueryMethod
    reads: Reconstruction
    pool: int | None = None  # news that come back for the client to rank; None: the server ranks


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

    def in_slots(clicks: Doubles, taken: Bools) -> Doubles:
        return numbers_of(model.users_in_slots(clicks, taken))

    sizes = Sizes(dim, count, model.longest, padding=Padding(in_slots, basis, pad))
    encoder: Encoder = AttentionInput(model, basis)
    if serving.padding:
        # As published only clicks are padded; with every slot filled, adding and removing a click are covered, too.
        encoder = PlacedInput(model.news, pad, model.longest, fill=serving.calibrated == "proven")
    asking = QueryMethod(encoder, make_mechanism(serving, sizes), QueryShape("attention", count), len(model.news))
    return ServingPlan(asking, FromAttention(interests, serving.normalisation))


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
CLICKS_FOLLOW = "Clicks that follow, and that a client asks at all, are another matter."
_CLICK_ONLY = "One click is covered, not a habit: all clicks on one subject together move the message further."


def guarantee_of(serving: Serving, mechanism: Mechanism[Any, Any] | None) -> Guarantee:
    """Return the guarantee of one query."""
    if serving.mode == "plain":
        return no_guarantee("The server gets the user vector as it is.")
    if serving.mode == "none-sent":
        nothing = "Nothing is sent: the client downloads the same news as every other one and ranks them itself."
        caveats = (nothing, ONLY_THE_QUERY, CLICKS_FOLLOW)
        return Guarantee("proven", "history", "replace-one", 0.0, 0.0, "lifetime", "nobody", caveats)
    if mechanism is None:
        raise BadInput(f"serving by {serving.mode} has no mechanism, and so no guarantee")
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
        (*_scope(serving, mechanism), ONLY_THE_QUERY, CLICKS_FOLLOW, SIMULATED),
        event=mechanism.event(),
        **honest,
    )


def _why(mechanism: Mechanism[Any, Any]) -> str:
    if isinstance(mechanism, EmbeddingNoise) and mechanism.noise == "gaussian":
        return "the textbook formula for sigma is proved for epsilon below 1 only"
    return PUBLISHED_FLAWS[mechanism.name]


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
    """Return the honest guarantee of all queries of a client together; None where only one was asked about."""
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
        else f"{asked}, each with noise of its own; a client that asks more has spent more."
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


BEST = 100  # of recall@100
_RECALLED = 2000  # queries whose best news are compared: whole catalogues take long


@dataclass(frozen=True)
class ServingResult:
    """How one serving mode answered the impressions."""

    scores: Doubles | Floats  # of everything that was shown
    recall: float
    recalled: int  # queries that it was measured on
    skew: float
    bytes_up: int
    bytes_down: float
    plan: ServingPlan | None  # None where no private query is sent


@dataclass(frozen=True)
class PublicTexts:
    """What a client shows of the news: their ids, and titles where there are any."""

    ids: Strings
    titles: Strings | None

    def sizes(self) -> Offsets:
        """Bytes of every news."""
        lengths: Offsets = np.diff(self.ids.offsets)
        return lengths if self.titles is None else lengths + np.diff(self.titles.offsets)


def serve(
    serving: Serving,
    model: ServedModel,
    impressions: Impressions,
    plain_scores: Floats,
    texts: PublicTexts,
    categories: list[str] | None = None,
) -> ServingResult:
    """Ask once per impression, each with noise of its own, and answer.

    `plain_scores` are what the model itself gives to what was shown. bytes_down is what a client downloads per query:
    the ids and titles of the 100 best news where the server ranks; ids, titles and vectors of the pool where the client
    does; of all news where nothing is sent.
    """
    news, sizes = model.news, texts.sizes()
    vector_bytes = news.nbytes // len(news)
    if serving.mode == "none-sent":
        down = float(sizes.sum() + len(news) * vector_bytes)
        return ServingResult(plain_scores, 1.0, len(impressions), 0.0, 0, down, None)
    best = min(BEST, len(news))
    rows = impressions.history_of.astype(np.int64)
    some = np.unique(np.linspace(0, max(0, len(rows) - 1), min(_RECALLED, len(rows))).astype(np.int64))
    users = model.users(impressions.histories)
    wanted = best_of(users[rows[some]], news, best)
    if serving.mode == "plain":
        sent, down = QueryShape("vector", news.shape[1]).bytes, float(sizes[wanted].sum(axis=1).mean())
        return ServingResult(plain_scores, 1.0, len(some), 0.0, sent, down, None)
    plan = make_plan(serving, model, categories)
    told = plan.asking.told(impressions.histories.take(rows), SeededSource(serving.seed))
    guessed = plan.reads.users(told)
    shown, everybody = impressions.shown, np.arange(len(rows), dtype=np.int64)
    scores: Doubles | Floats = scores_in_lists(guessed, news, everybody, shown)
    if plan.pool is None:
        found = best_of(guessed[some], news, best)
        down = float(sizes[found].sum(axis=1).mean())
    else:
        answers, pool_of = np.unique(told, axis=0, return_inverse=True)
        pool_of = pool_of.reshape(-1)
        pools = marked(best_of(plan.reads.users(answers), news, plan.pool), len(news))  # [answers, items]
        in_pool = pools[pool_of[shown.row_numbers()], shown.items]
        scores = np.where(in_pool, 1.0 + _places(plain_scores), _places(scores))
        found = _best_in_pools(users[rows[some]], news, pools, pool_of[some], best)
        of_pool = pools @ (sizes + vector_bytes).astype(np.float64)
        down = float(of_pool[pool_of].mean())
    return ServingResult(
        scores,
        _recall(found, wanted, len(news)),
        len(some),
        skew(plain_scores, scores, shown),
        plan.asking.question.bytes,
        down,
        plan,
    )


def skew(plain: Doubles | Floats, served: Doubles | Floats, lists: Csr) -> float:
    """tau = 1 - accuracy of ranks (PrivateRec, first version, section 4.4.1), as we read it.

    Both scores rank what a list shows, equal ones in the order of the list. The accuracy of a list is the share of its
    places at which both rankings have the same item; tau is 1 minus its mean over the lists that show something.
    """
    rows = lists.row_numbers()
    same = np.lexsort((-plain.astype(np.float64), rows)) == np.lexsort((-served.astype(np.float64), rows))
    lengths = lists.lengths()
    agreeing = np.bincount(rows[same], minlength=len(lists))[lengths > 0]
    return float(1.0 - np.mean(agreeing / lengths[lengths > 0])) if agreeing.size else 0.0


def _best_in_pools(users: Floats, news: Floats, pools: Bools, pool_of: Offsets, best: int) -> Indices:
    """The best of its own pool for every user; a pool that is smaller is filled with -1."""
    found = np.full((len(users), best), -1, np.int32)
    for pool in np.unique(pool_of):
        mine, members = np.flatnonzero(pool_of == pool), np.flatnonzero(pools[pool])
        count = min(best, len(members))
        found[mine, :count] = members[best_of(users[mine], news[members], count)]
    return found


def _recall(found: Indices, wanted: Indices, n_items: int) -> float:
    """The share of the wanted news that were found, on average."""
    keys = np.arange(len(found))[:, np.newaxis] * np.int64(n_items)
    real = found >= 0
    return float(np.isin((found + keys)[real], (wanted + keys).ravel()).sum() / wanted.size) if wanted.size else 1.0


def _places(scores: Doubles | Floats) -> Doubles:
    """Replace scores by their ranks, from 0 to below 1; equal scores stay equal."""
    values, place = np.unique(scores, return_inverse=True)
    return np.asarray(place.reshape(-1) / max(1, len(values)), np.float64)
