"""What serving takes from a trained model is what the model computes itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.methods.tiny_news import build, population, split
from veilrec.core.csr import Csr
from veilrec.core.errors import BadInput
from veilrec.methods.news.ranker import NewsScorer, NewsUsers
from veilrec.models.federated_news import Interests
from veilrec.privacy.mechanisms.attention import decompose


def _scorer(name: str, *settings: str) -> NewsScorer:
    model: Any = build(name, settings).model()
    assert isinstance(model, NewsScorer)
    return model


def _histories() -> Csr:
    asked = split().test.impressions
    assert asked is not None
    rows = asked.histories.take(np.arange(12, dtype=np.int64))
    lengths = rows.lengths()
    return Csr(np.concatenate(([0], [0], np.cumsum(lengths))).astype(np.int64), rows.items)  # the first has none


def test_attention_and_reconstruction_are_the_model_s() -> None:
    scorer = _scorer("privaterec", "calibration=none", "cohort.size=10")
    users, histories, model = NewsUsers(scorer), _histories(), scorer.model
    assert isinstance(model, Interests)
    assert users.basis is not None
    assert users.interests is not None
    assert users.pad is not None
    attention = decompose(users.users_before_basis(histories).astype(np.float64), users.basis)
    np.testing.assert_allclose(attention @ users.interests, users.users(histories), atol=1e-5)
    width = int(histories.lengths().max())
    items, taken = np.zeros((len(histories), width), np.int64), np.zeros((len(histories), width), np.bool_)
    for row in range(len(histories)):
        clicks = histories.row(row)[-scorer.longest :]
        items[row, : len(clicks)], taken[row, : len(clicks)] = clicks, True
    padded = np.random.default_rng(1).random(taken.shape) < 0.5
    vectors = np.where((padded & taken)[..., np.newaxis], users.pad, users.news[items]).astype(np.float64)
    with torch.inference_mode():
        expected = model.padded_attention(
            scorer.states[torch.from_numpy(items)], torch.from_numpy(taken), torch.from_numpy(padded & taken)
        )
    np.testing.assert_allclose(decompose(users.users_in_slots(vectors, taken), users.basis), expected, atol=1e-5)


def test_a_model_without_basis_vectors_has_none() -> None:
    users = NewsUsers(_scorer("nrms"))
    assert users.basis is None
    assert users.interests is None
    assert users.pad is None
    assert users.users(_histories()).shape == (13, users.news.shape[1])
    assert len(users.news) == population().n_items
    with pytest.raises(BadInput, match="no basis vectors"):
        users.users_before_basis(_histories())
