"""Synthetic ratings that can be learnt from, with the probability of every choice known.

An item belongs to one cluster, which its genre names, and by a smaller share to a second; its popularity follows Zipf's
law. A user has three interests (clusters) whose weights drift in a straight line from the first day to the last.
Every use is drawn from

    P(item | user, time) = popularity(item) (a + (1 - a) sum_k weight_k(user, time) member(item, k) / Z_k),

without repeating an item. What is known beside ids carries some of that: a user's group is most often the genre of
the strongest interest, an item has its two genres in no order, and a mark of critics who see its quality dimly.

All draws are keyed by (seed, user), so a user's rows depend on no other user and the probabilities can be computed
again later: see `RatingsWorld.oracle_scores`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from veilrec.core.arrays import Doubles, Floats, Indices, Offsets
from veilrec.core.csr import Csr, csr_from_pairs, offsets_of
from veilrec.core.errors import BadInput
from veilrec.core.features import Feature, Features, assembled
from veilrec.core.jit import jit
from veilrec.data import synthetic_draws as draws
from veilrec.data.population import Interactions, ItemTable, Population, Strings
from veilrec.data.synthetic_draws import (
    DAY,
    FIRST_DAY,
    INTERESTS,
    draw_interest,
    draw_interests,
    interest_weight,
    numbered_ids,
    read_words,
)

_ANY_INTEREST = 0.2  # a above: the share of uses that follow popularity alone
_SECOND_CLUSTER = 0.3  # membership in an item's second cluster; 1 in its first
_LENGTH_STREAM, _USER_STREAM, _SAMPLE_STREAM, _TITLE_STREAM, _GROUP_STREAM, _MARK_STREAM = 1, 2, 3, 4, 5, 6
_GROUP_SIGNAL = 0.7  # the share of users whose group is that of their strongest interest; the others have any
_ORACLE_SAMPLE = 2_000
_WORDS = read_words("films")
GENRES = tuple(_WORDS["genres"])
_NOUNS = np.array([[noun.title() for noun in nouns] for nouns in _WORDS["genres"].values()])  # [genres, nouns]
_QUALITIES = np.array([adjective.title() for adjective in _WORDS["adjectives"]])


@dataclass(frozen=True)
class RatingsWorld:
    """Everything that the choices depend on, apart from the users, who are drawn anew from their keys."""

    seed: int
    popularity: Doubles  # [items], sums to 1
    first: Indices  # [items], first cluster
    second: Indices  # [items], second cluster
    quality: Floats  # [items], lifts ratings
    members: Csr  # a row per cluster
    member_cdf: Doubles  # [len(members.items)], cumulative P(item | cluster)
    cluster_mass: Doubles  # [clusters], Z_k

    def oracle_scores(self, users: Indices, items: Indices) -> Doubles:
        """P(item | user) at the end of the last day for each pair: no method can rank better."""
        scores = np.empty(len(users))
        world = (self.popularity, self.first, self.second, self.cluster_mass)
        _score_pairs(self.seed, *world, users.astype(np.int64), items.astype(np.int64), scores)
        return scores


def generate(
    *, users: int = 1000, items: int | None = None, days: int = 60, mean_history: float = 30.0, seed: int = 0
) -> Population:
    """Draw a population; without `items`, their number grows with the square root of the users'."""
    n_items = round(30 * max(users, 0) ** 0.5) if items is None else items
    if (
        not 1 <= users <= 10_000_000
        or not 50 <= n_items <= 1_000_000
        or days < 1
        or not 5 <= mean_history <= 1000
        or seed < 0
    ):
        raise BadInput(
            f"cannot generate ratings of {users} users, {n_items} items, {days} days, "
            f"mean_history {mean_history}, seed {seed}: allowed are 1 to 10000000 users, "
            "50 to 1000000 items, 1 day or more, mean_history 5 to 1000, seed 0 or more"
        )
    world = make_world(n_items, seed)
    longest = max(5, n_items // 4)
    lengths = np.empty(users, np.int64)
    _draw_lengths(seed, mean_history, min(longest, round(20 * mean_history)), lengths)
    offsets = offsets_of(lengths)
    chosen, ratings, times = (np.empty(offsets[-1], kind) for kind in (np.int32, np.float32, np.int64))
    items_known = (world.popularity, np.cumsum(world.popularity), world.first, world.quality)
    clusters = (world.members.offsets, world.members.items, world.member_cdf)
    _draw_uses(seed, days, *items_known, *clusters, offsets, chosen, ratings, times)
    interactions = Interactions(offsets, chosen, ratings, times)
    facts = {"rows": int(offsets[-1]), "seed": seed, "days": days, **_reachable(world, interactions)}
    return Population(
        "synthetic-ratings",
        numbered_ids("u", users),
        numbered_ids("i", n_items),
        interactions,
        catalogue=_write_catalogue(world),
        facts=facts,
        features=_describe(world, users),
        cut=FIRST_DAY + (days - 1) * DAY,
        rating_scale=(1.0, 5.0),
    )


def make_world(n_items: int, seed: int) -> RatingsWorld:
    """The items and their clusters, as `generate` draws them for this seed."""
    generator = np.random.default_rng([seed, n_items])
    clusters = int(np.clip(n_items // 40, 4, len(GENRES)))
    popularity = np.power(generator.permutation(n_items) + 5.0, -0.9, dtype=np.float64)
    popularity /= popularity.sum()
    # The first `clusters` items fill one cluster each, so that none is empty.
    first = np.concatenate([np.arange(clusters), generator.integers(0, clusters, n_items - clusters)])
    second = (first + generator.integers(1, clusters, n_items)) % clusters
    share = np.concatenate([popularity, _SECOND_CLUSTER * popularity])
    cluster_of = np.concatenate([first, second])
    mass = np.zeros(clusters)
    np.add.at(mass, cluster_of, share)
    item_numbers = np.tile(np.arange(n_items, dtype=np.int32), 2)
    members = csr_from_pairs(cluster_of, item_numbers, clusters)
    share_by_cluster = share[np.argsort(cluster_of, kind="stable")]
    running = np.cumsum(share_by_cluster)
    before = np.concatenate([[0.0], running])[members.offsets[:-1]]
    cdf = (running - np.repeat(before, members.lengths())) / np.repeat(mass, members.lengths())
    quality = generator.standard_normal(n_items, np.float32)
    return RatingsWorld(seed, popularity, first.astype(np.int32), second.astype(np.int32), quality, members, cdf, mass)


def _write_catalogue(world: RatingsWorld) -> ItemTable:
    """Films: the genre of each is its first cluster, and stands in its title as well."""
    generator = np.random.default_rng([world.seed, len(world.first), _TITLE_STREAM])
    return ItemTable(
        titles=Strings.of(film_titles(world.first, generator)),
        categories=Strings.of(GENRES[cluster] for cluster in world.first.tolist()),
    )


def film_titles(genres: Indices, generator: np.random.Generator) -> list[str]:
    """A title for each film of these genres, all distinct: a title that is there already gets a sequel's number."""
    noun = generator.integers(0, _NOUNS.shape[1], len(genres))
    quality = generator.integers(0, len(_QUALITIES), len(genres))
    keys = pl.DataFrame({"key": (genres.astype(np.int64) * _NOUNS.shape[1] + noun) * len(_QUALITIES) + quality})
    part = keys.select(pl.int_range(pl.len()).over("key")).to_series()  # how many equal ones stand before it
    return [
        f"The {adjective} {thing}{f' {number + 1}' if number else ''} ({GENRES[genre]})"
        for adjective, thing, number, genre in zip(
            _QUALITIES[quality].tolist(), _NOUNS[genres, noun].tolist(), part.to_list(), genres.tolist(), strict=True
        )
    ]


def _describe(world: RatingsWorld, users: int) -> Features:
    """What is known beside ids: groups of users; genres of items and their marks from 1 to 5."""
    genres = tuple(GENRES[: len(world.cluster_mass)])
    groups = np.empty(users, np.int32)
    _draw_groups(world.seed, len(genres), groups)
    n_items = len(world.first)
    noise = np.random.default_rng([world.seed, n_items, _MARK_STREAM]).standard_normal(n_items)
    listed = (Feature("genres", "categories", genres), Feature("critics", "number", low=1.0, high=5.0))
    both = (np.tile(np.arange(n_items), 2), 1 + np.concatenate([world.first, world.second]))
    marks = listed[1].scaled(3.0 + 0.5 * world.quality + 0.5 * noise)
    return Features(
        assembled([Feature("group", "category", genres)], users, [(np.arange(users), 1 + groups)], []),
        assembled(listed, n_items, [both], [marks]),
    )


def _reachable(world: RatingsWorld, interactions: Interactions) -> dict[str, float]:
    """HR@10 of the oracle and of popularity on a sample: a user's last item among 99 not used."""
    n_users = len(interactions.offsets) - 1
    generator = np.random.default_rng([world.seed, _SAMPLE_STREAM])
    sample = np.sort(generator.choice(n_users, min(n_users, _ORACLE_SAMPLE), replace=False))
    last = interactions.items[interactions.offsets[sample + 1] - 1]
    used = Csr(interactions.offsets, interactions.items).take(sample)
    others = min(99, len(world.popularity) - int(used.lengths().max()))
    candidates = np.empty((len(sample), 1 + others), np.int64)
    candidates[:, 0] = last
    _draw_unused(world.seed, len(world.popularity), used.offsets, used.items, sample, candidates)
    pairs = (np.repeat(sample, 1 + others).astype(np.int32), candidates.reshape(-1).astype(np.int32))
    scores = world.oracle_scores(*pairs).reshape(candidates.shape)
    counts = np.bincount(interactions.items, minlength=len(world.popularity)).astype(np.float64)
    counts_seen = counts[candidates] - (np.arange(1 + others) == 0)  # without the held-out use itself
    return {"oracle_hr@10": round(_hit_rate(scores), 4), "popularity_hr@10": round(_hit_rate(counts_seen), 4)}


def _hit_rate(scores: Doubles, cutoff: int = 10) -> float:
    """Share of rows whose first entry ranks within the cutoff; a tie costs half a place."""
    own = scores[:, :1]
    rank = (scores > own).sum(1) + 0.5 * ((scores == own).sum(1) - 1)
    return float((rank < cutoff).mean())


@jit
def _draw_lengths(seed: int, mean: float, longest: int, lengths: Offsets) -> None:
    state = np.empty(1, np.uint64)
    for user in range(len(lengths)):
        draws.start(state, seed, _LENGTH_STREAM, user)
        lengths[user] = draws.lognormal_length(state, mean, 0.8, 5, longest)


@jit
def _draw_groups(seed: int, clusters: int, groups: Indices) -> None:
    state = np.empty(1, np.uint64)
    interests, at_start, at_end = np.empty(INTERESTS, np.int64), np.empty(INTERESTS), np.empty(INTERESTS)
    for user in range(len(groups)):
        draws.start(state, seed, _USER_STREAM, user)
        draw_interests(state, clusters, interests, at_start, at_end)
        strongest = interests[np.argmax(at_start + at_end)]
        draws.start(state, seed, _GROUP_STREAM, user)
        informative = draws.uniform(state) < _GROUP_SIGNAL
        groups[user] = strongest if informative else draws.integer(state, clusters)


@jit
def _draw_uses(
    seed: int,
    days: int,
    popularity: Doubles,
    popularity_cdf: Doubles,
    first: Indices,
    quality: Floats,
    member_offsets: Offsets,
    members: Indices,
    member_cdf: Doubles,
    offsets: Offsets,
    chosen: Indices,
    ratings: Floats,
    times: Offsets,
) -> None:
    n_items, clusters = len(popularity), len(member_offsets) - 1
    state = np.empty(1, np.uint64)
    interests, at_start, at_end = np.empty(INTERESTS, np.int64), np.empty(INTERESTS), np.empty(INTERESTS)
    moments = np.empty(np.max(np.diff(offsets)))
    used_by = np.full(n_items, -1, np.int64)  # the last user who used the item
    for user in range(len(offsets) - 1):
        draws.start(state, seed, _USER_STREAM, user)
        draw_interests(state, clusters, interests, at_start, at_end)
        kindness = draws.normal(state)
        begin, length = offsets[user], offsets[user + 1] - offsets[user]
        draws.rising(state, length, moments)
        for position in range(length):
            moment = moments[position]
            item = -1
            for _ in range(50):
                item = _draw_item(
                    state, moment, interests, at_start, at_end, popularity_cdf, member_offsets, members, member_cdf
                )
                if used_by[item] != user:
                    break
            while used_by[item] == user:  # the interests are used up: whatever comes next
                item = (item + 1) % n_items
            used_by[item] = user
            match = 0.0
            for k in range(INTERESTS):
                if interests[k] == first[item]:
                    match = interest_weight(k, moment, at_start, at_end)
            liking = 3.2 + 0.4 * quality[item] + 0.4 * kindness + 1.2 * match + 0.8 * draws.normal(state)
            chosen[begin + position] = item
            ratings[begin + position] = min(max(np.round(liking), 1.0), 5.0)
            times[begin + position] = FIRST_DAY + int(moment * days * DAY)


@jit
def _draw_item(
    state: draws.State,
    moment: float,
    interests: Offsets,
    at_start: Doubles,
    at_end: Doubles,
    popularity_cdf: Doubles,
    member_offsets: Offsets,
    members: Indices,
    member_cdf: Doubles,
) -> int:
    """One draw from P(item | user, time)."""
    if draws.uniform(state) < _ANY_INTEREST:
        return min(int(np.searchsorted(popularity_cdf, draws.uniform(state))), len(popularity_cdf) - 1)
    k = draw_interest(state, moment, at_start, at_end)
    low, high = member_offsets[interests[k]], member_offsets[interests[k] + 1]
    place = np.searchsorted(member_cdf[low:high], draws.uniform(state))
    item: int = members[min(low + place, high - 1)]
    return item


@jit
def _score_pairs(
    seed: int,
    popularity: Doubles,
    first: Indices,
    second: Indices,
    cluster_mass: Doubles,
    users: Offsets,
    items: Offsets,
    scores: Doubles,
) -> None:
    state = np.empty(1, np.uint64)
    interests, at_start, at_end = np.empty(INTERESTS, np.int64), np.empty(INTERESTS), np.empty(INTERESTS)
    for pair in range(len(users)):
        draws.start(state, seed, _USER_STREAM, users[pair])
        draw_interests(state, len(cluster_mass), interests, at_start, at_end)
        item = items[pair]
        share = _ANY_INTEREST
        for k in range(INTERESTS):
            membership = 1.0 * (first[item] == interests[k]) + _SECOND_CLUSTER * (second[item] == interests[k])
            share += (1.0 - _ANY_INTEREST) * at_end[k] * membership / cluster_mass[interests[k]]
        scores[pair] = share * popularity[item]


@jit
def _draw_unused(
    seed: int, n_items: int, offsets: Offsets, items: Indices, users: Offsets, candidates: Offsets
) -> None:
    """Fill columns 1.. of a user's row with distinct unused items."""
    state = np.empty(1, np.uint64)
    taken_by = np.full(n_items, -1, np.int64)
    for row in range(len(users)):
        draws.start(state, seed, _SAMPLE_STREAM, users[row])
        for position in range(offsets[row], offsets[row + 1]):
            taken_by[items[position]] = row
        for column in range(1, candidates.shape[1]):
            item = draws.integer(state, n_items)
            while taken_by[item] == row:
                item = draws.integer(state, n_items)
            taken_by[item] = row
            candidates[row, column] = item
