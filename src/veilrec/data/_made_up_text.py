"""Ids and sentences by the hundred thousand, without a Python string for each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from veilrec._arrays import Bytes, Indices, Offsets
from veilrec._csr import Csr
from veilrec._jit import jit
from veilrec.data.strings import Strings

_ONSETS = (
    "b",
    "br",
    "c",
    "ch",
    "d",
    "dr",
    "f",
    "fl",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "sh",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "z",
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "oo")
_CODAS = ("", "", "", "", "", "", "", "l", "n", "r", "s", "t")


def numbered(prefix: str, count: int) -> Strings:
    """`prefix` and the numbers from 1 to `count`, all equally wide."""
    width = len(str(count))
    numbers = np.arange(1, count + 1, dtype=np.int64)[:, None]
    digits = numbers // 10 ** np.arange(width - 1, -1, -1, dtype=np.int64) % 10 + ord("0")
    head = np.frombuffer(prefix.encode(), np.uint8)
    data = np.empty((count, len(head) + width), np.uint8)
    data[:, : len(head)] = head
    data[:, len(head) :] = digits
    return Strings(np.arange(count + 1, dtype=np.int64) * data.shape[1], data.reshape(-1))


def made_up_words(count: int, generator: np.random.Generator) -> list[str]:
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
    ends = np.zeros(len(chosen.items) + 1, np.int64)
    np.cumsum(word_lengths[chosen.items] + 1, out=ends[1:])
    # A blank follows every word but the last of a sentence: row r loses one byte, when it has words at all.
    lost = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(chosen.lengths() > 0, out=lost[1:])
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
