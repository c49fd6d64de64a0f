"""What is publicly alike: similarities of items by their features and texts, and how a history looks at candidates.

A similarity is a table over the distinct values of a feature, or the cosine of two text vectors; a kernel is one of
them or the product of two. A kernel feature of a candidate is the mean kernel to the items of a history, the latest
counting most: the item that lies a places back has weight e^(-a / tau), for every recency scale tau.

Where items lie beyond their content, estimated from noisy sums: among which tastes each was used.

Everybody adds, for each of its items, the place in content space of what came before it: the sum S_i is about W_i
times the mean place at which item i is used, with W_i its votes. What content says of that place is predicted by ridge
regression; the variance of what is left is estimated, the noise is known, and each item keeps as much of it as its sum
can tell (linear empirical Bayes). A second sum, of places among what the first said, is read in the same way: content
and what the first said predict it. Everything here is done to what was released already.

How popular items are, estimated from noisy votes: empirical Bayes, with what is publicly known as the prior.

An item has e^t votes, seen with Gaussian noise of known size; t is Gaussian around a linear function of the item's
public content. Both are fitted to all votes together (EM on a grid), and an item's estimate is its posterior mean of t.
Where the noise is large, items of the same content share what is known of them; where it is small, votes speak.
Everything here is done to what was released already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec.core.arrays import Doubles, Floats, Indices, Offsets
from veilrec.core.jit import compiles, jit

ALONE = -1  # of a kernel that is one similarity
_AT_ONCE = 4096  # candidates, without a compiler
_FROM_TEXTS = 2  # similarities that text vectors give: the cosine, and its third power where it is above 0


@dataclass(frozen=True)
class Content:
    """All that is public of a catalogue; a catalogue of which nothing is known has no kernels and no basis."""

    codes: Indices  # [tables, items]: the value of each item
    tables: Floats  # the tables of all features end to end
    starts: Offsets  # [tables]: where each begins
    widths: Offsets  # [tables]: how many values it is of
    texts: Floats  # [items, d], of length 1 or 0; d = 0: no texts
    kernels: Indices  # [kernels, 2]: the similarities that are multiplied; texts come after the tables
    scales: Floats  # [kernels]: 1 / standard deviation over pairs of items
    basis: Floats  # [items, K]: the first principal directions of everything, of mean squared length 1

    @property
    def n_items(self) -> int:
        """Items of the catalogue."""
        return len(self.texts)

    @property
    def n_kernels(self) -> int:
        """Kernels."""
        return len(self.kernels)

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """As a saved model keeps it."""
        return {prefix + field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], prefix: str) -> Content:
        """What `arrays` was taken from."""
        return cls(**{field.name: arrays[prefix + field.name] for field in fields(cls)})

    def similar(self, rows: Indices, columns: Indices) -> Floats:
        """Kernels of pairs of items: [pairs, kernels]."""
        out = np.zeros((len(rows), self.n_kernels), np.float32)
        _similar(rows, columns, *self._packed, out)
        return out

    def features(self, history: Indices, ends: Offsets, candidates: Indices, decays: Floats, latest: int) -> Floats:
        """Features of candidates [T, C] before the positions `ends` [T] of a history: [T, C, scales * kernels].

        Only the `latest` items before a position count.
        """
        out = np.zeros((*candidates.shape, len(decays), self.n_kernels), np.float32)
        if self.n_kernels and compiles():
            _features(history, ends, candidates, *self._packed, decays, latest, out)
        elif self.n_kernels:
            self._features_at_once(history, ends, candidates, decays, latest, out)
        return out.reshape(*candidates.shape, len(decays) * self.n_kernels)

    def _features_at_once(
        self, history: Indices, ends: Offsets, candidates: Indices, decays: Floats, latest: int, out: Floats
    ) -> None:
        """Compute features by whole arrays, without a compiler."""
        weights = decays[np.newaxis] ** np.arange(latest, dtype=np.float32)[:, np.newaxis]
        for target, end in enumerate(ends.tolist()):
            context = history[max(0, end - latest) : end][::-1]
            shares = weights[: len(context)] / weights[: len(context)].sum(axis=0)  # [used, scales]
            for start in range(0, candidates.shape[1] if len(context) else 0, _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                for kernel, values in enumerate(self._kernels(candidates[target, part], context)):
                    out[target, part, :, kernel] = values @ shares

    def scores(self, context: Indices, candidates: Indices, amounts: Floats) -> Floats:
        """Scores of candidates [C]: sums over a context [n] and all kernels of `amounts` [n, kernels] times the kernel.

        What ranking needs of `features`, which are linear in kernels: nothing is worked out for every scale, and a
        similarity by values of a feature once for each value.
        """
        out = np.zeros(len(candidates), np.float32)
        for start in range(0, len(candidates) if len(context) else 0, _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            out[part] = self._scores(context, candidates[part], amounts * self.scales)
        return out

    def _scores(self, context: Indices, candidates: Indices, amounts: Floats) -> Floats:
        out = np.zeros(len(candidates), np.float32)
        n_tables = len(self.starts)
        cosine = self.texts[candidates] @ self.texts[context].T
        for (first, second), amount in zip(self.kernels.tolist(), np.ascontiguousarray(amounts.T), strict=True):
            if first >= n_tables or second >= n_tables:
                out += self._product(first, second, candidates, context, cosine) @ amount
            elif second == ALONE:
                by_value = self._table(first)[:, self.codes[first, context]] @ amount
                out += by_value[self.codes[first, candidates]]
            elif compiles():
                of_first, of_second = (self._table(one)[self.codes[one, context]] for one in (first, second))
                codes = self.codes[first, candidates], self.codes[second, candidates]
                _add_products(of_first, of_second, *codes, amount, out)
            else:
                out += self._product(first, second, candidates, context, cosine) @ amount
        return out

    def _kernels(self, rows: Indices, columns: Indices) -> Iterator[Floats]:
        """Each kernel of all pairs: [rows, columns]."""
        cosine = self.texts[rows] @ self.texts[columns].T
        for (first, second), scale in zip(self.kernels.tolist(), self.scales, strict=True):
            yield self._product(first, second, rows, columns, cosine) * scale

    def _product(self, first: int, second: int, rows: Indices, columns: Indices, cosine: Floats) -> Floats:
        """A similarity of all pairs, or the product of two: [rows, columns]."""
        alike = self._alike(first, rows, columns, cosine)
        return alike if second == ALONE else np.asarray(alike * self._alike(second, rows, columns, cosine))

    def _alike(self, similarity: int, rows: Indices, columns: Indices, cosine: Floats) -> Floats:
        n_tables = len(self.starts)
        if similarity < n_tables:
            of_rows = self._table(similarity)[self.codes[similarity, rows]]
            return np.asarray(of_rows[:, self.codes[similarity, columns]])
        above: Floats = np.maximum(cosine, np.float32(0.0))
        return cosine if similarity == n_tables else np.asarray(above * above * above)

    def _table(self, similarity: int) -> Floats:
        start, width = int(self.starts[similarity]), int(self.widths[similarity])
        return self.tables[start : start + width * width].reshape(width, width)

    @property
    def _packed(self) -> tuple[Indices, Floats, Offsets, Offsets, Floats, Indices, Floats]:
        return self.codes, self.tables, self.starts, self.widths, self.texts, self.kernels, self.scales


def decays_of(scales: tuple[float, ...]) -> Floats:
    """What an item's weight is multiplied by for every place farther back."""
    return np.exp(-1.0 / np.array(scales)).astype(np.float32)


