"""Noise made of random words, on a lattice, for vectors of any size.

The lattice samplers return rounded Gaussian or Laplace draws of standard deviation (scale) `UNITS` lattice
units. Such an integer is the rounding of an ideal real draw, so adding it to an integer that a client holds
gives the rounding of "integer + ideal noise", which is post-processing of the ideal mechanism. What separates
our draws from ideal ones is bounded, not hoped for: each probability is off by a factor between e^-r and e^r,
r = RELATIVE_ERROR, without exception. There is no end to the tail, and nothing to be added to delta.

A magnitude z = k + x is proposed (Karney 2016): its whole part k with probability proportional to e^(-k^2 / 2)
(Laplace: e^-k), its fraction x uniform, and accepted with probability e^(-x (2 k + x) / 2) (Laplace: e^-x).
- k is exact: 64 bits of a uniform number decide it unless they are the first 64 bits of a threshold itself;
  then, and for every k from _FAR on, further words are drawn and everything is decided with them.
- For k < _FAR the probability of acceptance is a double. With u = 2^-53: x is rounded, 2 k + x as well, and their
  product, so the exponent, at most 5.5, is off by less than 17.1 u; exp is right to a unit in the last place, 2 u;
  the comparison cuts to a multiple of 2^-64, less than u; x stands for all numbers up to 2^-63 larger, less than u.
  So the weight of a number is off by less than 22 u, and the sum of all weights, which is mostly that of k = 0 and
  1, by less than 9 u: together less than 32 u = 2^-48.

At other scales than UNITS (`Scale`) a cell of 2^-63 of z may hold a rounding boundary: then, less often than one time
in 2^30, the draw is decided with further words, exactly.

What a total variation t per coordinate would do instead, for instance a tail that ends: d coordinates turn
(epsilon, delta) into (epsilon, delta + d t (1 + e^epsilon)), which at epsilon 40 is far more than d t.

Box-Muller with 53-bit uniforms, the usual recipe, has no such bound: in the tail its radii lie further apart
than the lattice, and a pair of draws differs from a Gaussian pair by about 1e-11 in total variation
(tests/privacy/test_samplers.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from veilrec.core.arrays import Doubles, Floats, Offsets
from veilrec.core.errors import BadInput
from veilrec.core.jit import exact_jit
from veilrec.privacy.checks import positive
from veilrec.privacy.randomness import Source

UNITS = 2**20  # lattice units per standard deviation (Gaussian) or scale (Laplace)
RELATIVE_ERROR = 2.0**-48  # of every probability, per coordinate
_FAR = 6  # whole parts from which on a Gaussian proposal is decided exactly; one in 10^8
_STRIDE = 4  # whole parts of a Laplace draw in one table of thresholds
_FACTOR_BITS = 12  # of a scale that is no power of 2
_CHUNK = 1 << 15  # draws at a time, so that the words stay in the cache
_LARGEST = 2.0**62  # in lattice units

Law = Literal["gaussian", "laplace"]
_Words = NDArray[np.uint64]
_Interval = tuple[Fraction, Fraction]


class _Integers:
    """Further words of a source, fetched in small batches."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._words: list[int] = []

    def word(self) -> int:
        if not self._words:
            self._words = self._source.words(32).tolist()
        return self._words.pop()


class _Uniform:
    """A uniform number in [0, 1) of which the first bits are known, and more when they are needed."""

    def __init__(self, integers: _Integers, known: int, bits: int) -> None:
        self._integers, self._known, self.bits = integers, known, bits

    @property
    def interval(self) -> _Interval:
        return Fraction(self._known, 2**self.bits), Fraction(self._known + 1, 2**self.bits)

    def extend(self) -> None:
        self._known, self.bits = self._known << 64 | self._integers.word(), self.bits + 64


