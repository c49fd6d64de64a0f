"""Text vectors of news: MiniLM sentence vectors, cached on disk by content, and TF-IDF vectors of the catalogue.

The latter need no download: words of title and abstract are weighted by TF-IDF, and the first singular directions are
kept (latent semantic analysis, Deerwester et al. 1990). Only public text goes in.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from veilrec.core.arrays import Doubles, Floats
from veilrec.core.files import replacing, sha256
from veilrec.core.resources import cache_folder
from veilrec.data.news_text import Vocabulary, tokenise
from veilrec.data.population import ItemTable, Strings
from veilrec.data.text_files import unpack

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


_log = logging.getLogger("veilrec")


@dataclass(frozen=True)
class SentenceAxes:
    """The first principal components of the sentence vectors of a catalogue: public, for the texts are."""

    mean: Floats  # [384]
    axes: Doubles  # [384, dim]

    def reduced(self, vectors: Floats) -> Floats:
        """Vectors of any news on these axes, around their mean, scaled to length 1: [news, dim]."""
        kept = ((vectors - self.mean) @ self.axes).astype(np.float32)
        lengths = np.linalg.norm(kept, axis=1, keepdims=True)
        scaled: Floats = (kept / np.maximum(lengths, np.float32(1e-12))).astype(np.float32, copy=False)
        return scaled


def sentence_vectors(catalogue: ItemTable, axes: SentenceAxes | None) -> Floats:
    """Vectors of MiniLM, of length 1: all 384 dimensions, or fewer on the given axes."""
    whole = whole_vectors(catalogue)
    return whole if axes is None else axes.reduced(whole)


def learnt_sentences(catalogue: ItemTable, dim: int) -> tuple[Floats, SentenceAxes | None]:
    """Vectors of the news of a training, and the axes that all other news go by; None: no dimension is left out."""
    whole = whole_vectors(catalogue)
    if dim >= whole.shape[1]:
        return whole, None
    axes = principal_axes(whole, dim)
    return axes.reduced(whole), axes


def principal_axes(vectors: Floats, dim: int) -> SentenceAxes:
    """The first principal components of vectors."""
    mean = vectors.mean(0)
    centred = vectors - mean
    _, axes = np.linalg.eigh(centred.T.astype(np.float64) @ centred)
    axes = np.ascontiguousarray(axes[:, ::-1][:, :dim])
    axes *= np.where(axes[np.abs(axes).argmax(0), np.arange(dim)] < 0, -1.0, 1.0)  # a sign that is always the same
    return SentenceAxes(mean, axes)


def texts_of(catalogue: ItemTable) -> Strings:
    """Title and abstract of every news."""
    if catalogue.abstracts is None:
        return catalogue.titles
    return Strings.of(
        f"{title}. {abstract}" for title, abstract in zip(catalogue.titles, catalogue.abstracts, strict=True)
    )


def whole_vectors(catalogue: ItemTable) -> Floats:
    """Vectors of MiniLM, [news, 384]: computed once."""
    from veilrec.models.text_embeddings import MiniLm, model_folder

    texts = texts_of(catalogue)
    folder = model_folder()
    path = _entry(texts, folder)
    try:
        vectors: Floats = np.load(path, allow_pickle=False)
        if len(vectors) == len(texts):
            return vectors
    except (OSError, ValueError, EOFError):
        pass  # not there, or damaged
    with _progress(len(texts)) as advance:
        vectors = MiniLm(folder).encode(list(texts), advance)
    try:
        with replacing(path) as part, part.open("wb") as out:
            np.save(out, vectors, allow_pickle=False)
    except OSError as error:
        _log.warning("the cache %s cannot be written (%s): set VEILREC_CACHE", cache_folder(), error.strerror)
    return vectors


def _entry(texts: Strings, folder: Path) -> Path:
    from veilrec.models.text_embeddings import LONGEST

    digest = hashlib.sha256(texts.data.tobytes())
    digest.update(np.ascontiguousarray(texts.offsets).tobytes())
    digest.update(f"{sha256([folder / 'model.safetensors'])} {LONGEST}".encode())
    return cache_folder() / "sentences" / f"minilm-{digest.hexdigest()[:24]}.npy"


def ignore(done: int) -> None:
    """Show nothing."""


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error; one plain line when it is no terminal."""
    if not sys.stderr.isatty():
        sys.stderr.write(f"sentence vectors of {total} news: computed once, then kept\n")
        yield ignore
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("sentence vectors", total=total)
        yield lambda done: bar.update(task, completed=done)


_FEWEST = 2  # news that have a word: one that occurs once says nothing about other news
_MAX_WORDS = 50_000  # the most frequent
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
    kept = shared.head(_MAX_WORDS)
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