def amounts_of(weights: Floats, used: int, decays: Floats) -> Floats:
    """What the item so many places back counts in each kernel, with weights [scales, kernels]: [used, kernels]."""
    fading = decays ** np.arange(used, dtype=np.float32)[:, np.newaxis]  # [used, scales]
    return np.asarray((fading / fading.sum(axis=0)) @ weights, np.float32)


@jit
def _add_products(
    first: Floats, second: Floats, first_codes: Indices, second_codes: Indices, amounts: Floats, out: Floats
) -> None:
    """Products of two similarities that each item of a context [n] has to every value: [n, values] each."""
    for back in range(len(amounts)):
        amount = amounts[back]
        for place in range(len(out)):
            out[place] += amount * first[back, first_codes[place]] * second[back, second_codes[place]]


@jit
def _values(
    row: int,
    column: int,
    codes: Indices,
    tables: Floats,
    starts: Offsets,
    widths: Offsets,
    texts: Floats,
    kernels: Indices,
    scales: Floats,
    alike: Floats,
    values: Floats,
) -> None:
    """Kernels of one pair."""
    n_tables = len(starts)
    for table in range(n_tables):
        alike[table] = tables[starts[table] + codes[table, row] * widths[table] + codes[table, column]]
    if texts.shape[1]:
        cosine = np.float32(0.0)
        for d in range(texts.shape[1]):
            cosine += texts[row, d] * texts[column, d]
        alike[n_tables] = cosine
        alike[n_tables + 1] = max(cosine, np.float32(0.0)) ** 3
    for kernel in range(len(kernels)):
        value = alike[kernels[kernel, 0]] * scales[kernel]
        if kernels[kernel, 1] != ALONE:
            value *= alike[kernels[kernel, 1]]
        values[kernel] = value


