"""Noise made of random words: fast on a lattice for vectors of any size, and exact on the integers.

The lattice samplers return rounded Gaussian or Laplace draws of standard deviation (scale) `UNITS` lattice
units. Such an integer is the rounding of an ideal real draw, so adding it to an integer that a device holds
gives the rounding of "integer + ideal noise", which is post-processing of the ideal mechanism. What separates
our draws from ideal ones is bounded, not hoped for: each probability is off by a factor of at most 1 +
RELATIVE_ERROR (64-bit comparisons with an exponential that is right to a few units in the last place), and
the Gaussian loses TAIL_ERROR of its mass.

Box-Muller with 53-bit uniforms, the usual recipe, has no such bound: in the tail its radii lie further apart
than the lattice, and a pair of draws differs from a Gaussian pair by about 1e-11 in total variation
(tests/privacy/test_samplers.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilrec._arrays import Doubles, Floats, Offsets
from veilrec._jit import jit
from veilrec.errors import BadInput
from veilrec.privacy.randomness import Source

UNITS = 2**20  # lattice units per standard deviation (Gaussian) or scale (Laplace)
RELATIVE_ERROR = 2.0**-48  # per coordinate
TAIL_ERROR = 1e-17  # per coordinate; Gaussian only: the Laplace sampler has no end
_CHUNK = 1 << 15  # draws at a time, so that the words stay in the cache
_LARGEST = 2.0**62  # in lattice units

_Words = NDArray[np.uint64]


def _cumulative(weights: list[float]) -> _Words:
    """Thresholds t_k with P[word < t_k] = P[whole part <= k], for 64-bit words."""
    exact = [Fraction(weight) for weight in weights]
    total, running, thresholds = sum(exact), Fraction(0), []
    for weight in exact:
        running += weight
        thresholds.append(min(int(running / total * 2**64), 2**64 - 1))
    return np.array(thresholds, np.uint64)


# Whole part k of |z| (Karney 2016): P[k] is proportional to exp(-k^2 / 2); beyond 10 lies 2e-23 of the mass.
_GAUSSIAN_WHOLE = _cumulative([math.exp(-0.5 * k * k) for k in range(10)])
# For Laplace P[k] is proportional to exp(-k), without memory: the last entry means "4 more, and draw again".
_LAPLACE_WHOLE = _cumulative([*(math.exp(-k) * -math.expm1(-1.0) for k in range(4)), math.exp(-4.0)])


@jit
def _round_with_sign(whole: int, fraction: np.uint64) -> Any:
    # |z| = whole + (fraction >> 1) / 2^63, rounded to 2^20 units per whole; the lowest bit is the sign.
    half_units = (whole << 21) + np.int64(fraction >> np.uint64(43))
    rounded = (half_units + 1) >> 1
    return -rounded if fraction & np.uint64(1) else rounded


@jit
def _accept(probability: float, word: np.uint64) -> Any:
    return probability >= 1.0 or word < np.uint64(probability * 18446744073709551616.0)  # 2^64


@jit
def _fill_gaussian(words: _Words, thresholds: _Words, out: Offsets, carry: Offsets) -> int:
    filled = 0
    for at in range(0, len(words) - 2, 3):
        whole = 0
        while whole < 9 and words[at] >= thresholds[whole]:
            whole += 1
        part = float(words[at + 1] >> np.uint64(1)) * 1.0842021724855044e-19  # 2^-63
        if _accept(math.exp(-0.5 * part * (2.0 * whole + part)), words[at + 2]):
            out[filled] = _round_with_sign(whole, words[at + 1])
            filled += 1
            if filled == len(out):
                break
    return filled


@jit
def _fill_laplace(words: _Words, thresholds: _Words, out: Offsets, carry: Offsets) -> int:
    filled, more = 0, carry[0]
    for at in range(0, len(words) - 2, 3):
        whole = 0
        while whole < 4 and words[at] >= thresholds[whole]:
            whole += 1
        if whole == 4:
            more += 4
            continue
        part = float(words[at + 1] >> np.uint64(1)) * 1.0842021724855044e-19
        if _accept(math.exp(-part), words[at + 2]):
            out[filled] = _round_with_sign(more + whole, words[at + 1])
            filled += 1
        more = 0  # a refused draw starts again from nothing
        if filled == len(out):
            break
    carry[0] = more
    return filled


def _draw(fill: Callable[..., int], thresholds: _Words, source: Source, count: int) -> Offsets:
    out, carry = np.empty(count, np.int64), np.zeros(1, np.int64)
    done = 0
    while done < count:
        wanted = min(count - done, _CHUNK)
        words = source.words(3 * (wanted + wanted // 2 + 8))  # 72 (Gaussian) or 62 of 100 proposals are accepted
        done += fill(words, thresholds, out[done : done + wanted], carry)
    return out


def lattice_gaussian(source: Source, count: int) -> Offsets:
    """Independent draws of N(0, UNITS^2), rounded to integers."""
    return _draw(_fill_gaussian, _GAUSSIAN_WHOLE, source, count)


def lattice_laplace(source: Source, count: int) -> Offsets:
    """Independent Laplace draws of scale UNITS, rounded to integers."""
    return _draw(_fill_laplace, _LAPLACE_WHOLE, source, count)


def to_lattice(value: Doubles, grid: float) -> Offsets:
    """In lattice units, cut towards zero: no norm grows, and two values part by less than a unit more."""
    units = np.trunc(np.asarray(value, np.float64) / grid)
    if units.size and not np.abs(units).max() < _LARGEST:
        raise BadInput(
            f"the value is more than {_LARGEST * grid:g} from 0, too far for noise of scale {UNITS * grid:g}"
        )
    return units.astype(np.int64)


def add_gaussian(value: Doubles, *, sigma: float, source: Source) -> Doubles:
    """The value plus Gaussian noise on the lattice of step sigma / UNITS, whatever the value's own digits."""
    grid = sigma / UNITS
    noisy = to_lattice(value, grid) + lattice_gaussian(source, value.size).reshape(value.shape)
    return noisy.astype(np.float64) * grid


