"""Keyed random draws for compiled loops: a stream depends on its key alone, not on who else draws.

The generator is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): fast and good enough to make data up, and
of no use for privacy.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from veilrec._draws import mix
from veilrec._jit import jit

State: TypeAlias = NDArray[np.uint64]  # [1]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_S11 = np.uint64(11)
_TO_UNIT = 2.0**-53


@jit
def start(state: State, seed: int, stream: int, index: int) -> None:
    """Set `state` to the beginning of the stream with this key."""
    key = mix(np.uint64(seed) + _GOLDEN)
    key = mix(key + np.uint64(stream) + _GOLDEN)
    state[0] = mix(key + np.uint64(index) + _GOLDEN)


@jit
def uniform(state: State) -> float:
    """A number in (0, 1)."""
    state[0] += _GOLDEN
    return (float(mix(state[0]) >> _S11) + 0.5) * _TO_UNIT


@jit
def below(state: State, limit: int) -> int:
    """An integer in [0, limit)."""
    return min(int(uniform(state) * limit), limit - 1)


@jit
def normal(state: State) -> float:
    """A standard normal number (Box and Muller)."""
    radius: float = np.sqrt(-2.0 * np.log(uniform(state)))
    value: float = radius * np.cos(2.0 * np.pi * uniform(state))
    return value


@jit
def exponential(state: State) -> float:
    """A standard exponential number."""
    value: float = -np.log(uniform(state))
    return value


@jit
def lognormal_length(state: State, mean: float, spread: float, shortest: int, longest: int) -> int:
    """A length with about this mean: a log-normal number, cut to [shortest, longest]."""
    length = mean * np.exp(spread * normal(state) - 0.5 * spread * spread)
    return int(min(max(np.round(length), shortest), longest))


@jit
def rising(state: State, length: int, out: NDArray[np.float64]) -> None:
    """Fill `out[:length]` with uniform numbers in rising order (normalised sums of exponentials: no sort)."""
    total = 0.0
    for position in range(length):
        total += exponential(state)
        out[position] = total
    total += exponential(state)
    for position in range(length):
        out[position] /= total
