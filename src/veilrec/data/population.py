"""Who saw and clicked what: external ids outside, indices inside, arrays that can be memory-mapped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from veilrec.core.arrays import Bools, Bytes, Doubles, Floats, Indices, Offsets
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.features import Features, Side, usual
from veilrec.core.jit import jit
from veilrec.core.rng import mix


class Strings(Sequence[str]):
    """A read-only list of strings: UTF-8 bytes end to end, and where each begins."""

    def __init__(self, offsets: Offsets, data: Bytes) -> None:
        self.offsets = offsets
        self.data = data
        self._index: dict[str, int] | None = None

    @classmethod
    def of(cls, values: Iterable[str]) -> Strings:
        """Pack the given strings."""
        encoded = [value.encode() for value in values]
        return cls(offsets_of([len(value) for value in encoded]), np.frombuffer(b"".join(encoded), np.uint8))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        for index in range(len(self)):
            yield self[index]

    def find(self, value: str) -> int | None:
        """The position of a string, or None; the first look-up builds an index."""
        if self._index is None:
            self._index = {text: position for position, text in enumerate(self)}
        return self._index.get(value)


_FNV_START, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


def keys_of(names: Strings) -> Offsets:
    """A 63-bit number of each name alone, which keys its draws: it stays the same whoever else is there."""
    keys = np.empty(len(names), np.int64)
    _hash(names.offsets, names.data, keys)
    return keys


@jit
def _hash(offsets: Offsets, data: Bytes, keys: Offsets) -> None:
    for row in range(len(keys)):
        state = _FNV_START  # FNV-1a, whose bits are then scattered
        for place in range(offsets[row], offsets[row + 1]):
            state = (state ^ np.uint64(data[place])) * _FNV_PRIME
        keys[row] = np.int64(mix(state) >> np.uint64(1))


@dataclass(frozen=True)
class Interactions:
    """Every use of an item, packed by user and ordered in time within a user (in file order without times).

    A pair of user and item may occur more than once (an app used daily); `pairs` keeps the last use of each.
    """

    offsets: Offsets  # [users + 1]
    items: Indices  # [rows]
    ratings: Floats | None = None  # [rows], as in the file; None for implicit logs
    times: Offsets | None = None  # [rows], seconds since 1970

    def __len__(self) -> int:
        return len(self.items)

    def pairs(self) -> Csr:
        """The distinct items of every user, in the order of their last use."""
        keep = self.last_uses()
        before = np.searchsorted(keep, self.offsets)  # of the rows that stay, how many lie before each user's first
        return Csr(before.astype(np.int64), np.ascontiguousarray(self.items[keep]))

    def ratings_of(self, users: Offsets | Indices, items: Offsets | Indices) -> Floats | None:
        """The last ratings of these pairs, not a number where there is none; None for a log without ratings."""
        if self.ratings is None:
            return None
        keys, last = self._last_uses()
        columns = np.asarray(items, np.int64)
        wanted = np.where(columns < self._width(), np.asarray(users, np.int64) * self._width() + columns, -1)
        place = np.searchsorted(keys, wanted)
        there = np.append(keys, -2)[place] == wanted  # beyond the last key nothing is
        found = np.full(len(wanted), np.nan, np.float32)
        found[there] = self.ratings[last[place[there]]]
        return found

    def _width(self) -> int:
        return int(self.items.max(initial=0)) + 1

    def _last_uses(self) -> tuple[Offsets, Offsets]:
        """Every distinct pair as user * width + item, ascending, and the row of its last use."""
        users = np.repeat(np.arange(len(self.offsets) - 1, dtype=np.int64), np.diff(self.offsets))
        keys, last_from_end = np.unique((users * self._width() + self.items)[::-1], return_index=True)
        return keys, len(users) - 1 - last_from_end

    def last_uses(self) -> Offsets:
        """The rows that `pairs` keeps, in its order."""
        rows: Offsets = np.sort(self._last_uses()[1])
        return rows


def pack_interactions(
    users: Offsets | Indices,
    items: Indices,
    n_users: int,
    *,
    ratings: Doubles | Floats | None = None,
    times: Offsets | None = None,
) -> Interactions:
    """Rows of a log packed by user: ordered in time within a user, rows of the same second in file order."""
    order = np.argsort(users, kind="stable") if times is None else np.lexsort((times, users))
    return Interactions(
        offsets_of(np.bincount(users, minlength=n_users)),
        np.ascontiguousarray(items[order], dtype=np.int32),
        None if ratings is None else ratings[order].astype(np.float32),
        None if times is None else times[order],
    )


@dataclass(frozen=True)
class Impressions:
    """Lists of items that were shown together, which of them were clicked, and the history before them."""

    users: Indices  # [impressions]
    times: Offsets  # [impressions], seconds since 1970
    shown: Csr  # a row per impression
    clicked: Bytes  # [len(shown.items)], 1 = clicked
    histories: Csr  # distinct histories, oldest click first
    history_of: Indices  # [impressions], row of `histories`
    oracle: Floats | None = None  # [len(shown.items)], the true click score where the data is generated

    def __len__(self) -> int:
        return len(self.users)


@dataclass(frozen=True)
class ItemTable:
    """What is known of the items without any user: all columns have one entry per item ("" where unknown)."""

    titles: Strings
    categories: Strings
    subcategories: Strings | None = None
    abstracts: Strings | None = None
    entities: Strings | None = None  # JSON, as in MIND's title_entities column
    entity_vectors: tuple[Strings, Floats] | None = None  # entity ids and their vectors


@dataclass(frozen=True)
class Population:
    """A data set: users, items, what was used, and what was shown."""

    name: str
    users: Strings
    items: Strings
    interactions: Interactions
    impressions: Mapping[str, Impressions] = field(default_factory=dict)  # "train", "dev"; empty for ratings
    catalogue: ItemTable | None = None
    facts: Mapping[str, int | float | str] = field(
        default_factory=dict
    )  # what the reader counted: rows, merged duplicates
    features: Features | None = None  # what is known of people and items beside their ids
    fixed_test: tuple[Indices, Indices] | None = None  # published leave-one-out: items [users], negatives [users, 99]
    cut: int | None = None  # seconds since 1970: a public moment from which on is asked; None: each user has its own
    rating_scale: tuple[float, float] | None = None  # lowest and highest rating there can be; None: counts, or none
    unlisted_items: int = 0  # that no public table names: they are there because people used them, or were shown them
    exact: tuple[str, ...] = ()  # other public facts that were read off people's own data, in words
    contexts: Side | None = None  # what was said of the user at every row of the log: `features.users` is the usual

    @property
    def n_users(self) -> int:
        """Number of users."""
        return len(self.users)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.items)


def some_users(population: Population, users: Offsets) -> Population:
    """The population of these users, given in rising order; they are numbered anew."""
    features, fixed, log = population.features, population.fixed_test, population.interactions
    rows = Csr(log.offsets, np.arange(len(log.items), dtype=np.int32)).take(users)
    ratings = None if log.ratings is None else log.ratings[rows.items]
    times = None if log.times is None else log.times[rows.items]
    return replace(
        population,
        users=Strings.of(population.users[int(user)] for user in users),
        interactions=Interactions(rows.offsets, log.items[rows.items], ratings, times),
        impressions={name: _impressions_of(split, users) for name, split in population.impressions.items()},
        features=None if features is None else Features(features.users.take(users), features.items),
        fixed_test=None if fixed is None else (fixed[0][users], fixed[1][users]),
        contexts=None if population.contexts is None else population.contexts.take(rows.items.astype(np.int64)),
    )


def features_by(population: Population, learnt: Csr) -> Features | None:
    """What is known of items, and of people by the rows of the log whose pair of user and item may be learnt from."""
    if population.features is None or population.contexts is None:
        return population.features
    return Features(usual_context(population, rows_of_pairs(population, learnt)), population.features.items)


def rows_of_pairs(population: Population, pairs: Csr) -> Bools:
    """Mark the rows of the log whose pair of user and item is one of these."""
    log, width = population.interactions, population.n_items
    owners = np.repeat(np.arange(population.n_users, dtype=np.int64), np.diff(log.offsets))
    return np.isin(owners * width + log.items, pairs.row_numbers() * width + pairs.items)


def ratings_out_of_one(population: Population, rows: Csr) -> Floats | None:
    """The rating of every pair of these rows, one a user, by the scale of the data; None where it has none.

    The scale is what the data is said to have, and not what occurs in it: that would change with one person's ratings.
    """
    if population.rating_scale is None or not len(population.interactions):
        return None
    found = population.interactions.ratings_of(rows.row_numbers(), rows.items)
    return None if found is None else found / np.float32(population.rating_scale[1])


def usual_context(population: Population, rows: Bools) -> Side:
    """The usual context of every user in the marked rows of the log."""
    if population.contexts is None:
        raise ValueError("the log says nothing of contexts")
    owners = np.repeat(np.arange(population.n_users), np.diff(population.interactions.offsets))[rows]
    return usual(population.contexts.take(np.flatnonzero(rows)), owners, population.n_users)


def _impressions_of(split: Impressions, users: Offsets) -> Impressions:
    """Impressions of these users, who are numbered anew."""
    kept = take_impressions(split, np.isin(split.users, users))
    return replace(kept, users=np.searchsorted(users, kept.users).astype(np.int32))


def take_impressions(impressions: Impressions, kept: Bools) -> Impressions:
    """The marked impressions with only the histories that they need."""
    rows, history_of = np.unique(impressions.history_of[kept], return_inverse=True)
    return replace(
        chosen_impressions(impressions, kept),
        histories=impressions.histories.take(rows.astype(np.int64)),
        history_of=history_of.astype(np.int32),
    )


def chosen_impressions(impressions: Impressions, kept: Bools) -> Impressions:
    """The marked impressions, over the same histories."""
    entries = np.repeat(kept, impressions.shown.lengths())
    return Impressions(
        impressions.users[kept],
        impressions.times[kept],
        impressions.shown.take(np.flatnonzero(kept)),
        impressions.clicked[entries],
        impressions.histories,
        impressions.history_of[kept],
        None if impressions.oracle is None else impressions.oracle[entries],
    )
