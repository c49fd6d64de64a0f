"""Sentence vectors of titles: computed once, kept on disk by content."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from veilrec._arrays import Floats
from veilrec._files import replacing
from veilrec.data.cache import cache_folder
from veilrec.data.strings import Strings

_log = logging.getLogger("veilrec")


def sentence_vectors(texts: Strings, dim: int) -> Floats:
    """Vectors of MiniLM, [texts, dim], of length 1; below 384 dimensions their principal components."""
    whole = _remembered(texts)
    if dim >= whole.shape[1]:
        return whole
    return reduced(whole, dim)


def reduced(vectors: Floats, dim: int) -> Floats:
    """The first principal components, around the mean, scaled to length 1: public, for the texts are."""
    centred = vectors - vectors.mean(0)
    _, axes = np.linalg.eigh(centred.T.astype(np.float64) @ centred)
    axes = axes[:, ::-1][:, :dim]
    axes *= np.where(axes[np.abs(axes).argmax(0), np.arange(dim)] < 0, -1.0, 1.0)  # a sign that is always the same
    kept = (centred @ axes).astype(np.float32)
    lengths: Floats = np.linalg.norm(kept, axis=1, keepdims=True)
    return kept / np.maximum(lengths, np.float32(1e-12))


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
    digest = hashlib.sha256(texts.data.tobytes())
    digest.update(np.ascontiguousarray(texts.offsets).tobytes())
    digest.update(str((folder / "model.safetensors").stat().st_size).encode())
    return cache_folder() / "sentences" / f"minilm-{digest.hexdigest()[:24]}.npy"


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error; one plain line when it is no terminal."""
    if not sys.stderr.isatty():
        sys.stderr.write(f"sentence vectors of {total} titles: computed once, then kept\n")
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("sentence vectors", total=total)
        yield lambda done: bar.update(task, completed=done)