def _exp_minus(exponent: Fraction, bits: int) -> _Interval:
    """Bounds of e^-exponent, closer together than 2^-bits."""
    digits = bits // 3 + 12
    context = Context(prec=digits)
    value = Fraction(context.exp(context.divide(Decimal(-exponent.numerator), Decimal(exponent.denominator))))
    error = (1 + exponent) * Fraction(10) ** (1 - digits)
    return value - error, value + error


def _gaussian_cumulative(bits: int) -> list[_Interval]:
    """Bounds of P[whole part <= k] for k = 0, 1, ... as far as so many bits reach."""
    last = math.isqrt(2 * bits) + 2  # what lies beyond is less than e^-bits, and bits are 64 or more
    weights = [_exp_minus(Fraction(k * k, 2), bits + 8) for k in range(last + 1)]
    beyond = Fraction(1, 2 ** (bits + 8))
    most, least = sum(high for _, high in weights) + beyond, sum(low for low, _ in weights)
    bounds, low, high = [], Fraction(0), Fraction(0)
    for weight in weights:
        low, high = low + weight[0], high + weight[1]
        bounds.append((low / most, min(high / least, Fraction(1))))
    return bounds


def _laplace_cumulative(bits: int) -> list[_Interval]:
    """Bounds of P[whole part <= k] for k from 0 to 3, and 1 beyond: no memory, so "4 more, and draw again"."""
    tails = [_exp_minus(Fraction(k), bits) for k in range(1, _STRIDE + 1)]
    return [*((1 - high, 1 - low) for low, high in tails), (Fraction(1), Fraction(1))]


def _first_words(bounds: list[_Interval]) -> _Words:
    """The first 64 bits of each threshold: a smaller word lies below it, a larger one above."""
    words = [math.floor(low * 2**64) for low, _ in bounds]
    if words != [math.floor(high * 2**64) for _, high in bounds]:
        raise ArithmeticError("a threshold is too close to a multiple of 2^-64")
    return np.array(words, np.uint64)


_GAUSSIAN_WHOLE = _first_words(_gaussian_cumulative(128)[:_FAR])
_LAPLACE_WHOLE = _first_words(_laplace_cumulative(128)[:_STRIDE])


@exact_jit
def _rounded(whole: int, fraction: np.uint64, factor: int, shift: int) -> tuple[Any, Any]:
    # |z| = whole + (fraction >> 1) / 2^63, or up to 2^-63 more; factor 2^(31 - shift) units per whole; the lowest bit
    # is the sign. -> the rounded number, and whether it is the same for all of these |z|.
    low = factor * np.int64((fraction >> np.uint64(1)) & np.uint64(0xFFFFFFFF))
    high = ((factor * whole) << 31) + factor * np.int64(fraction >> np.uint64(33)) + (low >> 32)
    half = 1 << (shift - 1)
    units = (high + half) >> shift
    last = high + (((low & 0xFFFFFFFF) + factor - 1) >> 32)
    return -units if fraction & np.uint64(1) else units, (last + half) >> shift == units


@exact_jit
def _accept(probability: float, word: np.uint64) -> Any:
    return probability >= 1.0 or word < np.uint64(probability * 18446744073709551616.0)  # 2^64


@exact_jit
def _fill_gaussian(
    words: _Words, start: int, thresholds: _Words, out: Offsets, carry: Offsets, factor: int, shift: int
) -> tuple[int, int]:
    # -> how many draws were made, and the proposal that has to be decided exactly (or the end of the words)
    filled = 0
    for at in range(start, len(words) - 2, 3):
        whole = 0
        while whole < len(thresholds) and words[at] > thresholds[whole]:
            whole += 1
        if whole == len(thresholds) or words[at] == thresholds[whole]:
            return filled, at
        part = float(words[at + 1] >> np.uint64(1)) * 1.0842021724855044e-19  # 2^-63
        if _accept(math.exp(-0.5 * part * (2.0 * whole + part)), words[at + 2]):
            out[filled], certain = _rounded(whole, words[at + 1], factor, shift)
            if not certain:
                return filled, at
            filled += 1
            if filled == len(out):
                break
    return filled, len(words)


