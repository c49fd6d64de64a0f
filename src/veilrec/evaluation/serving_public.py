"""What both sides of a private query may know beforehand: made of the model and the news alone, of nobody's clicks.

Made-up readers stand in for people here: histories drawn at random from groups of similar news. The model says what
vector each would have; from that come public interests, and what vector to expect of a pooled history.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veilrec.client.queries import PooledInput, UserModel
from veilrec.core.arrays import Csr, Doubles, Floats, Offsets, offsets_of
from veilrec.privacy.mechanisms.clipping import clip_flat
from veilrec.serving.answering import FromPooled

_GROUPS, _READERS, _STEPS = 20, 4000, 25
_FEW_GROUPS = 0.2  # of the Dirichlet distribution that a made-up reader's interests are drawn from
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
    """Histories of made-up readers: of any length up to the longest, each from a few groups of similar news."""
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
    """The typical vectors of so many kinds of made-up readers: [count, dim]."""
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
    """The best linear guess of a user vector from a pooled one with this much noise, over made-up readers.

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
