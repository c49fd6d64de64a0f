"""What an output says for the first input of a worst pair against the second, as one number."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec._arrays import Bools, Doubles, Offsets
from veilrec.privacy.audit.batches import Draw

Outputs = NDArray[Any]
Score = Callable[[Outputs], Doubles]


def scored(draw: Draw, score: Callable[[Any], Any]) -> Draw:
    """Draws, each as one number."""
    return lambda side, count, source: score(draw(side, count, source))


def projection(first: Outputs, second: Outputs) -> Score:
    """Along the line from one input to the other: all that Gaussian noise leaves to see."""
    direction = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    unit = direction / np.linalg.norm(direction)
    return lambda outputs: np.asarray(outputs @ unit)


def gaussian_ratio(first: Doubles, second: Doubles, sigma: float) -> Score:
    """ln of the ratio of densities: (|y - second|^2 - |y - first|^2) / (2 sigma^2)."""
    slope = (first - second) / sigma**2
    middle = (first + second) / 2
    return lambda outputs: np.asarray((outputs - middle) @ slope)


def laplace_ratios(first: Doubles, second: Doubles, scale: float) -> Score:
    """ln of the ratio of densities of each moving coordinate: (|y - second| - |y - first|) / scale.

    Many outputs have the same ratio. It is rounded, so that they also have the same number.
    """
    moves = first != second

    def score(outputs: Outputs) -> Doubles:
        kept = outputs.reshape(-1, *first.shape)[:, moves]
        return np.asarray(np.round((np.abs(kept - second[moves]) - np.abs(kept - first[moves])) / scale, 9))

    return score


def laplace_ratio(first: Doubles, second: Doubles, scale: float) -> Score:
    """The sum over the coordinates: the ratio of the densities of whole outputs."""
    ratios = laplace_ratios(first, second, scale)
    return lambda outputs: np.asarray(np.round(ratios(outputs).sum(axis=1), 7))


def padded_ratio(
    first: Doubles, second: Doubles, pad: Doubles, *, pad_probability: float, log_density: Callable[[Outputs], Doubles]
) -> Score:
    """ln of (p f(y - pad) + (1 - p) f(y - first)) / (p f(y - pad) + (1 - p) f(y - second))."""

    def score(outputs: Outputs) -> Doubles:
        to_pad, to_first, to_second = (log_density(outputs - centre) for centre in (pad, first, second))
        absent, present = np.log(pad_probability), np.log1p(-pad_probability)
        under_first = np.logaddexp(absent + to_pad, present + to_first)
        under_second = np.logaddexp(absent + to_pad, present + to_second)
        return np.asarray(np.round(under_first - under_second, 9))

    return score


def bit_ratio(first: Bools, second: Bools, *, one_if_one: float, one_if_zero: float) -> Score:
    """ln of the ratio of probabilities over independent bits, given P[1 | 1] and P[1 | 0]."""
    under_first = np.where(first, one_if_one, one_if_zero)
    under_second = np.where(second, one_if_one, one_if_zero)
    if_one = np.log(under_first / under_second)
    if_zero = np.log((1.0 - under_first) / (1.0 - under_second))
    return lambda outputs: np.round(outputs @ if_one + ~outputs @ if_zero, 9)


def number_of_bits(outputs: Bools) -> Offsets:
    """Each row of bits as a number, the first bit counting most: the order of `enumeration.bit_response`."""
    return np.asarray(outputs @ (1 << np.arange(outputs.shape[-1])[::-1]), np.int64)


def number_of_set(categories: int, size: int) -> Callable[[Bools], Offsets]:
    """The place of each set, given as bits, in the order of `enumeration.subset_selection`."""
    weights = 1 << np.arange(categories)
    places = np.full(2**categories, -1, np.int64)
    for place, chosen in enumerate(combinations(range(categories), size)):
        places[weights[list(chosen)].sum()] = place
    return lambda outputs: places[outputs @ weights]
