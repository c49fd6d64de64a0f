"""Whether a table's nDCG can belong to its Hits, where every list has one positive.

A positive at place p counts 1 in Hits@k and 1 / log2(1 + p) in nDCG@k if p <= k. Both are means over the same lists
(or over users of means over their lists), so that what they gain from one k to the next is bounded by each other:
whatever lies between k1 and k2 has a place from k1 + 1 to k2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from typing import Literal

from veilrec.errors import BadInput

Rule = Literal["hits fall", "ndcg rises too much", "ndcg rises too little", "ndcg above hits", "ndcg too low for hits"]
_EXACT = 1e-9  # what sums of rounded decimals may be off by


@dataclass(frozen=True)
class Impossible:
    """A step from one k to the next (or one k alone) that no ranking can have."""

    rule: Rule
    k: int  # where the step ends
    before: int | None  # where it begins; None for one k alone
    found: float  # what the table has
    bound: float  # the furthest that it can be, rounding included

    def __str__(self) -> str:
        where = f"@{self.k}" if self.before is None else f"@{self.before} to @{self.k}"
        side = "least" if self.found < self.bound else "most"
        return f"{self.rule}, {where}: {self.found:.4f}, at {side} {self.bound:.4f}"


def impossible(
    hits: Mapping[int, float], ndcg: Mapping[int, float], *, digits: int, half_places: bool = False
) -> list[Impossible]:
    """Every step that cannot be, of figures by k that are printed with so many decimal digits.

    With `half_places`, ties share their places, as ours do: the first place beyond k is then k + 1/2.
    """
    if set(hits) != set(ndcg) or min(hits, default=1) < 1:
        raise BadInput(f"hits are given at k = {sorted(hits)} and nDCG at {sorted(ndcg)}: give both at the same k >= 1")
    half = 0.5 * 10.0**-digits + _EXACT  # a printed figure lies so far from the true one, at most
    nearest = 0.5 if half_places else 1.0
    found = []
    for k in sorted(hits):
        found += _between(
            ndcg[k],
            ("ndcg too low for hits", (hits[k] - half) / log2(k + 1) - half),
            ("ndcg above hits", hits[k] + 2 * half),
            k,
        )
    for before, k in pairwise(sorted(hits)):
        more_hits, more_ndcg = hits[k] - hits[before], ndcg[k] - ndcg[before]
        if more_hits < -2 * half:
            found.append(Impossible("hits fall", k, before, more_hits, -2 * half))
        found += _between(
            more_ndcg,
            ("ndcg rises too little", (more_hits - 2 * half) / log2(k + 1) - 2 * half),
            ("ndcg rises too much", (more_hits + 2 * half) / log2(before + nearest + 1) + 2 * half),
            k,
            before,
        )
    return found


def _between(
    value: float, low: tuple[Rule, float], high: tuple[Rule, float], k: int, before: int | None = None
) -> list[Impossible]:
    """What is wrong with a value that has to lie between two bounds."""
    if value < low[1]:
        return [Impossible(low[0], k, before, value, low[1])]
    return [Impossible(high[0], k, before, value, high[1])] if value > high[1] else []
