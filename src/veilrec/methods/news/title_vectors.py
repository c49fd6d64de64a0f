"""Vectors of news made of the catalogue's own words: nothing is downloaded, and only public text goes in.

Words of title and abstract are weighed by how rare they are (TF-IDF); the first singular directions of all news
are kept (latent semantic analysis, Deerwester et al. 1990). Other news are read with the same words and directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from veilrec._arrays import Floats
from veilrec.data.news_text import Vocabulary, tokenise
from veilrec.data.population import ItemTable
from veilrec.data.text_files import unpack
from veilrec.methods.news.sentences import texts_of

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_FEWEST = 2  # news that have a word: one that occurs once says nothing about other news
_MOST_WORDS = 50_000  # the most frequent
_OFTEN = 0.2  # words of more than this share of the news are left out
_SMALLEST = 1e-12


@dataclass(frozen=True)
class TitleAxes:
    """What turns any news into a vector: words, how much each counts, and where it points."""

    words: Vocabulary
    rarity: Floats  # [words]
    axes: Floats  # [words, dim]

    def vectors(self, catalogue: ItemTable) -> Floats:
        """Vectors of any news, of length 1; zero where no word is known: [news, dim]."""
        return _unit(_weighed(_counted(_texts(catalogue), self.words), self.rarity) @ self.axes)


def learnt_titles(catalogue: ItemTable, dim: int) -> tuple[Floats, TitleAxes]:
    """Vectors of the news of a training, and what all other news are read with."""
    texts = _texts(catalogue)
    words, rarity = _known(texts)
    weighed = _weighed(_counted(texts, words), rarity)
    axes = _directions(weighed, dim)
    return _unit(weighed @ axes), TitleAxes(words, rarity, axes)


def _texts(catalogue: ItemTable) -> pl.Series:
    return tokenise(unpack(texts_of(catalogue)))


def _known(texts: pl.Series) -> tuple[Vocabulary, Floats]:
    """Words that some news share but not many, the most frequent first, and the logarithm of how rare they are."""
    news = texts.list.unique()
    counts = pl.DataFrame({"word": news.explode().drop_nulls()}).group_by("word").len()
    most = max(_FEWEST, _OFTEN * len(texts))
    shared = counts.filter(pl.col("len").is_between(_FEWEST, most)).sort(["len", "word"], descending=[True, False])
    kept = shared.head(_MOST_WORDS)
    rarity = np.log(len(texts) / np.maximum(kept["len"].to_numpy(), 1)).astype(np.float32)
    return Vocabulary(tuple(kept["word"].to_list())), rarity


def _counted(texts: pl.Series, words: Vocabulary) -> csr_matrix[np.float32]:
    """How often each news has each known word: [news, words]."""
    from scipy.sparse import csr_matrix

    codes = words.codes(texts.explode().drop_nulls()) - (len(words) - len(words.words))
    rows = np.repeat(np.arange(len(texts)), texts.list.len().to_numpy())
    known = codes >= 0
    ones = np.ones(int(known.sum()), np.float32)
    return csr_matrix((ones, (rows[known], codes[known])), shape=(len(texts), len(words.words)))


def _weighed(counts: csr_matrix[np.float32], rarity: Floats) -> csr_matrix[np.float32]:
    """TF-IDF, every news of length 1."""
    weighed = counts.copy()
    weighed.data = ((1.0 + np.log(weighed.data)) * rarity[weighed.indices]).astype(np.float32)
    rows = np.repeat(np.arange(weighed.shape[0]), np.diff(weighed.indptr))
    lengths = np.sqrt(np.bincount(rows, weighed.data.astype(np.float64) ** 2, minlength=weighed.shape[0]))
    weighed.data = (weighed.data / np.maximum(lengths, _SMALLEST)[rows]).astype(np.float32)
    return weighed


def _directions(weighed: csr_matrix[np.float32], dim: int) -> Floats:
    """The first right singular vectors, [words, dim], each with a sign that is always the same; fewer if there are."""
    from scipy.sparse.linalg import svds

    news, words = weighed.shape
    most = min(news, words)
    if most <= max(dim + 1, 2):
        whole = np.linalg.svd(weighed.toarray().astype(np.float64), full_matrices=False)[2]
        axes = whole[: max(1, min(dim, most))].T if most else np.zeros((words, 1))
    else:
        first = np.ones(most) / np.sqrt(most)  # where the search begins: it is the same every time
        _, lengths, right = svds(weighed.astype(np.float64), k=dim, v0=first)
        axes = right[np.argsort(-lengths)].T
    if words:
        axes = axes * np.where(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])] < 0, -1.0, 1.0)
    return np.ascontiguousarray(axes, dtype=np.float32)


def _unit(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Floats = (vectors / np.maximum(lengths, _SMALLEST)).astype(np.float32)
    return scaled
