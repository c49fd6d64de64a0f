"""The training gradient in miniature (privacy-math.md, section 2)."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec.audit.auditor import ToyTraining
from veilrec.privacy.randomness import SeededSource


@pytest.mark.parametrize(("epsilon", "padding", "rate"), [(0.01, 0.0, 0.81), (0.01, 0.5, 0.41), (10.0, 0.5, 0.48)])
def test_gradient_row_of_section_2(epsilon: float, padding: float, rate: float) -> None:
    # Roughly (1 - p) P[at least two active coordinates]; section 2 measured .85, .44 and .51 on a toy of its own.
    sigma = {0.01: 50.0, 10.0: 0.2}[epsilon]
    training = ToyTraining(clip_norm=0.4, sigma=sigma, padding=padding)
    moved = training.word_row_moves(0, 20_000, SeededSource(1))
    assert moved.mean() == pytest.approx(rate, abs=0.06)
    assert not training.word_row_moves(1, 20_000, SeededSource(2)).any()


def test_gradient_of_the_toy_is_the_derivative_of_its_loss() -> None:
    training = ToyTraining(clip_norm=0.4, sigma=1e-9, padding=0.0)
    user = training.embedding[training.history].mean(axis=(0, 1))

    def loss(at: np.ndarray) -> float:
        logits = training.basis @ at
        attention = np.exp(logits - logits.max())
        attention /= attention.sum()
        clipped = attention * min(1.0, training.clip_norm / np.linalg.norm(attention))
        scores = clipped / clipped.sum() @ training.basis @ training.embedding[training.candidates].mean(axis=1).T
        return float(np.log(np.exp(scores).sum()) - scores[0])

    numeric = np.array([(loss(user + step) - loss(user - step)) / 2e-5 for step in 1e-5 * np.eye(len(user))])
    exact = training._gradient_on_user(user[np.newaxis], SeededSource(0))[0]
    assert exact == pytest.approx(numeric, rel=1e-4, abs=1e-7)
