"""Sentence vectors are kept by content, and can be reduced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from veilrec.data.population import ItemTable, Strings
from veilrec.methods.news import text_vectors
from veilrec.models import text_embeddings


class _FakeModel:
    calls = 0

    def __init__(self, folder: Path) -> None:
        pass

    def encode(self, texts: list[str], progress: Any) -> Any:
        _FakeModel.calls += 1
        progress(len(texts))
        return np.array([[len(text), 1.0, 0.0] for text in texts], np.float32)


def catalogue(*titles: str) -> ItemTable:
    return ItemTable(Strings.of(titles), Strings.of(titles), abstracts=Strings.of(["more"] * len(titles)))


def vectors_of(*titles: str) -> Any:
    return text_vectors.whole_vectors(catalogue(*titles))


def test_vectors_are_computed_once_per_content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(text_embeddings, "model_folder", lambda: tmp_path)
    monkeypatch.setattr(text_embeddings, "MiniLm", _FakeModel)
    first = vectors_of("a", "bc")
    assert first[:, 0].tolist() == [len("a. more"), len("bc. more")]
    assert np.array_equal(vectors_of("a", "bc"), first)
    assert _FakeModel.calls == 1
    vectors_of("a", "b")
    assert _FakeModel.calls == 2
    (entry,) = (
        path
        for path in (tmp_path / "cache" / "sentences").iterdir()
        if len(np.load(path)) and np.array_equal(np.load(path), first)
    )
    entry.write_bytes(b"damaged")
    assert np.array_equal(vectors_of("a", "bc"), first)


def test_fewer_dimensions_are_principal_components() -> None:
    generator = np.random.default_rng(4)
    plane = generator.normal(size=(200, 2)) @ generator.normal(size=(2, 6))
    plane = plane.astype(np.float32)
    axes = text_vectors.principal_axes(plane, 2)
    kept = axes.reduced(plane)
    centred = plane - plane.mean(0)
    wanted = centred @ centred.T / np.outer(*[np.linalg.norm(centred, axis=1)] * 2)
    assert np.allclose(kept @ kept.T, wanted, atol=1e-4)
    assert np.array_equal(kept, text_vectors.principal_axes(plane, 2).reduced(plane))
    assert np.allclose(axes.reduced(plane[:3]), kept[:3], atol=1e-5)  # others on the same axes
