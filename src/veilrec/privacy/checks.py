"""All checks of arguments that decide somebody's privacy; each error is one line that names the argument.

How far one person, or one click, can move what is released, before noise.

All of these are diameters or distances of bounded sets, so they hold whatever model made the vector.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from veilrec.core.arrays import Bools, Doubles, Offsets
from veilrec.core.errors import BadInput, counted, unknown_name
from veilrec.privacy.guarantee import Adjacency


def positive(**values: float) -> None:
    """Refuse a value that is not a finite number above 0."""
    for name, value in values.items():
        if not 0.0 < value < math.inf:
            raise BadInput(f"{name} is {value}: give a finite number above 0")


def probability(**values: float) -> None:
    """Refuse a value that does not lie strictly between 0 and 1."""
    for name, value in values.items():
        if not 0.0 < value < 1.0:
            raise BadInput(f"{name} is {value}: give a number above 0 and below 1")


def finite(**values: ArrayLike) -> None:
    """Refuse a number or an array with a NaN or an infinity in it."""
    for name, value in values.items():
        numbers: Any = np.asarray(value)
        if not np.isfinite(numbers).all():
            bad = counted(int((~np.isfinite(numbers)).sum()), "NaN or infinite value")
            raise BadInput(f"{name} has {bad}: give finite numbers")


def whole(**values: int) -> None:
    """Refuse a value that is not a whole number of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise BadInput(f"{name} is {value}: give a whole number of at least 1")


def vectors(dimension: int, **values: ArrayLike) -> Doubles:
    """One argument as finite vectors of this dimension, `[..., dimension]`; anything else is refused."""
    ((name, value),) = values.items()
    try:
        numbers = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise BadInput(f"{name} is not an array of numbers: give {dimension} per vector") from None
    if numbers.ndim == 0 or numbers.shape[-1] != dimension:
        raise BadInput(f"{name} has shape {numbers.shape}: its last dimension has to be {dimension}")
    finite(**{name: numbers})
    return numbers


def categories(count: int, **values: ArrayLike) -> Offsets:
    """One argument as category numbers from 0 to `count` - 1; anything else is refused."""
    ((name, value),) = values.items()
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iu":
        raise BadInput(f"{name} is not an array of whole numbers: give categories from 0 to {count - 1}")
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < count):
        raise BadInput(f"{name} has a category outside 0 to {count - 1}: give one of the {count} categories")
    return numbers.astype(np.int64)


def bits(length: int, **values: ArrayLike) -> Bools:
    """One argument as bit vectors of this length, `[..., length]`, given as booleans or as 0 and 1."""
    ((name, value),) = values.items()
    numbers = np.asarray(value)
    if numbers.ndim == 0 or numbers.shape[-1] != length:
        raise BadInput(f"{name} has shape {numbers.shape}: its last dimension has to be {length}")
    if numbers.dtype != np.bool_:
        if numbers.dtype.kind not in "iuf" or not ((numbers == 0) | (numbers == 1)).all():
            raise BadInput(f"{name} has values that are neither 0 nor 1: give bits")
        numbers = numbers.astype(np.bool_)
    return numbers


# What two bit vectors may differ by: one bit; one item for another; sets of at most s items; everything.
BitChange = Literal["one bit", "swap", "set", "vector"]


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


def rounded_sum_l2(sensitivity: float, clients: int) -> float:
    """L2 sensitivity of an exact sum of up to so many clipped vectors, once it is a number in steps of the noise.

    The sum itself is an integer (`veilrec.core.fixed_point`) and has no error. Turning it into double precision, and
    dividing it by the step of the noise, errs by 2^-53 each, relative to numbers whose L2 norm is at most n clip norms;
    so does either of two neighbouring sums: together less than 2^-50 n clip norms.
    """
    whole(clients=clients)
    return sensitivity * (1.0 + 2.0**-50 * clients)


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
    """L1 sensitivity once coordinates are cut to multiples of `grid`, if only the distance is known."""
    return sensitivity + dimension * grid
