"""The search itself, compiled: bound, visit the best, then whatever may still hold something better.

Everything is rounded as written (`exact_jit`): see `blocks` for why a bound is then never below a score.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from veilrec._arrays import Bytes, Floats, Indices, Offsets
from veilrec._jit import exact_jit

if TYPE_CHECKING:
    from veilrec.server.index.blocks import Bits, Codes

CATEGORY, REGION = 1, 2  # bits of `filters`
_FIRST = 4  # groups that are visited for the sake of a good threshold


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
    first_rows: Indices,
    alive: Bytes,
    count: int,
    base: int,
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
    interests, groups = group_maxima.shape
    blocks, width, group = values.shape[0], values.shape[2], maxima.shape[2]
    scores = np.empty(width, np.float32)
    block_bounds = np.empty(group, np.float32)
    bounds = np.empty(groups, np.float32)
    for g in range(groups):
        bounds[g] = weights[0] * group_maxima[0, g]
    for b in range(1, interests):
        for g in range(groups):
            bounds[g] = bounds[g] + weights[b] * group_maxima[b, g]
    k = len(best_scores)
    limit = best_scores[k - 1] if found == k else np.float32(-np.inf)
    for turn in range(groups + min(_FIRST, groups)):
        g = turn - min(_FIRST, groups)
        if g < 0:
            g = 0
            for other in range(1, groups):
                if bounds[other] > bounds[g]:
                    g = other
        if not bounds[g] >= limit:
            continue
        bounds[g] = np.float32(np.nan)  # visited: not a number is never above a limit
        for j in range(group):
            block_bounds[j] = weights[0] * maxima[g, 0, j]
        for b in range(1, interests):
            for j in range(group):
                block_bounds[j] = block_bounds[j] + weights[b] * maxima[g, b, j]
        for j in range(min(group, blocks - g * group)):
            block = g * group + j
            if not block_bounds[j] >= limit:
                continue
            if found == k and block_bounds[j] == limit and base + first_rows[block] > best_rows[k - 1]:
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
                found = _insert(scores[i], base + row, best_scores, best_rows, found)
                if found == k:
                    limit = best_scores[k - 1]
    return found


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
        found = _insert(score, base + row, best_scores, best_rows, found)
    return found


@exact_jit
def _insert(score: float, row: int, best_scores: Floats, best_rows: Offsets, found: int) -> int:
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