@exact_jit
def _fill_laplace(
    words: _Words, start: int, thresholds: _Words, out: Offsets, carry: Offsets, factor: int, shift: int
) -> tuple[int, int]:
    filled, more = 0, carry[0]
    stopped = len(words)
    for at in range(start, len(words) - 2, 3):
        whole = 0
        while whole < len(thresholds) and words[at] > thresholds[whole]:
            whole += 1
        if whole == len(thresholds):
            more += whole
            continue
        if words[at] == thresholds[whole]:
            stopped = at
            break
        part = float(words[at + 1] >> np.uint64(1)) * 1.0842021724855044e-19
        if _accept(math.exp(-part), words[at + 2]):
            out[filled], _ = _rounded(more + whole, words[at + 1], factor, shift)  # a factor of 1 is always certain
            filled += 1
        more = 0  # a refused draw starts again from nothing
        if filled == len(out):
            break
    carry[0] = more
    return filled, stopped


@dataclass(frozen=True)
class Scale:
    """Lattice units per standard deviation: factor 2^exponent, so short that multiplying by it is exact."""

    factor: int
    exponent: int

    def __post_init__(self) -> None:
        if not (1 <= self.factor <= 2**_FACTOR_BITS and -_FACTOR_BITS <= self.exponent <= 20):
            raise BadInput(f"noise of {self.factor} 2^{self.exponent} units cannot be drawn: give 0.5 to 2^31")

    @classmethod
    def above(cls, units: float) -> Scale:
        """The smallest that is not below, and at most 1 + 2^-11 times that."""
        positive(units=units)
        mantissa, exponent = math.frexp(units)
        factor = math.ceil(math.ldexp(mantissa, _FACTOR_BITS))
        return cls(factor, exponent - _FACTOR_BITS)

    @property
    def units(self) -> float:
        """As a number."""
        return math.ldexp(self.factor, self.exponent)

    @property
    def shift(self) -> int:
        """For the kernel."""
        return 31 - self.exponent

    def rounded(self, whole: int, part: _Uniform) -> int:
        """So many times |z| = whole + part, rounded; with as many more bits as that takes."""
        times = Fraction(self.factor) * Fraction(2) ** self.exponent
        while True:
            least, beyond = (times * (whole + end) + Fraction(1, 2) for end in part.interval)
            if math.floor(least) == math.ceil(beyond) - 1:
                return math.floor(least)
            part.extend()


_UNITS = Scale(1, 20)


