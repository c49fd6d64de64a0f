"""The search itself, compiled: bound, visit the best, then whatever may still hold something better.

Everything is rounded as written (`exact_jit`), or the margin would not hold.

What the right answer is, in numpy: the definition that every faster way is tested against.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from veilrec.core.arrays import Bools, Bytes, Floats, Indices, Offsets
from veilrec.core.jit import exact_jit

if TYPE_CHECKING:
    from veilrec.serving.index.blocks import Bits, Codes


CATEGORY, REGION = 1, 2  # bits of `filters`
_FIRST = 4  # groups that are visited for the sake of a good threshold
_UNIT = 2.0**-24  # largest relative error of one float32 operation
_TINY = 1e-41  # above all errors of numbers too small to have a relative one


@exact_jit
def fits(weights: Floats, largest: float, most: float) -> bool:
    """Whether all weights are finite and not negative, and no score can leave `most`."""
    total = 0.0
    for b in range(len(weights)):
        if not weights[b] >= 0.0:
            return False
        total += weights[b]
    return total * largest <= most and total <= most


@exact_jit
def search(
    weights: Floats,
    values: Floats,
    maxima: Floats,
    group_maxima: Floats,
    rows: Indices,
    alive: Bytes,
    count: int,
    base: int,
    largest: float,
    best_scores: Floats,
    best_rows: Offsets,
    found: int,
    filters: int,
    categories: Codes,
    category_present: Bits,
    category_wanted: Bytes,
    category_bits: Bits,
    regions: Codes,
    region_present: Bits,
    region_wanted: Bytes,
    region_bits: Bits,
) -> int:
    """Put what belongs among the best into `best_scores` and `best_rows`, best first; how many there are then.

    `found` of them are there already, all of lower rows: those of segments before. Only rows below `count` are.
    """
    groups, interests = group_maxima.shape[1], len(weights)
    blocks, width, group = values.shape[0], values.shape[2], maxima.shape[2]
    factors, sets = np.empty(interests, np.float32), np.empty(interests, np.int64)
    n_sets = _chain(weights, group_maxima.shape[0], factors, sets)
    margin = _margin(weights, largest)
    scores = np.empty(width, np.float32)
    block_bounds = np.empty(group, np.float32)
    bounds = np.empty(groups, np.float32)
    for g in range(groups):
        bounds[g] = factors[0] * group_maxima[sets[0], g]
    for c in range(1, n_sets):
        for g in range(groups):
            bounds[g] = bounds[g] + factors[c] * group_maxima[sets[c], g]
    k = len(best_scores)
    limit = best_scores[k - 1] if found == k else np.float32(-np.inf)
    for turn in range(groups + min(_FIRST, groups)):
        g = turn - min(_FIRST, groups)
        if g < 0:
            g = 0
            for other in range(1, groups):
                if bounds[other] > bounds[g]:
                    g = other
        if not bounds[g] >= limit - margin:
            continue
        bounds[g] = np.float32(np.nan)  # visited: not a number is never above a limit
        for j in range(group):
            block_bounds[j] = factors[0] * maxima[g, sets[0], j]
        for c in range(1, n_sets):
            for j in range(group):
                block_bounds[j] = block_bounds[j] + factors[c] * maxima[g, sets[c], j]
        for j in range(min(group, blocks - g * group)):
            block = g * group + j
            if not block_bounds[j] >= limit - margin:
                continue
            if filters & CATEGORY and category_present[block] & category_bits[0] == 0:
                continue
            if filters & REGION and region_present[block] & region_bits[0] == 0:
                continue
            for i in range(width):
                scores[i] = weights[0] * values[block, 0, i]
            for b in range(1, interests):
                for i in range(width):
                    scores[i] = scores[i] + weights[b] * values[block, b, i]
            hits = 0
            for i in range(width):
                hits += 1 if scores[i] >= limit else 0
            if hits == 0:
                continue
            for i in range(width):
                if not scores[i] >= limit:
                    continue
                place = block * width + i
                row = rows[place]
                if row >= count or alive[row] == 0:
                    continue
                if filters & CATEGORY and category_wanted[categories[place]] == 0:
                    continue
                if filters & REGION and region_wanted[regions[place]] == 0:
                    continue
                found = insert(scores[i], base + row, best_scores, best_rows, found)
                if found == k:
                    limit = best_scores[k - 1]
    return found


@exact_jit
def _chain(weights: Floats, n_sets: int, factors: Floats, sets: Offsets) -> int:
    """The factors of a bound and the sets of interests that they belong to; how many there are, at least 1."""
    interests = len(weights)
    if n_sets == interests:  # one set per interest; with a single interest it is the same
        for b in range(interests):
            factors[b], sets[b] = weights[b], b
        return interests
    order = np.argsort(-weights)
    chosen, used = 0, 0
    for i in range(interests):
        chosen |= 1 << order[i]
        below = weights[order[i + 1]] if i + 1 < interests else np.float32(0.0)
        if weights[order[i]] > below or (used == 0 and i + 1 == interests):
            factors[used], sets[used] = weights[order[i]] - below, chosen - 1
            used += 1
    return used


@exact_jit
def _margin(weights: Floats, largest: float) -> np.float32:
    """How much a score, as computed, may be above the bound of its block, as computed.

    With u the unit of rounding, T the sum of the weights and L the largest value: B products and sums in a row are off
    by B u T L at most (to first order, here and below), in a score and in a bound; factors are rounded once, u T L; the
    largest sums are of double precision and rounded once, u T L. Together (2 B + 2) u T L, which is doubled: that is
    also for terms of higher order and for rounding when the margin is taken off a score, at most T L, itself.
    """
    total = 0.0
    for b in range(len(weights)):
        total += weights[b]
    return np.float32((4 * len(weights) + 4) * _UNIT * total * largest + _TINY)


@exact_jit
def search_places(
    weights: Floats,
    values: Floats,
    places: Indices,
    rows: Indices,
    alive: Bytes,
    count: int,
    base: int,
    best_scores: Floats,
    best_rows: Offsets,
    found: int,
    filters: int,
    categories: Codes,
    category_wanted: Bytes,
    regions: Codes,
    region_wanted: Bytes,
) -> int:
    """The same among the items of some places, one after another."""
    interests, width, k = values.shape[1], values.shape[2], len(best_scores)
    for index in range(len(places)):
        place = places[index]
        row = rows[place]
        block, i = place // width, place % width
        score = weights[0] * values[block, 0, i]
        for b in range(1, interests):
            score = score + weights[b] * values[block, b, i]
        if (found == k and not score >= best_scores[k - 1]) or row >= count or alive[row] == 0:
            continue
        if filters & CATEGORY and category_wanted[categories[place]] == 0:
            continue
        if filters & REGION and region_wanted[regions[place]] == 0:
            continue
        found = insert(score, base + row, best_scores, best_rows, found)
    return found


@exact_jit
def insert(score: float, row: int, best_scores: Floats, best_rows: Offsets, found: int) -> int:
    """Put an item into its place among the best, of equal scores the lower row first; how many there are then."""
    k = len(best_scores)
    if found == k:
        if score < best_scores[k - 1] or (score == best_scores[k - 1] and row > best_rows[k - 1]):
            return found
        found -= 1
    place = found
    while place > 0 and (
        best_scores[place - 1] < score or (best_scores[place - 1] == score and best_rows[place - 1] > row)
    ):
        best_scores[place] = best_scores[place - 1]
        best_rows[place] = best_rows[place - 1]
        place -= 1
    best_scores[place] = score
    best_rows[place] = row
    return found + 1


def scores_of(values: Floats, weights: Floats) -> Floats:
    """[items, B] -> [items]: products added up in the order of the interests, every step rounded to float32."""
    total: Floats = values[:, 0] * weights[0]
    for b in range(1, len(weights)):
        total = total + values[:, b] * weights[b]
    return total


def best_of(scores: Floats, k: int, allowed: Bools | None = None) -> Offsets:
    """The rows of the k highest scores, best first, of equal ones the lowest row; fewer where fewer are allowed."""
    rows = np.arange(len(scores)) if allowed is None else np.flatnonzero(allowed)
    worse = -scores[rows]
    if k < len(rows):
        last = np.partition(worse, k - 1)[k - 1]
        kept = worse <= last  # at least k: those that tie with the last one, too
        rows, worse = rows[kept], worse[kept]
    best: Offsets = rows[np.argsort(worse, kind="stable")[:k]].astype(np.int64)
    return best
