"""Sentence vectors of news: computed once, kept on disk by content."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from veilrec._arrays import Floats
from veilrec._files import replacing, sha256
from veilrec.data.cache import cache_folder
from veilrec.data.population import Catalogue
from veilrec.data.strings import Strings

_log = logging.getLogger("veilrec")


def sentence_vectors(catalogue: Catalogue, dim: int, learnt: Catalogue) -> Floats:
    """Vectors of MiniLM, [news, dim], of length 1; below 384 dimensions the principal components of `learnt`."""
    whole = _remembered(texts_of(catalogue))
    if dim >= whole.shape[1]:
        return whole
    return reduced(whole, dim, whole if learnt is catalogue else _remembered(texts_of(learnt)))


def texts_of(catalogue: Catalogue) -> Strings:
    """Title and abstract of every news."""
    if catalogue.abstracts is None:
        return catalogue.titles
    return Strings.of(
        f"{title}. {abstract}" for title, abstract in zip(catalogue.titles, catalogue.abstracts, strict=True)
    )


def reduced(vectors: Floats, dim: int, learnt: Floats) -> Floats:
    """The first principal components of `learnt`, around its mean, scaled to length 1: public, for the texts are."""
    mean = learnt.mean(0)
    centred = learnt - mean
    _, axes = np.linalg.eigh(centred.T.astype(np.float64) @ centred)
    axes = axes[:, ::-1][:, :dim]
    axes *= np.where(axes[np.abs(axes).argmax(0), np.arange(dim)] < 0, -1.0, 1.0)  # a sign that is always the same
    kept = ((vectors - mean) @ axes).astype(np.float32)
    lengths: Floats = np.linalg.norm(kept, axis=1, keepdims=True)
    scaled: Floats = kept / np.maximum(lengths, np.float32(1e-12))
    return scaled


def _remembered(texts: Strings) -> Floats:
    from veilrec.models.minilm import MiniLm, model_folder

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
