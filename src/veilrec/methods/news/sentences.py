"""Sentence vectors of news: computed once, kept on disk by content."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from veilrec._arrays import Doubles, Floats
from veilrec._files import cache_folder, replacing, sha256
from veilrec.data.population import ItemTable, Strings

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
    from veilrec.models.minilm import MiniLm, model_folder

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
    from veilrec.models.minilm import LONGEST

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