def add_laplace(value: Doubles, *, scale: float, source: Source) -> Doubles:
    """The value plus Laplace noise on the lattice of step scale / UNITS."""
    grid = scale / UNITS
    noisy = to_lattice(value, grid) + lattice_laplace(source, value.size).reshape(value.shape)
    return noisy.astype(np.float64) * grid


def simulated_gaussian(generator: np.random.Generator, shape: tuple[int, ...], *, sigma: float) -> Floats:
    """For simulations only: fast seeded noise that protects nobody."""
    return generator.standard_normal(shape, np.float32) * np.float32(sigma)


def simulated_laplace(generator: np.random.Generator, shape: tuple[int, ...], *, scale: float) -> Floats:
    """For simulations only: the same for Laplace noise, as exponential draws with a random sign."""
    draws = generator.standard_exponential(shape, np.float32)
    words = generator.integers(0, 2**32, shape, np.uint32)
    draws.view(np.uint32)[...] ^= words & np.uint32(2**31)  # the sign bit
    draws *= np.float32(scale)
    return draws


def simulated_laplace_sum(
    generator: np.random.Generator, shape: tuple[int, ...], *, scale: float, devices: int | Offsets
) -> Doubles:
    """For simulations only: sums of `devices` Laplace draws, each as a difference of two Gamma draws.

    `devices` may differ from entry to entry, for instance `[rows, 1]` where a row was sent by some of the cohort.
    """
    return scale * (generator.standard_gamma(devices, shape) - generator.standard_gamma(devices, shape))


class _Integers:
    """Uniform integers from a source, by rejection; words are fetched in small batches."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._words: list[int] = []

    def word(self) -> int:
        if not self._words:
            self._words = self._source.words(32).tolist()
        return self._words.pop()

    def below(self, bound: int) -> int:
        bits = (bound - 1).bit_length()
        while True:
            value = 0
            for _ in range((bits + 63) // 64):
                value = value << 64 | self.word()
            value >>= -bits % 64
            if value < bound:
                return value


def _bernoulli_exp_small(integers: _Integers, numerator: int, denominator: int) -> bool:
    # True with probability exp(-numerator / denominator) <= 1 (CKS, Algorithm 1).
    count = 1
    while integers.below(denominator * count) < numerator:
        count += 1
    return count % 2 == 1


def _bernoulli_exp(integers: _Integers, numerator: int, denominator: int) -> bool:
    while numerator > denominator:
        if not _bernoulli_exp_small(integers, 1, 1):
            return False
        numerator -= denominator
    return _bernoulli_exp_small(integers, numerator, denominator)


def _one_discrete_laplace(integers: _Integers, numerator: int, denominator: int) -> int:
    # P[x] proportional to exp(-|x| denominator / numerator), scale numerator / denominator (CKS, Algorithm
    # 2).
    while True:
        low = integers.below(numerator)
        if not _bernoulli_exp_small(integers, low, numerator):
            continue
        high = 0
        while _bernoulli_exp_small(integers, 1, 1):
            high += 1
        size = (low + numerator * high) // denominator
        negative = integers.below(2)
        if size or not negative:
            return -size if negative else size


def _one_discrete_gaussian(integers: _Integers, variance: Fraction, scale: int) -> int:
    # Rejection from a discrete Laplace of integer scale (CKS, Algorithm 3), everything a ratio of integers.
    top, bottom = variance.numerator, variance.denominator
    while True:
        draw = _one_discrete_laplace(integers, scale, 1)
        # (|draw| - variance / scale)^2 / (2 variance)
        gap = abs(draw) * scale * bottom - top
        if _bernoulli_exp(integers, gap * gap, 2 * top * bottom * scale * scale):
            return draw


def discrete_laplace(source: Source, count: int, *, scale: Fraction) -> Offsets:
    """Exact draws of the discrete Laplace, P[x] ~ exp(-|x| / scale) (Canonne, Kamath and Steinke 2020)."""
    integers = _Integers(source)
    draws = [_one_discrete_laplace(integers, scale.numerator, scale.denominator) for _ in range(count)]
    return np.array(draws, np.int64)


def discrete_gaussian(source: Source, count: int, *, variance: Fraction) -> Offsets:
    """Exact draws of the discrete Gaussian, P[x] ~ exp(-x^2 / (2 variance)) (same paper)."""
    integers = _Integers(source)
    scale = math.isqrt(variance.numerator // variance.denominator) + 1
    return np.array([_one_discrete_gaussian(integers, variance, scale) for _ in range(count)], np.int64)
