"""Draws keyed by (seed, round, client): the same whoever makes them, in any order, on any number of cores.

They decide what a client samples and in which order it learns. Noise that protects people never comes
from here.
"""

from __future__ import annotations

import numpy as np

from veilrec.core.arrays import Floats, Offsets
from veilrec.core.jit import jit
from veilrec.core.resources import require_room

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53
_TO_SINGLE_UNIT = np.float32(2.0**-24)

# What a draw is for; the streams of two purposes never meet.
LEARNING = 1
PRIVATE_STATE = 2
AVAILABILITY = 3
DROP_OUT = 4
MODEL = 5
COHORT = 6
NOISE = 7  # of simulations, which protect nobody
REPORT = 8  # which items a simulated client reports, and which bits of its report are turned round
PARTICIPANTS = 9  # who takes part in a run at all, where that is not everybody
HISTOGRAM = 10  # noise of a simulated histogram, which protects nobody
VALIDATORS = 11  # who never learns, and only compares the trained model with the start
COMPARISON = 12  # noise of that comparison
LOCAL_NOISE = 13  # what a client adds to its data before it learns


@jit
def mix(value: np.uint64) -> np.uint64:
    """The finaliser of splitmix64: a bijection of 64-bit words that scatters every bit."""
    z = np.uint64(value)
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@jit
def stream(seed: int, purpose: int, round_number: int, client: int) -> np.uint64:
    """The start of the stream of one client in one round for one purpose."""
    state = mix(np.uint64(np.int64(seed)) + _GOLDEN)  # by way of int64: a seed may be negative
    state = mix(state + np.uint64(purpose) * _GOLDEN)
    state = mix(state + np.uint64(round_number) * _GOLDEN)
    return mix(state + np.uint64(client) * _GOLDEN)


@jit
def word(start: np.uint64, counter: int) -> np.uint64:
    """The 64-bit word number `counter` of a stream."""
    return mix(np.uint64(start) + np.uint64(counter + 1) * _GOLDEN)


@jit
def below(random_word: np.uint64, bound: int) -> np.int64:
    """A number in [0, bound) from the upper half of a word; the bias is below bound / 2^32."""
    upper = np.uint64(random_word) >> np.uint64(32)
    return np.int64((upper * np.uint64(bound)) >> np.uint64(32))


@jit
def _unit(random_word: np.uint64) -> np.float64:
    return np.float64(random_word >> np.uint64(11)) * _TO_UNIT


@jit
def _single_unit(random_word: np.uint64) -> np.float32:
    # 24 bits, not 53: a double just below 1 would become 1 in single precision
    return np.float32(random_word >> np.uint64(40)) * _TO_SINGLE_UNIT


@jit
def _uniforms(seed: int, purpose: int, round_number: int, clients: Offsets, out: Floats) -> None:
    for i in range(len(clients)):
        start = stream(seed, purpose, round_number, clients[i])
        for j in range(out.shape[1]):
            out[i, j] = _single_unit(word(start, j))


@jit
def _normals(seed: int, purpose: int, round_number: int, clients: Offsets, out: Floats) -> None:
    for i in range(len(clients)):
        start = stream(seed, purpose, round_number, clients[i])
        for j in range(out.shape[1]):
            radius = np.sqrt(-2.0 * np.log1p(-_unit(word(start, 2 * j))))
            out[i, j] = radius * np.cos(2.0 * np.pi * _unit(word(start, 2 * j + 1)))


def uniforms(seed: int, purpose: int, round_number: int, clients: Offsets, width: int = 1) -> Floats:
    """Numbers in [0, 1): one row per client."""
    out = np.empty((len(clients), width), np.float32)
    _uniforms(seed, purpose, round_number, np.ascontiguousarray(clients, dtype=np.int64), out)
    return out


def normals(seed: int, purpose: int, round_number: int, clients: Offsets, width: int) -> Floats:
    """Standard normal numbers: one row per client. For starting values, not for privacy."""
    require_room(len(clients), width)
    out = np.empty((len(clients), width), np.float32)
    _normals(seed, purpose, round_number, np.ascontiguousarray(clients, dtype=np.int64), out)
    return out
