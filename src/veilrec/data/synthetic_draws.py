"""Building blocks of synthetic data: keyed random streams, users with interests that drift, ids, words and sentences.

A stream depends on its key alone, not on who else draws. The generator is SplitMix64 (Steele, Lea and Flood, OOPSLA
2014): fast and good enough for synthetic data, and of no use for privacy.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, TypeAlias

import numpy as np
import yaml
from numpy.typing import NDArray

from veilrec.core.arrays import Bytes, Csr, Doubles, Indices, Offsets, offsets_of
from veilrec.core.jit import jit
from veilrec.core.rng import mix
from veilrec.data.population import Strings

FIRST_DAY = 1_767_225_600  # 2026-01-01 00:00 UTC
DAY = 86_400
INTERESTS = 3  # per user
_DRIFT = 0.5  # the share of the last day's weights that has nothing to do with the first day's
_ONSETS = (
    *("b", "br", "c", "ch", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "l"),
    *("m", "n", "p", "pl", "r", "s", "sh", "st", "t", "tr", "v", "w", "z"),
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "oo")
_CODAS = ("", "", "", "", "", "", "", "l", "n", "r", "s", "t")

State: TypeAlias = NDArray[np.uint64]  # [1]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_S11 = np.uint64(11)
_TO_UNIT = 2.0**-53


@jit
def start(state: State, seed: int, stream: int, index: int) -> None:
    """Set `state` to the beginning of the stream with this key."""
    key = mix(np.uint64(np.int64(seed)) + _GOLDEN)  # by way of int64: a seed may be negative
    key = mix(key + np.uint64(stream) + _GOLDEN)
    state[0] = mix(key + np.uint64(index) + _GOLDEN)


@jit
def uniform(state: State) -> float:
    """A number in (0, 1)."""
    state[0] += _GOLDEN
    return (float(mix(state[0]) >> _S11) + 0.5) * _TO_UNIT


@jit
def integer(state: State, limit: int) -> int:
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


@jit
def draw_interests(state: State, options: int, interests: Offsets, at_start: Doubles, at_end: Doubles) -> None:
    """Fill in distinct interests below `options` (low ones are likelier), their first and last weights."""
    total_start, total_end = 0.0, 0.0
    for k in range(INTERESTS):
        option = int(options * uniform(state) ** 1.5)
        while (interests[:k] == option).any():
            option = (option + 1) % options
        interests[k] = option
        at_start[k], at_end[k] = exponential(state), exponential(state)
        total_start += at_start[k]
        total_end += at_end[k]
    at_start /= total_start
    for k in range(INTERESTS):
        at_end[k] = (1.0 - _DRIFT) * at_start[k] + _DRIFT * at_end[k] / total_end


@jit
def interest_weight(k: int, moment: float, at_start: Doubles, at_end: Doubles) -> float:
    """The weight of interest k at a moment in [0, 1]; at any moment the weights sum to 1."""
    value: float = at_start[k] + moment * (at_end[k] - at_start[k])
    return value


@jit
def draw_interest(state: State, moment: float, at_start: Doubles, at_end: Doubles) -> int:
    """One of a user's interests, with the probability of its weight."""
    left = uniform(state)
    for k in range(INTERESTS - 1):
        left -= interest_weight(k, moment, at_start, at_end)
        if left < 0.0:
            return k
    return INTERESTS - 1


def read_words(name: str) -> Any:
    """Read a word list of the package (`words/NAME.yaml`); every text becomes the tuple of its words."""
    return _split_words(yaml.safe_load((files("veilrec.data") / "words" / f"{name}.yaml").read_text("utf-8")))


def _split_words(lists: Any) -> Any:
    return tuple(lists.split()) if isinstance(lists, str) else {key: _split_words(some) for key, some in lists.items()}


def numbered_ids(prefix: str, count: int) -> Strings:
    """`prefix` and the numbers from 1 to `count`, all equally wide."""
    width = len(str(count))
    numbers = np.arange(1, count + 1, dtype=np.int64)[:, None]
    digits = numbers // 10 ** np.arange(width - 1, -1, -1, dtype=np.int64) % 10 + ord("0")
    head = np.frombuffer(prefix.encode(), np.uint8)
    data = np.empty((count, len(head) + width), np.uint8)
    data[:, : len(head)] = head
    data[:, len(head) :] = digits
    return Strings(np.arange(count + 1, dtype=np.int64) * data.shape[1], data.reshape(-1))


def invented_words(count: int, generator: np.random.Generator) -> list[str]:
    """Distinct pronounceable words of two or three syllables."""
    words: dict[str, None] = {}
    while len(words) < count:
        n = 2 * (count - len(words)) + 16
        syllables = [_syllables(n, generator) for _ in range(3)]
        last = np.where(generator.random(n) < 0.5, syllables[2], "")
        drawn = np.char.add(np.char.add(syllables[0], syllables[1]), last)
        words.update(dict.fromkeys(drawn.tolist()))
    return list(words)[:count]


def _syllables(count: int, generator: np.random.Generator) -> NDArray[np.str_]:
    onsets, vowels, codas = (generator.choice(np.array(part), count) for part in (_ONSETS, _VOWELS, _CODAS))
    return np.char.add(np.char.add(onsets, vowels), codas)


def sentences(words: Strings, chosen: Csr) -> Strings:
    """One sentence per row of `chosen`: its words with blanks between them and a capital letter in front."""
    word_lengths = np.diff(words.offsets)
    ends = offsets_of(word_lengths[chosen.items] + 1)
    # A blank follows every word but the last of a sentence: row r loses one byte, when it has words at all.
    lost = offsets_of(chosen.lengths() > 0)
    offsets = ends[chosen.offsets] - lost
    data = np.full(offsets[-1], ord(" "), np.uint8)
    _write_words(words.offsets, words.data, chosen.offsets, chosen.items, offsets, data)
    return Strings(offsets, data)


@jit
def _write_words(
    word_offsets: Offsets, word_data: Bytes, rows: Offsets, chosen: Indices, offsets: Offsets, out: Bytes
) -> None:
    for row in range(len(rows) - 1):
        at = offsets[row]
        for position in range(rows[row], rows[row + 1]):
            word = chosen[position]
            for source in range(word_offsets[word], word_offsets[word + 1]):
                out[at] = word_data[source]
                at += 1
            at += 1
        if rows[row + 1] > rows[row]:
            out[offsets[row]] -= 32  # ASCII: to upper case