@jit
def _similar(
    rows: Indices,
    columns: Indices,
    codes: Indices,
    tables: Floats,
    starts: Offsets,
    widths: Offsets,
    texts: Floats,
    kernels: Indices,
    scales: Floats,
    out: Floats,
) -> None:
    alike = np.zeros(len(starts) + _FROM_TEXTS, np.float32)
    for pair in range(len(rows)):
        _values(rows[pair], columns[pair], codes, tables, starts, widths, texts, kernels, scales, alike, out[pair])


@jit
def _features(
    history: Indices,
    ends: Offsets,
    candidates: Indices,
    codes: Indices,
    tables: Floats,
    starts: Offsets,
    widths: Offsets,
    texts: Floats,
    kernels: Indices,
    scales: Floats,
    decays: Floats,
    latest: int,
    out: Floats,
) -> None:
    n_kernels, n_scales = len(kernels), len(decays)
    alike = np.zeros(len(starts) + _FROM_TEXTS, np.float32)
    values = np.zeros(n_kernels, np.float32)
    weights = np.ones((latest, n_scales), np.float32)  # of the item so many places back
    totals = np.ones((latest, n_scales), np.float32)  # of all items up to it
    for back in range(1, latest):
        for scale in range(n_scales):
            weights[back, scale] = weights[back - 1, scale] * decays[scale]
            totals[back, scale] = totals[back - 1, scale] + weights[back, scale]
    for target in range(len(ends)):
        used = min(ends[target], latest)
        for place in range(candidates.shape[1]):
            mean = out[target, place]
            for back in range(used):
                _values(
                    candidates[target, place],
                    history[ends[target] - 1 - back],
                    codes,
                    tables,
                    starts,
                    widths,
                    texts,
                    kernels,
                    scales,
                    alike,
                    values,
                )
                for scale in range(n_scales):
                    weight = weights[back, scale]
                    for kernel in range(n_kernels):
                        mean[scale, kernel] += values[kernel] * weight
            if used:
                for scale in range(n_scales):
                    for kernel in range(n_kernels):
                        mean[scale, kernel] /= totals[used - 1, scale]


def profiles(history: Indices, ends: Offsets, table: Floats, decays: Floats) -> Floats:
    """The mean row of a table over the items before every position, by recency: [T, scales * width]; 0 before any."""
    out = np.zeros((len(ends), len(decays) * table.shape[1]), np.float32)
    _profiles(history, ends, table, decays, out)
    return out


@jit
def _profiles(history: Indices, ends: Offsets, table: Floats, decays: Floats, out: Floats) -> None:
    """Positions are in any order; a running mean is taken over the history once for every scale."""
    width = table.shape[1]
    where = np.full(len(history) + 1, -1, np.int64)  # the first target at a position
    following = np.full(len(ends), -1, np.int64)  # the next one at the same position
    for target in range(len(ends)):
        following[target] = where[ends[target]]
        where[ends[target]] = target
    mean = np.zeros(width, np.float32)
    for scale in range(len(decays)):
        mean[:] = 0.0
        total = np.float32(0.0)
        for position in range(len(history) + 1):
            target = where[position]
            while target >= 0 and total > 0.0:
                for d in range(width):
                    out[target, scale * width + d] = mean[d] / total
                target = following[target]
            if position < len(history):
                for d in range(width):
                    mean[d] = mean[d] * decays[scale] + table[history[position], d]
                total = total * decays[scale] + np.float32(1.0)


def second_moment(differences: Floats) -> Doubles:
    """Mean of x x^T over rows."""
    wide = differences.astype(np.float64)
    return np.asarray(wide.T @ wide / max(len(wide), 1))


_RIDGE, _PRIOR, _PER_VOTE, _LEAST = 3.0, 0.07, 0.2, 1e-4  # in squared units of a place along one direction


@dataclass(frozen=True)
class ItemPlaces:
    """What is known of the items along each direction: [items, directions] each."""

    values: Floats  # beyond content; of unit variance where votes are many, 0 where nothing is known
    gains: Floats  # how far one more of S moves the value
    expected: Floats  # the mean place of an item of this content


def no_places(n_items: int) -> ItemPlaces:
    """No direction at all."""
    return unknown_places((n_items, 0))


def unknown_places(shape: tuple[int, ...]) -> ItemPlaces:
    """Directions of which nothing is known yet."""
    nothing = np.zeros(shape, np.float32)
    return ItemPlaces(nothing, nothing, nothing)


def joined(first: ItemPlaces, second: ItemPlaces) -> ItemPlaces:
    """The directions of both."""
    return ItemPlaces(
        *(np.column_stack([getattr(one, each.name) for one in (first, second)]) for each in fields(first))
    )


