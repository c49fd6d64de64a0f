"""What an output says for the first input of a worst pair against the second, and the attacks made of that.

Either as one number, such as the ratio of densities, or by a table of the probabilities of all outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec._arrays import Bools, Doubles, Offsets
from veilrec.privacy.audit.attacks import Attack, Coordinates, Draw, Scores
from veilrec.privacy.mechanisms.base import Mechanism

MANY, SOME = 200_000, 12_000  # draws a side; of exact samplers, which are slow
_NUMBERS = 4_000_000  # noisy numbers a side, in the attacks that need the most draws
_LARGE = 5.0  # an epsilon that counts can no longer reach
_WIDE = 7  # from so many moving coordinates on, the largest loss of Laplace noise is too rare to be seen

Outputs = NDArray[Any]
Score = Callable[[Outputs], Doubles]
Strategy = Callable[[Any], tuple[Attack, ...]]
"""The attacks that a mechanism of one kind has to withstand."""


def draws_of(mechanism: Mechanism[Any, Any]) -> Draw:
    """Independent releases of either input of the worst pair."""
    pair = mechanism.worst_pair()
    return lambda side, count, source: mechanism.release_many(pair[side], count, source).value


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


def gaussian_attacks(draw: Draw, first: Doubles, second: Doubles, *, sigma: float, claim: float) -> tuple[Attack, ...]:
    """Counts, and the Gaussian trade-off, along the line between two centres; and a third opinion on large claims."""
    along = scored(draw, projection(first, second))
    draws = _NUMBERS // max(first.size, 5)
    attacks = Scores(along, draws // 4), Scores(along, draws, "gaussian")
    if claim < _LARGE:
        return attacks
    return *attacks, Scores(scored(draw, gaussian_ratio(first, second, sigma)), draws // 4, "ratio")


def laplace_attacks(draw: Draw, first: Doubles, second: Doubles, *, scale: float) -> tuple[Attack, ...]:
    """Counts of the likelihood ratio between two centres, and of each coordinate's where many move."""
    draws = _NUMBERS // max(first.size, 20)
    whole, ratios = laplace_ratio(first, second, scale), laplace_ratios(first, second, scale)
    if np.count_nonzero(first != second) < _WIDE:
        return (Scores(scored(draw, whole), draws),)
    return Scores(scored(draw, whole), draws // 4), Coordinates(scored(draw, ratios), draws)


def number_of_bits(outputs: Bools) -> Offsets:
    """Each row of bits as a number, the first bit counting most: the order of `bit_response`."""
    return np.asarray(outputs @ (1 << np.arange(outputs.shape[-1])[::-1]), np.int64)


def number_of_set(categories: int, size: int) -> Callable[[Bools], Offsets]:
    """The place of each set, given as bits, in the order of `subset_selection`."""
    weights = 1 << np.arange(categories)
    places = np.full(2**categories, -1, np.int64)
    for place, chosen in enumerate(combinations(range(categories), size)):
        places[weights[list(chosen)].sum()] = place
    return lambda outputs: places[outputs @ weights]


def k_ary_response(categories: int, epsilon: float, *, value: int) -> Doubles:
    """Every category keeps itself with e^eps / (e^eps + C - 1), and becomes each other with 1 / (e^eps + C - 1)."""
    table = np.full(categories, 1.0)
    table[value] = math.exp(epsilon)
    return np.asarray(table / table.sum())


def bit_response(bits: tuple[int, ...], epsilon_per_bit: float) -> Doubles:
    """All 2^m outputs of randomised response on m bits, in binary order."""
    keep = 1.0 / (1.0 + math.exp(-epsilon_per_bit))
    table = np.ones(1)
    for bit in bits:
        table = np.outer(table, (1.0 - keep, keep) if bit else (keep, 1.0 - keep)).ravel()
    return table


def subset_selection(categories: int, width: int, epsilon: float, *, value: int) -> Doubles:
    """All sets of `width` categories, in the order of itertools: e^eps to 1 for those that hold the value."""
    table = np.array(
        [math.exp(epsilon) if value in chosen else 1.0 for chosen in combinations(range(categories), width)]
    )
    return np.asarray(table / table.sum())


def label_permutation(candidates: int, negatives: int, beta: float, *, click: int) -> Doubles:
    """DPL (PrivateRec): the click and k uniform others are shown as a set, and one of them is named as the click.

    Outputs (S, y) in the order of itertools: sets of k + 1, then members.
    """
    sets = 1.0 / math.comb(candidates - 1, negatives)
    top = math.exp(beta)
    return np.array(
        [
            (sets * (top if y == click else 1.0) / (top + negatives)) if click in shown else 0.0
            for shown, y in _shown(candidates, negatives)
        ]
    )


def response_first(candidates: int, negatives: int, epsilon: float, *, click: int) -> Doubles:
    """The sound order: k-ary response names y first, then k others are drawn around it."""
    named = k_ary_response(candidates, epsilon, value=click)
    sets = 1.0 / math.comb(candidates - 1, negatives)
    return np.array([sets * named[y] for _, y in _shown(candidates, negatives)])


def _shown(candidates: int, negatives: int) -> list[tuple[tuple[int, ...], int]]:
    return [
        (shown, y)
        for shown, place in product(combinations(range(candidates), negatives + 1), range(negatives + 1))
        for y in (shown[place],)
    ]
