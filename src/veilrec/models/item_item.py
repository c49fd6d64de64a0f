"""EASE: a linear model of the history with a closed form.

H. Steck, Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019: with the Gram matrix G = X^T X of the
used items and P = (G + ridge I)^-1, the weights are B_ij = -P_ij / P_jj and B_jj = 0.

What follows an item, or goes with it: a few neighbours of every item, followed from the latest of a history.

    score(u, i) = sum over the latest items h of u, aged a = 0, 1, ..., of decay^a (W[h, i] + rest[h] p[i]) + small p[i]

with the popularity p that an empty history is left with. W is sparse. Of transitions (a Markov chain) row h holds
c[h, i] / (c[h] + smoothing) and rest[h] is smoothing / (c[h] + smoothing): all chances add up to one. Of similarities
it holds c[h, i] / (sqrt(c[h] c[i]) + shrinkage), and there is no rest.

Tastes from one noisy matrix of which items go together, and how a history is ranked by them.

Everything here is public: how popular items are and the matrix M are released with noise already, and how much noise
that is everybody knows. Among the K most popular items, with popularity p, a history x becomes z = x / p^0.25; the part
of it along c, the direction of p^0.75, is popularity and known, the rest y = z - (z . c) c is taste. M is the sum of
y y^T / |y|^2 over n people, with noise on every number; the mean of M and M^T has noise of standard deviation s.
- Of a symmetric matrix of pure noise no eigenvalue lies above 2 s sqrt(K). One of the sum that was l is seen at
  v = l + K s^2 / l, and the matrix is nearest to the truth with sqrt(v^2 - 4 K s^2) in its place (Gavish and Donoho
  2017; Benaych-Georges and Nadakuditi 2011). What lies below the edge is left out.
- A history is projected on what is left, each direction shortened by its eigenvalue over itself and `RIDGE` mean ones.
- Popularity is added as if everybody had used a few items more than they did, so that an empty history gets its list.

Chosen on the validation users of ML-1M (epsilon 2 and 8, three seeds) and Frappe. On ML-1M Hits@10 changes by less than
.003 for powers of .15 to .4, ridges of 3 to 5, popular parts of .7 to .9 and 2 to 5 further items. Without any further
item, somebody who used one gets a list that is worse than popularity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veilrec.core.arrays import Csr, Doubles, Floats, Indices, Offsets, offsets_of
from veilrec.core.errors import BadInput
from veilrec.core.jit import jit


def ease_weights(histories: Csr, n_items: int, ridge: float) -> Floats:
    """B, [items, items]; holds one matrix of float64 and one of float32 at most."""
    from scipy.linalg import lapack  # a quarter of a second that ranking does without

    gram = np.zeros((n_items, n_items), order="F")
    _add_gram(histories.offsets, histories.items, gram)
    np.einsum("ii->i", gram)[:] += ridge
    # In place, and only the lower triangle: a third of the work of a general inverse.
    factor, failed = lapack.dpotrf(gram, lower=1, overwrite_a=1, clean=0)
    if failed:
        raise BadInput(f"ridge is {ridge:g}, too small for this data: the item matrix is singular; try 100 or more")
    inverse, _ = lapack.dpotri(factor, lower=1, overwrite_c=1)
    weights = np.empty((n_items, n_items), np.float32)
    _normalise(inverse, weights)
    return weights


class EaseScorer:
    """score(u, i) = sum over the items j of the history of u of B_ji."""

    def __init__(self, weights: Floats, histories: Csr) -> None:
        self.weights = weights
        self.histories = histories
        self.n_items = len(weights)

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        chosen = self.histories.take(users)
        out = np.zeros((len(users), self.n_items), np.float32)
        _score_all(self.weights, chosen.offsets, chosen.items, out)
        return out

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""
        chosen = self.histories.take(users)
        out = np.zeros(items.shape, np.float32)
        _score_some(self.weights, chosen.offsets, chosen.items, np.ascontiguousarray(items), out)
        return out

    def fold_in(self, histories: Csr) -> EaseScorer:
        """New users: the same weights, their own histories."""
        return EaseScorer(self.weights, histories)


@jit
def _add_gram(offsets: Offsets, items: Indices, gram: Doubles) -> None:
    """Count, for every pair of items, the users who have both; the lower triangle only."""
    for user in range(len(offsets) - 1):
        own = np.sort(items[offsets[user] : offsets[user + 1]])
        for j in range(len(own)):
            for i in range(j, len(own)):
                gram[own[i], own[j]] += 1.0


@jit
def _normalise(inverse: Doubles, weights: Floats) -> None:
    n_items = len(weights)
    for j in range(n_items):
        for i in range(j, n_items):
            weights[i, j] = -inverse[i, j] / inverse[j, j]
            weights[j, i] = -inverse[i, j] / inverse[i, i]
        weights[j, j] = 0.0


@jit
def _score_all(weights: Floats, offsets: Offsets, items: Indices, out: Floats) -> None:
    for case in range(len(out)):
        for entry in range(offsets[case], offsets[case + 1]):
            row = weights[items[entry]]
            for i in range(len(row)):
                out[case, i] += row[i]


@jit
def _score_some(weights: Floats, offsets: Offsets, own: Indices, items: Indices, out: Floats) -> None:
    for case in range(items.shape[0]):
        for entry in range(offsets[case], offsets[case + 1]):
            row = weights[own[entry]]
            for j in range(items.shape[1]):
                out[case, j] += row[items[case, j]]


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


_POWER = 0.25  # of popularity that a use is divided by
RIDGE = 4.0  # in mean eigenvalues n / K of the matrix without noise
_POPULAR_PART = 0.75  # of what a history has along popularity
_FURTHER_ITEMS = 3.0  # that everybody is taken to have used, as everybody does
_MARGIN = 0.5  # beyond the edge of noise, in K^(-2/3) of it: by how much the largest eigenvalue of noise varies


@dataclass(frozen=True)
class Scaling:
    """How a history becomes a vector: the same for everybody, from how popular items are."""

    top: Indices  # [K], the most popular items, ascending
    scales: Doubles  # [K], of a use of each
    centre: Doubles  # [K], of length 1: the direction of popularity
    length: float  # of p^0.75
    per_item: float  # how much a use by popularity alone adds along the centre

    @classmethod
    def of(cls, popularity: Floats, size: int, floor: float) -> Scaling:
        """For the `size` most popular items; popularity below `floor` is taken for that."""
        votes = popularity.reshape(-1).astype(np.float64)
        top = np.sort(np.argsort(-votes, kind="stable")[:size]).astype(np.int32)
        used = np.maximum(votes[top], floor)
        along = used ** (1.0 - _POWER)
        length = float(np.linalg.norm(along))
        return cls(top, used**-_POWER, along / length, length, length / float(used.sum()))

    def places(self, n_items: int) -> Indices:
        """Where each item stands among the most popular; -1: nowhere."""
        places = np.full(n_items, -1, np.int32)
        places[self.top] = np.arange(len(self.top), dtype=np.int32)
        return places


@dataclass(frozen=True)
class Tastes:
    """What of the matrix is not noise: directions [K, k], and how far a history is followed along each [k]."""

    directions: Floats
    gains: Floats


def tastes_of(matrix: Doubles, *, sigma: float, people: float) -> Tastes:
    """From the sum over so many people with noise of standard deviation `sigma` on every number."""
    size = len(matrix)
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    edge = 2.0 * sigma / np.sqrt(2.0) * np.sqrt(size)
    kept = values > edge * (1.0 + _MARGIN * size ** (-2.0 / 3.0))
    shortened = np.sqrt(values[kept] ** 2 - edge**2)
    gains = shortened / (shortened + RIDGE * people / size)
    return Tastes(vectors[:, kept].astype(np.float32), gains.astype(np.float32))


class GramScorer:
    """score(u, i) = popularity, as much of it as the history of u has, and for popular items the taste of u."""

    def __init__(self, popularity: Floats, scaling: Scaling, tastes: Tastes, histories: Csr) -> None:
        self.popularity = popularity.reshape(-1)
        self.scaling, self.tastes = scaling, tastes
        self.histories = histories
        self.n_items = len(self.popularity)
        self._places = scaling.places(self.n_items)

    def score_all(self, users: Offsets) -> Floats:
        """Scores of every item: [len(users), items]."""
        scaling, tastes = self.scaling, self.tastes
        z = self._vectors(users)  # [U, K]
        along = z @ scaling.centre  # [U]
        taste = (z - np.outer(along, scaling.centre)).astype(np.float32)
        followed = ((taste @ tastes.directions) * tastes.gains) @ tastes.directions.T  # [U, K]
        popular = _POPULAR_PART * along + _FURTHER_ITEMS * scaling.per_item
        # The centre over the scales is p^0.75 p^0.25 / length.
        scores: Floats = np.outer(popular / scaling.length, self.popularity).astype(np.float32)
        scores[:, scaling.top] += followed / scaling.scales.astype(np.float32)
        return scores

    def _vectors(self, users: Offsets) -> Doubles:
        chosen = self.histories.take(users)
        places = self._places[chosen.items]
        inside = places >= 0
        z = np.zeros((len(users), len(self.scaling.top)))
        z[chosen.row_numbers()[inside], places[inside]] = self.scaling.scales[places[inside]]
        return z

    def score_some(self, users: Offsets, items: Indices) -> Floats:
        """Scores of the given items: [T, C] for T users with C items each."""
        scores = np.empty(items.shape, np.float32)
        for start in range(0, len(users), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            scores[part] = np.take_along_axis(self.score_all(users[part]), items[part].astype(np.int64), axis=1)
        return scores

    def fold_in(self, histories: Csr) -> GramScorer:
        """New users: the same tastes, their own histories."""
        return GramScorer(self.popularity, self.scaling, self.tastes, histories)
