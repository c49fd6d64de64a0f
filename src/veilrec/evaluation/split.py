"""What a protocol hands out (what devices may learn from, and what they are asked afterwards), and what it is cut with.

Random choices are keyed by (seed, purpose, user): what one user gets does not depend on who else is there.

What the evaluation needs of a model, and nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol, runtime_checkable

import numpy as np

from veilrec.core.arrays import Bools, Csr, Floats, Indices, Offsets, csr_from_pairs, offsets_of
from veilrec.core.features import Side
from veilrec.core.jit import jit
from veilrec.core.rng import below, stream, word
from veilrec.data.population import Impressions, ItemTable
from veilrec.models.scores import Model


@dataclass(frozen=True)
class Cases:
    """T questions: for each a user and the items that a good model ranks first."""

    users: Offsets  # [T], index in the population; a row of the scorer unless the protocol folds the user in
    positives: Csr  # T rows
    candidates: Indices | None = None  # loo-99, [T, 1 + 99]: column 0 the held-out item, then the sampled ones
    adapt: Csr | None = None  # holdout-users, T rows: what the device adapts on
    impressions: Impressions | None = None  # mind, T impressions
    people: Side | None = None  # holdout-users, T rows: what the device knows of its user
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
    train: Csr  # n_users rows: the distinct items that devices may learn from, in time order
    test: Cases
    valid: Cases | None = None
    train_impressions: Impressions | None = None  # mind: those that devices may learn from
    liked: Csr | None = None  # n_users rows: what counts of all that was used; None: all of it


def for_search(split: Split) -> Split:
    """The same cut with the validation part asked in place of the test part, which nobody then has."""
    if split.valid is None:
        raise ValueError("a search needs a split with a validation part")
    return replace(split, test=split.valid, valid=None)


def join_rows(left: Csr, right: Csr) -> Csr:
    """Row r of the one followed by row r of the other."""
    rows = np.concatenate([left.row_numbers(), right.row_numbers()])
    return csr_from_pairs(rows, np.concatenate([left.items, right.items]), len(left))


def keep_entries(rows: Csr, kept: Bools) -> Csr:
    """The same rows with only the marked entries, in the same order."""
    return Csr(offsets_of(kept)[rows.offsets], rows.items[kept])


class Purpose(IntEnum):
    """What a choice is for: streams apart from each other and from those of `veilrec.core.rng`."""

    TEST_NEGATIVES = 101
    VALID_NEGATIVES = 102
    TEST_ITEMS = 103
    VALID_ITEMS = 104
    TEST_USERS = 105
    VALID_IMPRESSIONS = 106
    TRAIN_NEGATIVES = 107
    ADAPT_ORDER = 108


def draw_unused(used: Csr, users: Offsets, n_items: int, count: int, seed: int, purpose: int) -> Indices:
    """For row i, `count` distinct items outside `used.row(i)`, uniformly; [len(used), count].

    The items of a row of `used` are distinct and leave at least `count`; `users[i]` keys the draws of row i.
    """
    drawn = np.empty((len(used), count), np.int32)
    _draw_unused(used.offsets, used.items, users, n_items, seed, purpose, drawn)
    return drawn


def mark_some(offsets: Offsets, counts: Offsets, seed: int, purpose: int) -> Bools:
    """Mark `counts[r]` entries of row r, chosen uniformly without replacement and keyed by r."""
    marked = np.zeros(offsets[-1], np.bool_)
    _mark_some(offsets, counts, seed, purpose, marked)
    return marked


@jit
def _draw_unused(
    offsets: Offsets, items: Indices, users: Offsets, n_items: int, seed: int, purpose: int, drawn: Indices
) -> None:
    taken_by = np.full(n_items, -1, np.int64)  # the last row that used or drew an item
    for r in range(len(users)):
        for entry in range(offsets[r], offsets[r + 1]):
            taken_by[items[entry]] = r
        start = stream(seed, purpose, 0, users[r])
        found, attempt = 0, 0
        while found < drawn.shape[1]:
            item = below(word(start, attempt), n_items)
            attempt += 1
            if taken_by[item] != r:
                taken_by[item] = r
                drawn[r, found] = item
                found += 1


@jit
def _mark_some(offsets: Offsets, counts: Offsets, seed: int, purpose: int, marked: Bools) -> None:
    for r in range(len(counts)):
        start = stream(seed, purpose, 0, r)
        wanted = counts[r]
        for entry in range(offsets[r], offsets[r + 1]):
            # Selection sampling (Knuth, TAOCP 2, 3.4.2, algorithm S).
            left = offsets[r + 1] - entry
            if below(word(start, entry - offsets[r]), left) < wanted:
                marked[entry] = True
                wanted -= 1


@runtime_checkable
class ImpressionScorer(Protocol):
    """A model that would rather score whole impressions than be folded in (it may use times, say)."""

    def score_impressions(self, impressions: Impressions) -> Floats:
        """A score for every entry of `impressions.shown.items`."""


@runtime_checkable
class TextReader(Protocol):
    """A model that knows items by their text, and so can rank those of another data set."""

    def on(self, catalogue: ItemTable) -> Model:
        """The same model for the items of another catalogue."""
