"""What a query may ask for beside its weights, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veilrec._arrays import Floats
from veilrec.errors import BadInput

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
