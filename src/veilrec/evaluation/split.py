"""What a protocol makes of a population: what clients train on, what the test asks, and the draws behind both.

Random choices are keyed by (seed, purpose, user), where a user is a hash of the name: how one user is cut does not
depend on who else is there. A moment at which all users are cut is public: it comes from whoever publishes the data.

What the evaluation needs of a model, and nothing more.

The protocols that rank lists of what was shown: `mind` and `last-day-20`.

`mind` asks the dev impressions. Clients learn from the train impressions alone: `Split.train` holds, for each user, the
histories before those impressions and their clicks. Nothing of the dev part is in it; the model gets a dev history only
to answer.

`last-day-20` is for logs of clicks that do not say what was shown, like Adressa: every click of the last day is asked
among 20 sampled items (Qi et al. 2020, section 4.1), and the day before it is learnt from in the same form. The last
day is the one of the log's public cut; without one, each user's own last day.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from veilrec.core.arrays import Bools, Floats, Indices, Offsets
from veilrec.core.csr import Csr, csr_from_pairs, offsets_of
from veilrec.core.errors import BadInput
from veilrec.core.features import Side
from veilrec.core.jit import jit
from veilrec.core.rng import below, stream, uniforms, word
from veilrec.data.population import Impressions, Interactions, ItemTable, Population, Strings, keys_of, take_impressions
from veilrec.models.scores import Model

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Rated:
    """Ratings of people who adapt, out of 1: those that their clients know, and those that are asked."""

    rows: Csr  # T rows: `Cases.adapt`, and behind it what was disliked where the protocol tells it apart
    known: Floats  # [len(rows.items)]
    asked: Floats  # [len(Cases.positives.items)]
    scale: tuple[float, float]  # of one rating, lowest and highest


@dataclass(frozen=True)
class Cases:
    """T questions: for each a user and the items that a good model ranks first."""

    users: Offsets  # [T], index in the population; a row of the scorer unless the protocol folds the user in
    positives: Csr  # T rows
    candidates: Indices | None = None  # loo-99, [T, 1 + 99]: column 0 the held-out item, then the sampled ones
    adapt: Csr | None = None  # holdout-users, T rows: what the client adapts on
    impressions: Impressions | None = None  # mind, T impressions
    people: Side | None = None  # holdout-users, T rows: what the client knows of its user
    repeats: Offsets | None = None  # holdout-records, [len(positives.items)]: how often each was used; None: once
    rated: Rated | None = None  # holdout-users of data with a scale of ratings
    # T rows, no rivals of the test items: validation items, what was disliked, or what is withheld from the model
    set_aside: Csr | None = None

    def __len__(self) -> int:
        return len(self.users)


@dataclass(frozen=True)
class Split:
    """A population cut into what is learnt from and what is asked."""

    protocol: str
    n_users: int
    n_items: int
    train: Csr  # n_users rows: the distinct items that clients may learn from, in time order
    test: Cases
    valid: Cases | None = None
    train_impressions: Impressions | None = None  # mind: those that clients may learn from
    records: Csr | None = None  # holdout-records, n_users rows: `train` with every use; None: each item once
    disliked: Csr | None = None  # holdout-users-liked, n_users rows: what clients know that they rated low
    liked: Csr | None = None  # n_users rows: what counts of all that was used; None: all of it
    cut: str = ""  # where what is learnt from ends and what is asked begins, in words


def for_search(split: Split) -> Split:
    """Put the validation part in place of the test part, for a search that must not see the latter."""
    if split.valid is None:
        raise ValueError("a search needs a split with a validation part")
    return replace(split, test=split.valid, valid=None)


def distinct_rows(rows: Csr, n_items: int, *, without: Csr | None = None) -> Csr:
    """The distinct items of every row, ascending, without those of another."""
    keys = np.unique(rows.row_numbers() * n_items + rows.items)
    if without is not None:
        keys = np.setdiff1d(keys, without.row_numbers() * n_items + without.items)
    return csr_from_pairs(keys // n_items, (keys % n_items).astype(np.int32), len(rows))


def join_rows(left: Csr, right: Csr) -> Csr:
    """Row r of the one followed by row r of the other."""
    rows = np.concatenate([left.row_numbers(), right.row_numbers()])
    return csr_from_pairs(rows, np.concatenate([left.items, right.items]), len(left))


def keep_entries(rows: Csr, kept: Bools) -> Csr:
    """Keep only the marked entries of each row, in their order."""
    return Csr(offsets_of(kept)[rows.offsets], rows.items[kept])


class Purpose(IntEnum):
    """What a choice is for: streams apart from each other and from those of `veilrec.core.rng`."""

    TEST_NEGATIVES = 101
    VALID_NEGATIVES = 102
    TEST_ITEMS = 103
    VALID_ITEMS = 104
    TEST_USERS = 105  # and users for validation
    VALID_IMPRESSIONS = 106
    TRAIN_NEGATIVES = 107
    ADAPT_ORDER = 108


def draw_unused(used: Csr, keys: Offsets, n_items: int, count: int, seed: int, purpose: int) -> Indices:
    """For row i, `count` distinct items outside `used.row(i)`, uniformly; [len(used), count].

    The items of a row of `used` are distinct and leave at least `count`; `keys[i]` keys the draws of row i.
    """
    drawn = np.empty((len(used), count), np.int32)
    _draw_unused(used.offsets, used.items, keys, n_items, seed, purpose, drawn)
    return drawn


def mark_some(offsets: Offsets, counts: Offsets, keys: Offsets, seed: int, purpose: int) -> Bools:
    """Mark `counts[r]` entries of row r, chosen uniformly without replacement and keyed by `keys[r]`."""
    marked = np.zeros(offsets[-1], np.bool_)
    _mark_some(offsets, counts, keys, seed, purpose, marked)
    return marked


def mark_share(users: Offsets | Indices, keys: Offsets, share: float, seed: int, purpose: int) -> Bools:
    """Mark rows, each with the chance `share`: entry j of a user's rows, in their order, has the user's draw j."""
    order = np.argsort(users, kind="stable")
    marked = np.zeros(len(users), np.bool_)
    _mark_share(np.ascontiguousarray(users[order], np.int64), order, keys, share, seed, purpose, marked)
    return marked


def draws_of(keys: Offsets, seed: int, purpose: int) -> Floats:
    """A number in [0, 1) for each user."""
    drawn: Floats = uniforms(seed, purpose, 0, keys)[:, 0]
    return drawn


@jit
def _draw_unused(
    offsets: Offsets, items: Indices, keys: Offsets, n_items: int, seed: int, purpose: int, drawn: Indices
) -> None:
    taken_by = np.full(n_items, -1, np.int64)  # the last row that used or drew an item
    for r in range(len(keys)):
        for entry in range(offsets[r], offsets[r + 1]):
            taken_by[items[entry]] = r
        start = stream(seed, purpose, 0, keys[r])
        found, attempt = 0, 0
        while found < drawn.shape[1]:
            item = below(word(start, attempt), n_items)
            attempt += 1
            if taken_by[item] != r:
                taken_by[item] = r
                drawn[r, found] = item
                found += 1


@jit
def _mark_some(offsets: Offsets, counts: Offsets, keys: Offsets, seed: int, purpose: int, marked: Bools) -> None:
    for r in range(len(counts)):
        start = stream(seed, purpose, 0, keys[r])
        wanted = counts[r]
        for entry in range(offsets[r], offsets[r + 1]):
            # Selection sampling (Knuth, TAOCP 2, 3.4.2, algorithm S).
            left = offsets[r + 1] - entry
            if below(word(start, entry - offsets[r]), left) < wanted:
                marked[entry] = True
                wanted -= 1


@jit
def _mark_share(
    users: Offsets, order: Offsets, keys: Offsets, share: float, seed: int, purpose: int, marked: Bools
) -> None:
    last, place = -1, 0
    for row in range(len(users)):
        place = place + 1 if users[row] == last else 0
        last = users[row]
        marked[order[row]] = below(word(stream(seed, purpose, 0, keys[last]), place), 1 << 24) < share * (1 << 24)


@runtime_checkable
class ImpressionScorer(Protocol):
    """A model that would rather score whole impressions than be folded in (it may use times, say)."""

    def score_impressions(self, impressions: Impressions) -> Floats:
        """A score for every entry of `impressions.shown.items`."""


@runtime_checkable
class TextReader(Protocol):
    """A model that knows items by their text, and so can rank those of another data set."""

    def on(self, catalogue: ItemTable) -> Model:
        """Return the model for the items of another catalogue."""


VALID_SHARE = 0.1  # of the train impressions
PUBLISHED = "the train and dev parts that the data set comes with"


def cut_of(population: Population, otherwise: str) -> str:
    """Where a population is cut in time, in words; `otherwise` where it has no cut of its own."""
    if population.cut is None:
        return str(population.facts.get("cut", otherwise))
    moment = datetime.fromtimestamp(population.cut, UTC).isoformat().replace("+00:00", "Z")
    return f"the public moment {moment}"


N_SAMPLED = 20
_DAY = 86_400  # seconds; days are those of UTC


def split_impressions(population: Population, seed: int, validation: bool) -> Split:
    """Train impressions to learn from, dev impressions to ask; of the former a tenth, drawn one by one, for validation.

    A click of a validation impression is not in training at all, not even where a later history repeats it.
    """
    for part in ("train", "dev"):
        if part not in population.impressions:
            raise BadInput(
                f"the protocol mind needs train and dev impressions and {population.name} has no {part} part:"
                " add it, or use the protocol loo-99"
            )
    learnt, test = population.impressions["train"], population.impressions["dev"]
    hidden, valid = None, None
    if validation:
        by_time = np.argsort(learnt.times, kind="stable")
        keys, held = keys_of(population.users), np.empty(len(learnt), np.bool_)
        held[by_time] = mark_share(learnt.users[by_time], keys, VALID_SHARE, seed, Purpose.VALID_IMPRESSIONS)
        valid, learnt = take_impressions(learnt, held), take_impressions(learnt, ~held)
        users, items = _clicks(valid)
        hidden = users * population.n_items + items
    return Split(
        "mind",
        population.n_users,
        population.n_items,
        known_items(learnt, population.n_users, population.n_items, hidden),
        cases_of(population.name, test, "dev"),
        None if valid is None else cases_of(population.name, valid, "validation"),
        learnt,
        cut=cut_of(population, PUBLISHED),
    )


def has_both_labels(impressions: Impressions) -> Bools:
    """Which impressions have both labels, a click and none; only these can be ranked well or badly."""
    clicks = keep_entries(impressions.shown, impressions.clicked > 0).lengths()
    gradable: Bools = (clicks > 0) & (clicks < impressions.shown.lengths())
    return gradable


def cases_of(name: str, impressions: Impressions, part: str) -> Cases:
    """Impressions as questions; `part` says which ones where they cannot be asked."""
    if not has_both_labels(impressions).any():
        raise BadInput(
            f"no {part} impression of {name} has both a click and an item without one, so there is nothing"
            " to rank: bring impressions with both, or use the protocol loo-99"
        )
    return Cases(
        impressions.users.astype(np.int64),
        keep_entries(impressions.shown, impressions.clicked > 0),
        impressions=impressions,
    )


def _clicks(impressions: Impressions) -> tuple[Offsets, Indices]:
    """Users and items of all clicks, oldest first."""
    by_time = np.argsort(impressions.times, kind="stable")
    clicked = keep_entries(impressions.shown, impressions.clicked > 0).take(by_time)
    return impressions.users[by_time].astype(np.int64)[clicked.row_numbers()], clicked.items


def known_items(
    impressions: Impressions, n_users: int, n_items: int, hidden: Offsets | None = None, *, clicks: bool = True
) -> Csr:
    """The distinct items of each user's histories, then clicks unless told otherwise, in time order.

    `hidden` lists what must not be among them, as user * n_items + item.
    """
    by_time = np.argsort(impressions.times, kind="stable")
    owners = impressions.users[by_time].astype(np.int64)
    rows = impressions.history_of[by_time].astype(np.int64)
    _, first = np.unique(owners * len(impressions.histories) + rows, return_index=True)
    first.sort()
    histories = impressions.histories.take(rows[first])
    users, items = owners[first][histories.row_numbers()], histories.items
    if clicks:
        clickers, clicked = _clicks(impressions)
        users, items = np.concatenate([users, clickers]), np.concatenate([items, clicked])
    if hidden is not None:
        known = np.isin(users * n_items + items, hidden, invert=True)
        users, items = users[known], items[known]
    uses = csr_from_pairs(users, items, n_users)
    return Interactions(uses.offsets, uses.items).pairs()


@dataclass(frozen=True)
class Marks:
    """Impressions that show something, by what tells one from another: user, time, number of items, first of them."""

    users: Indices  # [impressions]
    times: Offsets
    lengths: Offsets
    first: Indices

    def named(self, users: Strings, items: Strings) -> pl.DataFrame:
        """Return the marks with the ids of a data set in place of indices."""
        import polars as pl

        from veilrec.data.text_files import unpack

        return pl.DataFrame(
            {
                "user": unpack(users).gather(self.users),
                "time": self.times,
                "length": self.lengths,
                "first": unpack(items).gather(self.first),
            }
        )


def marks_of(impressions: Impressions) -> Marks:
    """What is kept of impressions to know them again."""
    shown = impressions.shown
    rows = np.flatnonzero(shown.lengths())
    first = shown.items[shown.offsets[rows]]
    return Marks(impressions.users[rows], impressions.times[rows], shown.lengths()[rows], first)


def count_common(these: pl.DataFrame, those: pl.DataFrame) -> int:
    """How many of these impressions, named, are also among those."""
    return len(these.join(those, on=these.columns, how="semi"))


@dataclass(frozen=True)
class _Reads:
    """First reads of an item by a user, packed by user and in time order within each."""

    users: Offsets
    items: Indices
    times: Offsets

    def rows(self, chosen: Bools, n_users: int) -> Csr:
        """The chosen items of every user."""
        return csr_from_pairs(self.users[chosen], self.items[chosen], n_users)


def split_last_day(population: Population, seed: int, validation: bool) -> Split:
    """The last day to ask, the one before it to learn from, or nine tenths of its clicks with validation.

    The last day begins at the cut of the population. Without one, the two days are the last two that a user has clicks
    on, and a user with clicks on a single day is learnt from and not asked.

    A history is everything that the user read before the day of the click. An item counts when a user reads it for
    the first time: one that was read before would stand out among negatives, which never were.

    As in `loo-99`, the negatives of training are drawn from everything outside the user's training items, so that
    neither the test items nor the 20 beside them are left out and nothing can be learnt from who was drawn.
    """
    reads = _first_reads(population)
    learnt_from, asked_from = _days_of(population, reads)
    past, before = reads.times < learnt_from[reads.users], reads.times < asked_from[reads.users]
    _refuse_empty(population, bool((before & ~past).any()), not before.all())
    keys, held = keys_of(population.users), np.zeros(len(before), np.bool_)
    if validation:
        learnt = before & ~past
        held[learnt] = mark_share(reads.users[learnt], keys, VALID_SHARE, seed, Purpose.VALID_IMPRESSIONS)
    pasts, known = reads.rows(past, population.n_users), reads.rows(before, population.n_users)
    train = reads.rows(before & ~held, population.n_users)

    def impressions(asked: Bools, histories: Csr, used: Csr, purpose: Purpose) -> Impressions:
        return _among_sampled(population, reads, asked, histories, used, seed, purpose)

    everything = reads.rows(np.ones(len(before), np.bool_), population.n_users)
    test = impressions(~before, known, everything, Purpose.TEST_NEGATIVES)
    valid = impressions(held, pasts, known, Purpose.VALID_NEGATIVES) if validation else None
    return Split(
        "last-day-20",
        population.n_users,
        population.n_items,
        train,
        cases_of(population.name, test, "test"),
        None if valid is None else cases_of(population.name, valid, "validation"),
        impressions(before & ~past & ~held, pasts, train, Purpose.TRAIN_NEGATIVES),
        cut=cut_of(population, "each user's own last day"),
    )


def _days_of(population: Population, reads: _Reads) -> tuple[Offsets, Offsets]:
    """Where each user's day to learn from begins, and where the last one does."""
    if population.cut is not None:
        last = np.full(population.n_users, population.cut, np.int64)
        return last - _DAY, last
    day = reads.times // _DAY
    last, before = (np.full(population.n_users, np.iinfo(np.int64).min // _DAY, np.int64) for _ in range(2))
    np.maximum.at(last, reads.users, day)
    earlier = day < last[reads.users]
    np.maximum.at(before, reads.users[earlier], day[earlier])
    several = np.isin(np.arange(population.n_users), reads.users[earlier])
    return np.where(several, before, last) * _DAY, np.where(several, last * _DAY, np.iinfo(np.int64).max)


def _refuse_empty(population: Population, learnt: bool, asked: bool) -> None:
    """Raise for a log without clicks on one of the two days."""
    if learnt and asked:
        return
    if population.cut is None:
        problem = f"clicks of a user on 2 days, to learn from one and ask the other, and {population.name} has none"
    else:
        cut, side = cut_of(population, ""), "from {} on, to ask" if learnt else "on the day before {}, to learn from"
        problem = f"clicks {side.format(cut)}, and {population.name} has none"
    raise BadInput(f"last-day-20 needs {problem}: bring a longer log, or use the protocol loo-99")


def _first_reads(population: Population) -> _Reads:
    log = population.interactions
    if log.times is None:
        raise BadInput(
            f"last-day-20 needs the time of every click, which {population.name} does not have: use the protocol"
            f" {'mind' if population.impressions else 'loo-99'}"
        )
    users = np.repeat(np.arange(population.n_users, dtype=np.int64), np.diff(log.offsets))
    _, first = np.unique(users * population.n_items + log.items, return_index=True)
    first.sort()
    return _Reads(users[first], log.items[first], log.times[first])


def _among_sampled(
    population: Population, reads: _Reads, asked: Bools, histories: Csr, used: Csr, seed: int, purpose: Purpose
) -> Impressions:
    """An impression a click: the click, then 20 items outside the user's row of `used`."""
    users, items = reads.users[asked], reads.items[asked]
    owned = used.take(users)
    left = population.n_items - owned.lengths()
    if left.min(initial=N_SAMPLED) < N_SAMPLED:
        user = population.users[int(users[left.argmin()])]
        raise BadInput(
            f"last-day-20 needs {N_SAMPLED} items that a user did not use, and user {user} leaves {left.min()}"
            f" of {population.n_items}: give --protocol loo-full"
        )
    clicks = keys_of(population.users)[users] ^ keys_of(population.items)[items]  # a click keys its draws
    sampled = draw_unused(owned, clicks, population.n_items, N_SAMPLED, seed, purpose)
    shown = np.column_stack([items, sampled])
    clicked = np.zeros(shown.shape, np.uint8)
    clicked[:, 0] = 1
    return Impressions(
        users.astype(np.int32),
        reads.times[asked],
        Csr(np.arange(len(users) + 1, dtype=np.int64) * shown.shape[1], shown.ravel()),
        clicked.ravel(),
        histories,
        users.astype(np.int32),
    )
