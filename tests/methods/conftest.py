"""Sentence vectors without the language model, whose package need not be installed."""

import numpy as np
import pytest


@pytest.fixture
def synthetic_sentences(monkeypatch):
    """Vectors that follow from the titles alone."""

    def vectors(catalogue):
        own = [np.random.default_rng(list(title.encode())).standard_normal(48) for title in catalogue.titles]
        return np.array(own, np.float32)

    for module in ("veilrec.methods.news.text_vectors", "veilrec.methods.veil.news"):
        monkeypatch.setattr(f"{module}.whole_vectors", vectors)
