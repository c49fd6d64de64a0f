"""Scores for each interest alone, in blocks of like items, with the largest sums of every block: the index itself.

A bound of a block's scores. Sort the weights, the largest first: a1 >= a2 >= ... >= 0. An item with the values p1, p2,
... in the same order has the score

    (a1 - a2) p1 + (a2 - a3) (p1 + p2) + (a3 - a4) (p1 + p2 + p3) + ...

No factor in front is negative, so that with the largest p1, the largest p1 + p2, and so on of a whole block in their
places, the sum is at least the score of every item in it. A block keeps the largest sum of every set of interests (31
for 5 interests); a query looks at one per interest. With the largest of each interest alone the bound would hold as
well, and be looser: what is best for one interest is seldom best for the next.

Why it is exact: see `_margin` below. Above `MAX_SETS` interests a block keeps the largest of each alone.

Which items share a block: those that a kd-tree puts into one leaf.

What a query may ask for beside its weights, and what is refused.

The search itself, compiled: bound, visit the best, then whatever may still hold something better.

Everything is rounded as written (`exact_jit`), or the margin would not hold.

What the right answer is, in numpy: the definition that every faster way is tested against.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veilrec.core.arrays import Bools, Bytes, Doubles, Floats, Indices, Offsets
from veilrec.core.errors import BadInput
from veilrec.core.jit import exact_jit


def kd_order(values: Floats, width: int, group: int) -> Indices:
    """Items, [n, B], in an order in which every `width` of them, and every `group` of those, are like each other.

    Halves are split where the values are spread most, at the borders of groups, then of blocks, so that all are full.
    """
    order = np.arange(len(values), dtype=np.int32)
    stack = [(0, len(values))] if values.shape[1] else []
    while stack:
        begin, end = stack.pop()
        size = width * group if end - begin > width * group else width
        if end - begin <= size:
            continue
        rows = order[begin:end]
        inside = values[rows]
        column = inside[:, np.argmax(inside.var(axis=0))]
        half = size * ((-(-(end - begin) // size)) // 2)
        order[begin:end] = rows[np.argpartition(column, half)]
        stack += [(begin, begin + half), (begin + half, end)]
    return order


WIDTH = 128  # items of a block
MAX_SETS = 8  # interests whose sets are kept, 255 of them
GROUP = 16  # blocks of a group
NO_ROW = np.iinfo(np.int32).max  # what fills the last block
Codes = NDArray[np.int16]
Bits = NDArray[np.uint64]


@dataclass(frozen=True)
class ItemLabels:
    """A code per item, such as its category, and where each is to be found; -1: none."""

    codes: Codes  # [places], in the order of the blocks
    present: Bits  # [blocks]: bit (code mod 64) of every code in the block
    offsets: Offsets  # [codes + 1] into `places`; empty where items are added one by one
    places: Indices  # sorted by code

    @classmethod
    def of(cls, codes: Codes) -> ItemLabels:
        """Index codes that are in the order of the blocks."""
        n_codes = int(codes.max(initial=-1)) + 1
        by_code = np.argsort(codes, kind="stable").astype(np.int32)
        offsets = np.searchsorted(codes[by_code], np.arange(n_codes + 1)).astype(np.int64)
        return cls(codes, _present(codes), offsets, by_code)

    @classmethod
    def empty(cls, places: int) -> ItemLabels:
        """Room for items that come one by one."""
        blocks = places // WIDTH
        none = np.zeros(0, np.int64)
        return cls(np.full(places, -1, np.int16), np.zeros(blocks, np.uint64), none, none.astype(np.int32))

    def count(self, codes: tuple[int, ...]) -> int:
        """How many places have one of these codes."""
        known = [code for code in set(codes) if 0 <= code < len(self.offsets) - 1]
        return sum(int(self.offsets[code + 1] - self.offsets[code]) for code in known)

    def places_of(self, codes: tuple[int, ...]) -> Indices:
        """All places with one of these codes."""
        known = [code for code in sorted(set(codes)) if 0 <= code < len(self.offsets) - 1]
        parts = [self.places[self.offsets[code] : self.offsets[code + 1]] for code in known]
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def _present(codes: Codes) -> Bits:
    bits = np.where(codes < 0, 0, np.uint64(1) << (codes.astype(np.int64) & 63).astype(np.uint64))
    found: Bits = np.bitwise_or.reduce(bits.reshape(-1, WIDTH).astype(np.uint64), axis=1)
    return found


@dataclass(frozen=True)
class Blocks:
    """Items in the order of a kd-tree, which keeps like ones together; nothing of it changes once it is built."""

    values: Floats  # [blocks, B, WIDTH]
    maxima: Floats  # [groups, sets, GROUP]: the largest sums of each block; -inf where a group has no more blocks
    group_maxima: Floats  # [sets, groups]
    rows: Indices  # [places]: the item in each place; NO_ROW in the rest of the last block
    places: Indices  # [items]: where each is
    category: ItemLabels | None
    region: ItemLabels | None

    @property
    def interests(self) -> int:
        """B."""
        return int(self.values.shape[1])

    def values_of(self, rows: Offsets) -> Floats:
        """[items, B] of these rows."""
        places = self.places[rows]
        found: Floats = self.values[places // WIDTH, :, places % WIDTH]
        return found

    @classmethod
    def of(cls, values: Floats, category: Codes | None = None, region: Codes | None = None) -> Blocks:
        """From [items, B]; codes are int16, one per item."""
        n_items, width = values.shape
        order = kd_order(values, WIDTH, GROUP)
        blocks = -(-n_items // WIDTH)
        rows = np.full(blocks * WIDTH, NO_ROW, np.int32)
        rows[:n_items] = order
        filled = np.concatenate([order, np.repeat(order[-1:], blocks * WIDTH - n_items)])
        inside = np.empty((blocks, width, WIDTH), np.float32)
        for b in range(width):
            inside[:, b, :] = values[filled, b].reshape(blocks, WIDTH)
        places = np.empty(n_items, np.int32)
        places[order] = np.arange(n_items, dtype=np.int32)
        maxima, group_maxima = maxima_of(inside)
        return cls(inside, maxima, group_maxima, rows, places, _labels(category, filled), _labels(region, filled))


def _labels(codes: Codes | None, order: Indices) -> ItemLabels | None:
    return None if codes is None or not len(codes) or codes.max() < 0 else ItemLabels.of(codes[order])


def sets_of(interests: int) -> Doubles:
    """Which interests are in which set: [sets, B], of ones and zeros; bit b of a set's number and 1 says that b is."""
    if interests > MAX_SETS:
        return np.eye(interests)
    numbers = np.arange(1, 1 << interests)
    return (numbers[:, np.newaxis] >> np.arange(interests) & 1).astype(np.float64)


