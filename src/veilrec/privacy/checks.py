"""All checks of arguments that decide somebody's privacy; each error is one line that names the argument."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from veilrec._arrays import Bools, Doubles, Offsets
from veilrec._words import counted
from veilrec.errors import BadInput


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
