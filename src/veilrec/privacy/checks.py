"""All checks of arguments that decide somebody's privacy; each error is one line that names the argument."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

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
            raise BadInput(f"{name} has {int((~np.isfinite(numbers)).sum())} values that are NaN or infinite")
