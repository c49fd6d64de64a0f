"""WordPiece: text -> pieces of a BERT vocabulary (lower case, without accents)."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from veilrec.errors import BadInput

_LONGEST_WORD = 100
# Chinese characters stand alone, as in BERT's own tokeniser.
_CJK = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class WordPiece:
    """Codes of texts by a vocabulary file with one piece per line; pieces inside a word begin with ##."""

    def __init__(self, vocabulary: Path) -> None:
        try:
            pieces = vocabulary.read_text(encoding="utf-8").rstrip("\n").split("\n")
        except (OSError, UnicodeDecodeError):
            raise BadInput(f"{vocabulary} is not the vocabulary of a language model: install it again") from None
        self._codes = {piece: code for code, piece in enumerate(pieces)}
        try:
            self.unknown, self.first, self.last = (self._codes[p] for p in ("[UNK]", "[CLS]", "[SEP]"))
        except KeyError as error:
            raise BadInput(f"{vocabulary} lacks the piece {error}: it is no vocabulary of BERT") from None
        self._pieces = lru_cache(maxsize=1 << 16)(self._split)

    def encode(self, text: str, longest: int) -> list[int]:
        """Codes with the marks of beginning and end, at most `longest` of them."""
        codes = [code for word in basic_words(text) for code in self._pieces(word)]
        return [self.first, *codes[: longest - 2], self.last]

    def _split(self, word: str) -> tuple[int, ...]:
        """The longest known pieces from left to right; a word that cannot be made of pieces is unknown."""
        if len(word) > _LONGEST_WORD:
            return (self.unknown,)
        codes, begin = [], 0
        while begin < len(word):
            for end in range(len(word), begin, -1):
                piece = word[begin:end] if begin == 0 else "##" + word[begin:end]
                if piece in self._codes:
                    codes.append(self._codes[piece])
                    begin = end
                    break
            else:
                return (self.unknown,)
        return tuple(codes)


def basic_words(text: str) -> Iterable[str]:
    """Lower-case words without accents; punctuation and Chinese characters stand alone."""
    plain = unicodedata.normalize("NFD", "".join(map(_visible, text)).lower())
    return "".join(_apart(sign) for sign in plain).split()


def _visible(sign: str) -> str:
    if sign in "\t\n\r":
        return " "
    if sign in "\0�" or unicodedata.category(sign).startswith("C"):
        return ""
    return " " if unicodedata.category(sign) == "Zs" else sign


def _apart(sign: str) -> str:
    if unicodedata.category(sign) == "Mn":
        return ""
    code = ord(sign)
    is_ascii_sign = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    stands_alone = is_ascii_sign or unicodedata.category(sign).startswith("P")
    if stands_alone or any(low <= code <= high for low, high in _CJK):
        return f" {sign} "
    return sign
