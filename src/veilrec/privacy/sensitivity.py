"""How far one person, or one click, can move what is released, before noise.

All of these are diameters or distances of bounded sets, so they hold whatever model made the vector.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from veilrec.errors import BadInput, unknown_name
from veilrec.privacy.checks import positive, whole
from veilrec.privacy.guarantee import Adjacency

BitChange = Literal["one bit", "swap", "set", "vector"]
"""What two bit vectors may differ by: one bit; one item for another; sets of at most s items; everything."""


def attention_l2(clip_norm: float) -> float:
    """L2 diameter of attention vectors (on the simplex) clipped to `clip_norm`: two vertices attain it."""
    positive(clip_norm=clip_norm)
    return math.sqrt(2.0) * min(clip_norm, 1.0)


def attention_l1(clip_norm: float, basis: int) -> float:
    """L1 diameter of the same set: uniform vectors on complementary halves of the coordinates attain it."""
    positive(clip_norm=clip_norm)
    whole(basis=basis)
    half = basis // 2
    return min(1.0, clip_norm * math.sqrt(half)) + min(1.0, clip_norm * math.sqrt(basis - half))


def clipped_l2(clip_norm: float, adjacency: Adjacency) -> float:
    """L2 distance of two vectors (or of a vector and nothing) of L2 norm at most `clip_norm`."""
    positive(clip_norm=clip_norm)
    return 2.0 * clip_norm if adjacency == "replace-one" else clip_norm


def clipped_l1(clip_norm: float, dimension: int, adjacency: Adjacency) -> float:
    """L1 distance of vectors clipped in L2: sqrt(dimension) times larger, attained by flat vectors."""
    whole(dimension=dimension)
    return clipped_l2(clip_norm, adjacency) * math.sqrt(dimension)


def pooled_l2(clip_norm: float, slots: int, adjacency: Adjacency) -> float:
    """One click's share in (1 / slots) * sum of vectors of norm at most `clip_norm`; an absent click is 0."""
    whole(slots=slots)
    return clipped_l2(clip_norm, adjacency) / slots


def rounded_sum_l2(sensitivity: float, devices: int) -> float:
    """L2 sensitivity of an exact sum of up to so many clipped vectors, once it is a number in steps of the noise.

    The sum itself is one of whole numbers (`veilrec.lattice`) and has no error. Turning it into double precision, and
    dividing it by the step of the noise, errs by 2^-53 each, relative to numbers whose L2 norm is at most n clip norms;
    so does either of two neighbouring sums: together less than 2^-50 n clip norms.
    """
    whole(devices=devices)
    return sensitivity * (1.0 + 2.0**-50 * devices)


def changed_bits(change: BitChange, *, length: int, items: int = 1) -> int:
    """How many bits of a vector of `length` may differ; `items` is the bound s on the size of a set."""
    if change not in get_args(BitChange):
        raise unknown_name("change of bits", change, get_args(BitChange))
    whole(length=length, items=items)
    changed = {"one bit": 1, "swap": 2, "set": 2 * items, "vector": length}[change]
    if changed > length and change != "set":
        raise BadInput(f"length is {length}: two vectors that differ by a {change} have at least {changed} bits")
    return min(changed, length)


def on_lattice_l2(sensitivity: float, dimension: int, grid: float) -> float:
    """L2 sensitivity once coordinates are cut to multiples of `grid`, if only the distance is known."""
    return sensitivity + math.sqrt(dimension) * grid


def on_lattice_l1(sensitivity: float, dimension: int, grid: float) -> float:
    """The same for L1."""
    return sensitivity + dimension * grid
