"""One person's data as a device of a federation holds it: from a data set, or a file of the person's own.

Items are known by their names; those that the federation does not know are left out. Nothing is held back to measure a
model by: all of it is learnt from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from veilrec._arrays import Bools, Indices, Offsets
from veilrec._csr import Csr, offsets_of
from veilrec._words import counted
from veilrec.data.population import Impressions, Population, Strings
from veilrec.device.learner import LocalData
from veilrec.errors import BadInput
from veilrec.features import Features, Side
from veilrec.federate.device.local_data import arrays_of
from veilrec.federate.facts import Known
from veilrec.methods.base import NewsData, Problem
from veilrec.runs.request import ratings_out_of_one


@dataclass(frozen=True)
class OwnData:
    """What a device gets."""

    data: LocalData  # one row
    left_out: int  # items that the federation does not know


def own_data(known: Known, number: int, people: Population, user: str | None = None) -> OwnData:
    """The data of one of these people, for the device of a number; without a name, of the only one there is."""
    who = _found(people, user)
    names = np.array([_place(known.people.items, name) for name in people.items], np.int32)
    own = people.interactions.pairs().row(who)
    there = names[own] >= 0
    problem = _with_items(known.problem, number, people, who, own[there], names)
    if problem.news is not None:
        problem = replace(problem, news=_with_impressions(problem.news, number, people, who, names))
    if problem.features is not None and people.features is not None:
        problem = replace(problem, features=_with_features(problem.features, number, people.features.users, who))
    data = known.method.devices(known.config, problem).take(np.array([number], np.int64))
    if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in arrays_of(data).values()):
        raise BadInput("this federation learns from ratings of 1 to 5, and the data has none: give them in a column")
    if not len(data.rows.items) and not _judges(known, data):
        raise BadInput(
            f"{people.users[who]!r} has nothing that this federation can learn from: of"
            f" {counted(len(own), 'item')} it knows {int(there.sum())}; items are known by their names, as in facts/"
        )
    return OwnData(data, int((~there).sum()))


def _judges(known: Known, data: Any) -> bool:
    return known.plan.comparison is not None and len(known.plan.comparison.judge.devices(data)) > 0


def _found(people: Population, user: str | None) -> int:
    if user is None:
        if people.n_users != 1:
            raise BadInput(f"the data has {counted(people.n_users, 'user')}, and a device has one: name it with --user")
        return 0
    found = people.users.find(user)
    if found is None:
        raise BadInput(f"--user {user}: the data has nobody of that name; it has {people.users[0]!r} and others")
    return found


def _place(items: Strings, name: str) -> int:
    found = items.find(name)
    return -1 if found is None else found


def _with_items(problem: Problem, number: int, people: Population, who: int, own: Indices, names: Indices) -> Problem:
    """The problem of the facts with this person's items, and ratings where people rate."""
    before, after = problem.train.offsets[number], problem.train.offsets[number + 1]
    lengths = problem.train.lengths()
    lengths[number] = len(own)
    items = np.concatenate([problem.train.items[:before], names[own], problem.train.items[after:]])
    train = Csr(offsets_of(lengths), items.astype(np.int32))
    if problem.ratings is None:
        return replace(problem, train=train)
    rated = ratings_out_of_one(people, Csr(offsets_of(np.where(np.arange(people.n_users) == who, len(own), 0)), own))
    if rated is None:
        rated = np.full(len(own), np.nan, np.float32)  # of no harm where a method does not look at them
    ratings = np.concatenate([problem.ratings[:before], rated, problem.ratings[after:]])
    return replace(problem, train=train, ratings=ratings.astype(np.float32))


def _with_features(known: Features, number: int, side: Side, who: int) -> Features:
    """What the person's own file says in the words of the federation; otherwise nothing is known."""
    users = known.users
    if side.features != users.features:
        return known
    width = max(side.codes.shape[1], users.codes.shape[1])
    codes = np.full((len(users), width), -1, np.int32)
    codes[:, : users.codes.shape[1]] = users.codes
    codes[number] = -1
    codes[number, : side.codes.shape[1]] = side.codes[who]
    numbers = users.numbers.copy()
    numbers[number] = side.numbers[who]
    return Features(Side(users.features, codes, numbers), known.items)


def _with_impressions(news: NewsData, number: int, people: Population, who: int, names: Indices) -> NewsData:
    """The lists of the facts but those of this device, and in their place what the person was shown."""
    parts = [_chosen(news.impressions, news.impressions.users != number)]
    for split in people.impressions.values():
        own = _chosen(split, split.users == who)
        parts.append(replace(_renamed(own, names), users=np.full(len(own), number, np.int32)))
    return NewsData(news.catalogue, _joined(parts))


def _chosen(split: Impressions, which: Bools) -> Impressions:
    """Some lists; histories are kept as they are."""
    rows: Offsets = np.flatnonzero(which).astype(np.int64)
    entries = Csr(split.shown.offsets, np.arange(len(split.shown.items), dtype=np.int32)).take(rows)
    return Impressions(
        split.users[rows],
        split.times[rows],
        Csr(entries.offsets, split.shown.items[entries.items]),
        split.clicked[entries.items],
        split.histories,
        split.history_of[rows],
    )


def _renamed(split: Impressions, names: Indices) -> Impressions:
    """By the federation's numbers of items, without those that it does not know."""
    kept = names[split.shown.items] >= 0
    return replace(
        split, shown=_only(split.shown, names), clicked=split.clicked[kept], histories=_only(split.histories, names)
    )


def _only(rows: Csr, names: Indices) -> Csr:
    kept = names[rows.items] >= 0
    lengths = np.bincount(rows.row_numbers()[kept], minlength=len(rows))
    return Csr(offsets_of(lengths), names[rows.items[kept]])


def _joined(parts: Sequence[Impressions]) -> Impressions:
    firsts = np.cumsum([0, *(len(part.histories) for part in parts)])
    return Impressions(
        np.concatenate([part.users for part in parts]),
        np.concatenate([part.times for part in parts]),
        _stacked([part.shown for part in parts]),
        np.concatenate([part.clicked for part in parts]),
        _stacked([part.histories for part in parts]),
        np.concatenate(
            [part.history_of + first for part, first in zip(parts, firsts[:-1], strict=True)], dtype=np.int32
        ),
    )


def _stacked(rows: Sequence[Csr]) -> Csr:
    lengths = np.concatenate([part.lengths() for part in rows])
    return Csr(offsets_of(lengths), np.concatenate([part.items for part in rows]))
