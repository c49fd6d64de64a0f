"""What follows an item, or goes with it: a few neighbours of every item, followed from the latest of a history.

    score(u, i) = sum over the latest items h of u, aged a = 0, 1, ..., of decay^a (W[h, i] + rest[h] p[i]) + small p[i]

with the popularity p that an empty history is left with. W is sparse. Of transitions (a Markov chain) row h holds
c[h, i] / (c[h] + smoothing) and rest[h] is smoothing / (c[h] + smoothing): all chances add up to one. Of similarities
it holds c[h, i] / (sqrt(c[h] c[i]) + shrinkage), and there is no rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veilrec._arrays import Doubles, Floats, Indices, Offsets
from veilrec._csr import Csr, offsets_of
from veilrec._jit import jit

_AT_ONCE = 256  # users who are scored together
_SMALL = 1e-4  # of popularity: less than any neighbour, and an order where nothing else tells
_ALL = 2**31 - 1  # further than any history is long


@dataclass(frozen=True)
class Neighbours:
    """The neighbours of every item, and what ranks where they say nothing."""

    rows: Csr  # [items], those that each is followed to
    values: Floats  # beside the items of the rows
    rest: Floats  # [items], how much of popularity each is followed to
    popularity: Floats  # [items], adds up to 1


def transitions(histories: Csr, n_items: int, *, reach: int, fade: float, smoothing: float, most: int) -> Neighbours:
    """Chances of what is used after an item; what comes g items later counts fade^(g - 1), up to `reach` later."""
    rows, counts, totals = _count(histories, n_items, reach=reach, fade=fade, before=False)
    rows, counts = _largest(rows, counts, most)
    share = 1.0 / (totals + smoothing)
    values = counts * np.repeat(share, rows.lengths())
    return Neighbours(
        rows, values.astype(np.float32), (smoothing * share).astype(np.float32), _popular(histories, n_items)
    )


def similarities(histories: Csr, n_items: int, *, shrinkage: float, most: int) -> Neighbours:
    """Cosines of the users of two items; those of few users are made smaller."""
    rows, counts, _ = _count(histories, n_items, reach=_ALL, fade=1.0, before=True)
    uses = np.bincount(histories.items, minlength=n_items).astype(np.float64)
    of_row = np.repeat(uses, rows.lengths())
    rows, cosines = _largest(rows, counts / (np.sqrt(of_row * uses[rows.items]) + shrinkage), most)
    return Neighbours(rows, cosines.astype(np.float32), np.zeros(n_items, np.float32), _popular(histories, n_items))


def _popular(histories: Csr, n_items: int) -> Floats:
    uses = np.bincount(histories.items, minlength=n_items)
    popularity: Floats = (uses / max(uses.sum(), 1)).astype(np.float32)
    return popularity


def _count(histories: Csr, n_items: int, *, reach: int, fade: float, before: bool) -> tuple[Csr, Doubles, Doubles]:
    """How often items come after each item (or beside it), as sparse rows; and how often anything does, [items]."""
    places = np.argsort(histories.items, kind="stable")
    starts = offsets_of(np.bincount(histories.items, minlength=n_items))
    arguments = (histories.offsets, histories.items, histories.row_numbers(), places, starts, reach, fade, before)
    lengths = np.zeros(n_items, np.int64)
    nothing = np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0)
    _fill(*arguments, lengths, *nothing)
    offsets = offsets_of(lengths)
    items, counts = np.empty(offsets[-1], np.int32), np.empty(offsets[-1])
    _fill(*arguments, lengths, offsets, items, counts)
    rows = Csr(offsets, items)
    totals: Doubles = np.bincount(rows.row_numbers(), counts, minlength=n_items).astype(np.float64)
    return rows, counts, totals


def _largest(rows: Csr, values: Doubles, most: int) -> tuple[Csr, Doubles]:
    """At most so many of every row, those with the largest values."""
    offsets = offsets_of(np.minimum(rows.lengths(), most))
    items, kept = np.empty(offsets[-1], np.int32), np.empty(offsets[-1])
    _keep(rows.offsets, rows.items, values, offsets, items, kept)
    return Csr(offsets, items), kept


@jit
def _keep(
    starts: Offsets, items: Indices, values: Doubles, offsets: Offsets, kept_items: Indices, kept: Doubles
) -> None:
    for row in range(len(offsets) - 1):
        order = np.argsort(-values[starts[row] : starts[row + 1]], kind="mergesort")  # the first of equal ones
        for place in range(offsets[row + 1] - offsets[row]):
            kept_items[offsets[row] + place] = items[starts[row] + order[place]]
            kept[offsets[row] + place] = values[starts[row] + order[place]]


@jit
def _fill(  # type: ignore[no-untyped-def]
    offsets: Offsets, data: Indices, users: Offsets, places: Offsets, starts: Offsets, reach, fade, before,
    lengths: Offsets, filled: Offsets, items: Indices, counts: Doubles,
) -> None:  # fmt: skip
    """Both passes: with nothing to fill the lengths of rows are found, and then the rows."""
    n_items = len(lengths)
    sums, seen = np.zeros(n_items), np.full(n_items, -1, np.int64)
    touched = np.empty(n_items, np.int32)
    for item in range(n_items):
        count = 0
        for entry in range(starts[item], starts[item + 1]):
            place = places[entry]
            user = users[place]
            first = max(offsets[user], place - reach) if before else place + 1
            for other in range(first, min(offsets[user + 1], place + reach + 1)):
                near = data[other]
                if near == item:
                    continue
                if seen[near] != item:
                    seen[near] = item
                    touched[count] = near
                    count += 1
                    sums[near] = 0.0
                sums[near] += fade ** (abs(other - place) - 1)
        lengths[item] = count
        if len(filled):
            for k in range(count):
                items[filled[item] + k] = touched[k]
                counts[filled[item] + k] = sums[touched[k]]


class NeighbourScorer:
    """Follows the latest items of a history to their neighbours; a user is a history in the order of time."""

    def __init__(self, neighbours: Neighbours, histories: Csr, *, decay: float, latest: int) -> None:
        self.neighbours, self.histories = neighbours, histories
        self.decay, self.latest = decay, latest
        self.n_items = len(neighbours.popularity)

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        chosen, near = self.histories.take(users), self.neighbours
        scores = np.zeros((len(users), self.n_items), np.float32)
        _follow(
            near.rows.offsets, near.rows.items, near.values, near.rest, near.popularity,
            chosen.offsets, chosen.items, self.decay, self.latest, scores,
        )  # fmt: skip
        return scores

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""
        scores = np.empty(items.shape, np.float32)
        for start in range(0, len(users), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            scores[part] = np.take_along_axis(self.score_all(users[part]), items[part].astype(np.int64), axis=1)
        return scores

    def fold_in(self, histories: Csr) -> NeighbourScorer:
        """New users: the same neighbours, their own histories."""
        return NeighbourScorer(self.neighbours, histories, decay=self.decay, latest=self.latest)


@jit
def _follow(  # type: ignore[no-untyped-def]
    starts: Offsets, items: Indices, values: Floats, rest: Floats, popularity: Floats,
    offsets: Offsets, own: Indices, decay, latest, scores: Floats,
) -> None:  # fmt: skip
    for case in range(len(scores)):
        weight, popular = 1.0, _SMALL
        end = offsets[case + 1]
        for age in range(min(latest, end - offsets[case])):
            item = own[end - 1 - age]
            for entry in range(starts[item], starts[item + 1]):
                scores[case, items[entry]] += np.float32(weight * values[entry])
            popular += weight * rest[item]
            weight *= decay
        for i in range(scores.shape[1]):
            scores[case, i] += np.float32(popular * popularity[i])
