"""What the lists that people get are like, whether they hit or not: how new, how varied, how much of the catalogue.

A list holds the k items of the highest scores; of equal ones the item with the lower number comes first, as in
`veilrec recommend`. What it is chosen from:

- all items but those of the user's training (and adaptation) part, wherever a protocol ranks items of the catalogue;
  for `loo-99` as well, because the best of 100 sampled items would say more of the sample than of the model;
- the items of the impression, where impressions are ranked.

A list is shorter than k where fewer items are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veilrec.core.arrays import Bools, Doubles, Floats, Indices, Offsets
from veilrec.core.csr import Csr, offsets_of
from veilrec.core.jit import jit
from veilrec.data.population import ItemTable
from veilrec.models.scores import best_first

_NO_KINDS = Csr(np.zeros(1, np.int64), np.zeros(0, np.int32))


@dataclass(frozen=True)
class ListItems:
    """What lists are judged by."""

    information: Doubles  # [items], in bits
    kinds: Csr | None  # the categories of every item, or the words of its title; ascending in a row

    def __len__(self) -> int:
        return len(self.information)


def describe_items(train: Csr, n_items: int, catalogue: ItemTable | None) -> ListItems:
    """The self-information of every item in the training part, and what kinds of item it is.

    An item that c of U users with any training items have used has -log2(max(c, 1) / U) bits.
    """
    users = max(1, int(np.count_nonzero(train.lengths())))
    counts = np.bincount(train.items, minlength=n_items)
    return ListItems(np.log2(users / np.maximum(counts, 1)), None if catalogue is None else _kinds(catalogue))


def top_of_all(scores: Floats, excluded: Csr, k: int) -> Indices:
    """The k best items of every row of [T, items] without those of the same row of `excluded`; -1 fills up."""
    worse = -scores
    worse[excluded.row_numbers(), excluded.items] = np.inf
    found = best_first(worse, min(k, worse.shape[1]))
    left_out = np.isinf(np.take_along_axis(worse, found, axis=1))
    best = np.full((len(scores), k), -1, np.int32)
    best[:, : found.shape[1]] = np.where(left_out, -1, found)
    return best


def top_of_lists(scores: Floats, lists: Csr, k: int) -> Indices:
    """The k best items of every list; `scores` is aligned with `lists.items`; -1 fills up."""
    rows = lists.row_numbers()
    order = np.lexsort((lists.items, -scores, rows))
    place = np.arange(len(order)) - np.repeat(lists.offsets[:-1], lists.lengths())
    kept = place < k
    best = np.full((len(lists), k), -1, np.int32)
    best[rows[kept], place[kept]] = lists.items[order[kept]]
    return best


class ListEvaluator:
    """Takes lists, some at a time, and says what they are like."""

    def __init__(self, items: ListItems, cutoffs: Sequence[int], n_lists: int) -> None:
        self.cutoffs = np.array(cutoffs, np.int64)
        self.k = max(cutoffs)
        self._items = items
        self._novelty = np.zeros((len(cutoffs), n_lists), np.float64)
        self._diversity = np.zeros((len(cutoffs), n_lists), np.float64)
        self._counts = np.zeros((len(cutoffs), len(items)), np.int64)

    def add(self, start: int, lists: Indices) -> None:
        """Evaluate lists [T, k], which belong to the cases from `start` on."""
        kinds, found = self._items.kinds or _NO_KINDS, (self._novelty, self._diversity, self._counts)
        known = (self._items.information, self._items.kinds is not None, kinds.offsets, kinds.items)
        _judge_lists(lists, start, self.cutoffs, *known, *found)

    def values(self) -> dict[str, Doubles]:
        """For every list: novelty@k, and diversity@k where the kinds of items are known.

        novelty@k: the mean self-information of the list's items, in bits. diversity@k: the mean distance of two items
        of the list, which is 1 - (kinds in common) / (kinds of either), and 0 for two items without any; a list of
        one item has 0.
        """
        named = {"novelty": self._novelty}
        if self._items.kinds is not None:
            named["diversity"] = self._diversity
        return {f"{name}@{k}": of[c] for name, of in named.items() for c, k in enumerate(self.cutoffs.tolist())}

    def whole(self, reachable: Bools | None = None) -> dict[str, float]:
        """Measure all lists together: coverage@k and gini@k over the reachable items, by default all.

        coverage@k: the share of them that is in any list. gini@k: the Gini coefficient of how many lists each is in:
        0 if all are in equally many, 1 - 1/n if one item of n is in all.
        """
        counts = self._counts if reachable is None else self._counts[:, reachable]
        measured = {}
        for c, k in enumerate(self.cutoffs.tolist()):
            measured[f"coverage@{k}"] = float(np.mean(counts[c] > 0))
            measured[f"gini@{k}"] = gini(counts[c])
        return measured


def gini(counts: Offsets) -> float:
    """Half of the mean difference of two counts, those of the same item included, over the mean count."""
    ascending = np.sort(counts).astype(np.float64)
    n = len(ascending)
    return float(np.sum((2 * np.arange(1, n + 1) - n - 1) * ascending) / (n * ascending.sum()))


def _kinds(catalogue: ItemTable) -> Csr | None:
    """The categories of items (between `|` where there are several); the words of titles where no item has any."""
    import polars as pl

    from veilrec.data.text_files import unpack

    for column, pattern in ((catalogue.categories, r"[^|]+"), (catalogue.titles, r"[\p{L}\p{N}]+")):
        found = (
            pl.DataFrame({"kind": unpack(column)})
            .with_row_index("item")
            .with_columns(pl.col("kind").str.to_lowercase().str.extract_all(pattern))
            .explode("kind")
            .with_columns(pl.col("kind").str.strip_chars())
            .filter(pl.col("kind") != "")
            .with_columns(pl.col("kind").rank("dense").cast(pl.Int32))
            .unique()
            .sort("item", "kind")
        )
        if len(found):
            sizes = np.bincount(found["item"].to_numpy(), minlength=len(column))
            return Csr(offsets_of(sizes), np.ascontiguousarray(found["kind"].to_numpy(), dtype=np.int32))
    return None


@jit
def _distance(offsets: Offsets, kinds: Indices, one: int, other: int) -> float:
    i, j, common = offsets[one], offsets[other], 0
    while i < offsets[one + 1] and j < offsets[other + 1]:
        if kinds[i] == kinds[j]:
            common += 1
            i += 1
            j += 1
        elif kinds[i] < kinds[j]:
            i += 1
        else:
            j += 1
    either = offsets[one + 1] - offsets[one] + offsets[other + 1] - offsets[other] - common
    return 1.0 - common / either if either > 0 else 0.0


@jit
def _judge_lists(
    lists: Indices,
    start: int,
    cutoffs: Offsets,
    information: Doubles,
    has_kinds: bool,
    offsets: Offsets,
    kinds: Indices,
    novelty: Doubles,
    diversity: Doubles,
    counts: Offsets,
) -> None:
    for r in range(len(lists)):
        bits, distances, length = 0.0, 0.0, 0
        for place in range(lists.shape[1]):
            item = lists[r, place]
            if item >= 0:
                length += 1
                bits += information[item]
                if has_kinds:
                    for before in range(place):
                        distances += _distance(offsets, kinds, lists[r, before], item)
            for c in range(len(cutoffs)):
                if place < cutoffs[c] and item >= 0:
                    counts[c, item] += 1
                if place + 1 == cutoffs[c]:
                    novelty[c, start + r] = bits / max(length, 1)
                    diversity[c, start + r] = distances / max(length * (length - 1) / 2, 1.0)
