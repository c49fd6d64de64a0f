"""Which words a model knows, and texts as rows of word codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from veilrec._arrays import Indices

PADDING, UNKNOWN = 0, 1  # codes of no word and of a word that is not in the vocabulary
_FIRST = 2


@dataclass(frozen=True)
class Vocabulary:
    """Word number i has the code i + 2."""

    words: tuple[str, ...]

    def __len__(self) -> int:
        """Number of codes: the words, padding, and the unknown word."""
        return len(self.words) + _FIRST

    def codes(self, words: pl.Series) -> Indices:
        """The code of every word of a column."""
        known = pl.DataFrame(
            {"word": pl.Series(self.words, dtype=pl.String), "code": np.arange(_FIRST, len(self), dtype=np.int32)}
        )
        found = pl.DataFrame({"word": words}).join(known, on="word", how="left", maintain_order="left")
        return found["code"].fill_null(UNKNOWN).to_numpy().astype(np.int32)

    def rows(self, texts: pl.Series, length: int) -> Indices:
        """Lists of words as codes, [texts, length]: the first `length` words, padding behind the last."""
        clipped = texts.list.head(length)
        lengths = clipped.list.len().to_numpy().astype(np.int64)
        out = np.full((len(texts), length), PADDING, np.int32)
        out[np.arange(length) < lengths[:, None]] = self.codes(clipped.explode().drop_nulls())
        return out


def make_vocabulary(texts: pl.Series, *, fewest: int = 1, also: pl.Series | None = None) -> Vocabulary:
    """The words that occur `fewest` times or more in lists of words, the most frequent first; then those of `also`.

    `also` are words that are known without any text (of public word vectors).
    """
    words = texts.explode().drop_nulls()
    counts = pl.DataFrame({"word": words}).group_by("word").len()
    learnt = counts.filter(pl.col("len") >= fewest).sort(["len", "word"], descending=[True, False])["word"]
    chosen: Sequence[str] = learnt.to_list()
    if also is not None:
        chosen = [*chosen, *also.filter(~also.is_in(learnt.implode())).unique().sort().to_list()]
    return Vocabulary(tuple(chosen))
