"""Inverting functions that only rise or only fall, always from the safe side."""

from __future__ import annotations

from collections.abc import Callable


def smallest(suffices: Callable[[float], bool], *, relative_tolerance: float = 1e-15) -> float:
    """The smallest positive number that suffices, if every larger one does; the answer itself suffices."""
    high = 1.0
    while not suffices(high):
        high *= 2.0
        if high > 1e300:
            raise ValueError("no finite number suffices")
    low = high / 2.0
    while low > 1e-300 and suffices(low):
        low, high = low / 2.0, low
    while high - low > relative_tolerance * high and low < (middle := 0.5 * (low + high)) < high:
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high