def placed(sums: Floats, noise: float, uses: Doubles, content: Floats) -> ItemPlaces:
    """From sums [items, directions] with noise of this standard deviation, and how many votes items have [items]."""
    if not sums.shape[1]:
        return no_places(len(sums))
    seen, votes = sums.astype(np.float64), uses[:, np.newaxis]
    expected = np.tile(seen.sum(axis=0) / votes.sum(), (len(seen), 1))
    # A place S / W has variance prior + per_vote / W + noise^2 / W^2.
    weight = votes**2 / (_PRIOR * votes**2 + _PER_VOTE * votes + noise**2)
    design = np.column_stack([np.ones(len(seen)), _standardised(content)])
    gram = design.T @ (design * weight) + _RIDGE * np.eye(design.shape[1])
    expected += design @ np.linalg.solve(gram, design.T @ (weight * (seen / votes - expected)))
    left = seen - votes * expected
    # Moments: E left^2 = W^2 variance + W per_vote + noise^2, items weighed by how well they tell.
    squared = (weight / votes) ** 2
    known = left**2 - _PER_VOTE * votes - noise**2
    variance = np.maximum((squared * known).sum(axis=0) / (squared * votes**2).sum(), _LEAST)
    gains = votes * variance / (votes**2 * variance + votes * _PER_VOTE + noise**2) / np.sqrt(variance)
    return ItemPlaces((gains * left).astype(np.float32), gains.astype(np.float32), expected.astype(np.float32))


def _standardised(content: Floats) -> Doubles:
    wide = content.astype(np.float64)
    return np.asarray((wide - wide.mean(axis=0)) / np.maximum(wide.std(axis=0), 1e-6))


_GRID = np.linspace(-4.0, 7.0, 111)  # of t: from 1/50 of a vote to a thousand
_LONGEST = np.log(1e6)  # of the grid where there are more people
_STEP = 0.1
_TIMES, _VEIL_POPULARITY_RIDGE, _LEAST_VARIANCE, _LEAST_NOISE = 25, 3.0, 0.05, 0.5
_VEIL_POPULARITY_AT_ONCE = 20_000


def estimated(votes: Doubles, sigma: float, content: Floats) -> Floats:
    """For every item the posterior mean of t, and how much a vote more or less moves it: [items, 2].

    `content` [items, K] is what the prior may depend on. The second column is the slope: a client that takes its own
    vote away to see how popular its item is with the others subtracts so much of it.
    """
    noise = max(sigma, _LEAST_NOISE)
    grid = _grid(float(votes.max(initial=1.0)) + 3.0 * noise)
    design = np.column_stack([np.ones(len(votes)), _veil_popularity_standardised(content)])
    prior, variance = _fitted(votes, noise, design, grid)
    mean, _ = _posterior(votes, prior, variance, noise, grid)
    below, _ = _posterior(votes - _STEP, prior, variance, noise, grid)
    return np.column_stack([mean, (mean - below) / _STEP]).astype(np.float32)


def _grid(largest: float) -> Doubles:
    last = min(max(_GRID[-1], np.log(max(largest, 1.0)) + 1.0), _LONGEST)
    return np.arange(_GRID[0], last + _STEP / 2.0, _STEP)


def _veil_popularity_standardised(content: Floats) -> Doubles:
    centred = content.astype(np.float64) - content.mean(axis=0, dtype=np.float64)
    return np.asarray(centred / np.maximum(centred.std(axis=0), 1e-6))


def _posterior(votes: Doubles, prior: Doubles, variance: float, noise: float, grid: Doubles) -> tuple[Doubles, Doubles]:
    """Mean and variance of t given an item's votes."""
    mean, spread = np.empty(len(votes)), np.empty(len(votes))
    for start in range(0, len(votes), _VEIL_POPULARITY_AT_ONCE):
        part = slice(start, start + _VEIL_POPULARITY_AT_ONCE)
        log = -0.5 * ((votes[part, np.newaxis] - np.exp(grid)) / noise) ** 2
        log -= 0.5 * (grid - prior[part, np.newaxis]) ** 2 / variance
        chance = np.exp(log - log.max(axis=1, keepdims=True))
        chance /= chance.sum(axis=1, keepdims=True)
        mean[part] = chance @ grid
        spread[part] = chance @ grid**2 - mean[part] ** 2
    return mean, spread


def _fitted(votes: Doubles, noise: float, design: Doubles, grid: Doubles) -> tuple[Doubles, float]:
    """The prior of every item, and its variance."""
    prior, variance = np.full(len(votes), np.log(max(float(votes.mean()), 0.1))), 4.0
    ridge = np.diag([0.0, *np.full(design.shape[1] - 1, _VEIL_POPULARITY_RIDGE)])
    gram = design.T @ design
    for _ in range(_TIMES):
        mean, spread = _posterior(votes, prior, variance, noise, grid)
        prior = design @ np.linalg.solve(gram + ridge * variance, design.T @ mean)
        variance = max(float(((mean - prior) ** 2 + spread).mean()), _LEAST_VARIANCE)
    return prior, variance