@dataclass(frozen=True)
class _Law:
    """A distribution of |z| = whole part + fraction, with a fast kernel and the exact decisions behind it."""

    fill: Callable[..., tuple[int, int]]
    thresholds: _Words
    cumulative: Callable[[int], list[_Interval]]
    exponent: Callable[[int, Fraction], Fraction]  # of the acceptance; rises with the fraction
    stride: int | None  # the whole part that means "so many more, and draw again"

    def propose(self, words: _Words, integers: _Integers, carry: Offsets, scale: Scale) -> int | None:
        """One proposal, made of the same words as in the kernel, decided with as many more as it takes."""
        first, fraction, last = words.tolist()
        whole = self._whole(_Uniform(integers, first, 64))
        if whole == self.stride:
            carry[0] += whole
            return None
        more, carry[0] = int(carry[0]), 0
        part = _Uniform(integers, fraction >> 1, 63)
        if not self._accepted(whole, part, _Uniform(integers, last, 64)):
            return None
        units = scale.rounded(more + whole, part)
        return -units if fraction & 1 else units

    def _whole(self, uniform: _Uniform) -> int:
        while True:
            least, most = uniform.interval
            for whole, (low, high) in enumerate(self.cumulative(uniform.bits)):
                if most <= low:
                    return whole
                if least < high:
                    break  # the threshold may lie on either side
            uniform.extend()

    def _accepted(self, whole: int, part: _Uniform, uniform: _Uniform) -> bool:
        while True:
            (nearest, farthest), (least, most) = part.interval, uniform.interval
            if most <= _exp_minus(self.exponent(whole, farthest), uniform.bits)[0]:
                return True
            if least >= _exp_minus(self.exponent(whole, nearest), uniform.bits)[1]:
                return False
            part.extend()
            uniform.extend()

    def draw(self, source: Source, count: int, scale: Scale) -> Offsets:
        """Independent draws, so many units wide, rounded to integers."""
        out, carry, integers = np.empty(count, np.int64), np.zeros(1, np.int64), _Integers(source)
        done = 0
        while done < count:
            end = min(done + _CHUNK, count)
            # 72 (Gaussian) or 62 (Laplace) of 100 proposals are accepted.
            words = source.words(3 * (end - done + (end - done) // 2 + 8))
            at = 0
            while at < len(words) and done < end:
                filled, at = self.fill(words, at, self.thresholds, out[done:end], carry, scale.factor, scale.shift)
                done += filled
                if at < len(words):
                    drawn = self.propose(words[at : at + 3], integers, carry, scale)
                    if drawn is not None:
                        out[done] = drawn
                        done += 1
                    at += 3
        return out


_GAUSSIAN = _Law(
    _fill_gaussian, _GAUSSIAN_WHOLE, _gaussian_cumulative, lambda whole, part: part * (2 * whole + part) / 2, None
)
_LAPLACE = _Law(_fill_laplace, _LAPLACE_WHOLE, _laplace_cumulative, lambda _, part: part, _STRIDE)


def lattice_gaussian(source: Source, count: int, scale: Scale = _UNITS) -> Offsets:
    """Independent draws of N(0, scale^2), UNITS unless told otherwise, rounded to integers."""
    return _GAUSSIAN.draw(source, count, scale)


def lattice_laplace(source: Source, count: int) -> Offsets:
    """Independent Laplace draws of scale UNITS, rounded to integers."""
    return _LAPLACE.draw(source, count, _UNITS)


def to_lattice(value: Doubles, grid: float) -> Offsets:
    """In lattice units, cut towards zero: no norm grows, and two values part by less than a unit more."""
    units = np.trunc(np.asarray(value, np.float64) / grid)
    if units.size and not np.abs(units).max() < _LARGEST:
        raise BadInput(
            f"the value is more than {_LARGEST * grid:g} from 0, too far for noise of scale {UNITS * grid:g}"
        )
    return units.astype(np.int64)


def add_noise(value: Doubles, *, law: Law, scale: float, source: Source) -> Doubles:
    """The value plus noise on the lattice of step scale / UNITS, whatever the value's own digits.

    The scale of Gaussian noise is its standard deviation.
    """
    grid, draw = scale / UNITS, lattice_gaussian if law == "gaussian" else lattice_laplace
    noisy = to_lattice(value, grid) + draw(source, value.size).reshape(value.shape)
    return noisy.astype(np.float64) * grid


def add_gaussian(value: Doubles, *, sigma: float, source: Source) -> Doubles:
    """The value plus Gaussian noise on the lattice of step sigma / UNITS."""
    return add_noise(value, law="gaussian", scale=sigma, source=source)


def add_laplace(value: Doubles, *, scale: float, source: Source) -> Doubles:
    """The value plus Laplace noise on the lattice of step scale / UNITS."""
    return add_noise(value, law="laplace", scale=scale, source=source)


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
    generator: np.random.Generator, shape: tuple[int, ...], *, scale: float, clients: int | Offsets
) -> Doubles:
    """For simulations only: sums of `clients` Laplace draws, each as a difference of two Gamma draws.

    `clients` may differ from entry to entry, for instance `[rows, 1]` where a row was sent by some of the cohort.
    """
    return scale * (generator.standard_gamma(clients, shape) - generator.standard_gamma(clients, shape))