def maxima_of(values: Floats) -> tuple[Floats, Floats]:
    """The largest sums of each block and of each group of blocks: [groups, sets, GROUP] and [sets, groups]."""
    blocks, interests = values.shape[:2]
    sets = sets_of(interests)
    groups = -(-blocks // GROUP)
    largest = np.full((groups * GROUP, len(sets)), -np.inf, np.float32)
    for begin in range(0, blocks, GROUP):
        end = min(begin + GROUP, blocks)
        sums = np.matmul(sets, values[begin:end].astype(np.float64))  # [GROUP, sets, WIDTH]
        largest[begin:end] = sums.max(axis=2)
    by_group = largest.reshape(groups, GROUP, len(sets))
    maxima = np.ascontiguousarray(by_group.transpose(0, 2, 1))
    group_maxima = by_group.max(axis=1).T if groups else np.zeros((len(sets), 0), np.float32)
    return maxima, np.ascontiguousarray(group_maxima)


LARGEST = float(np.finfo(np.float32).max) / 4  # of a score, whatever is added up on the way
LARGEST_CODE = 32_766  # of a category or region


@dataclass(frozen=True)
class Filter:
    """Which items are wanted; an item without a category or region is in none."""

    categories: tuple[int, ...] = ()  # codes; none given: any
    region: int = -1  # a code; -1: any

    def __post_init__(self) -> None:
        checked_code("region", self.region)
        for code in self.categories:
            if checked_code("category", code) < 0:
                raise BadInput("a category of -1 is none: leave categories empty for any")


def checked_code(kind: str, code: int) -> int:
    """A code of a category or region; -1: none."""
    if not -1 <= code <= LARGEST_CODE:
        raise BadInput(f"{kind} is {code}: codes are 0 to {LARGEST_CODE}, or -1 for none")
    return code


def checked_count(k: int) -> int:
    """How many items are wanted: 1 or more."""
    if k < 1:
        raise BadInput(f"k is {k}: ask for 1 item or more")
    return k


def checked_weights(weights: Floats, interests: int, largest: float) -> Floats:
    """Weights of interests as float32: finite, not negative, one per interest, and no score out of range."""
    told = np.ascontiguousarray(weights, np.float32)
    if told.shape != (interests,):
        raise BadInput(f"weights have the shape {told.shape}: give {interests} numbers, one per interest")
    if not np.isfinite(told).all() or (told < 0).any():
        raise BadInput("weights must be finite and not negative: bounds of blocks hold for no others")
    if float(told.sum(dtype=np.float64)) * largest > LARGEST:
        raise BadInput("weights are too large for float32 scores: scale them to a sum of 1")
    return told


def checked_vector(vector: Floats, dim: int) -> Floats:
    """A vector as float32: finite, of the right length."""
    told = np.ascontiguousarray(vector, np.float32)
    if told.shape != (dim,):
        raise BadInput(f"the vector has the shape {told.shape}: give {dim} numbers")
    if not np.isfinite(told).all():
        raise BadInput("the vector has numbers that are not finite: give finite ones")
    return told


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
    """Search the items of some places, one after another."""
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
