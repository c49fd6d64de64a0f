"""What is noise is left out, and what is not comes back as long as it was."""

from __future__ import annotations

import numpy as np

from veilrec.core.arrays import Csr
from veilrec.models.item_item import RIDGE, GramScorer, Scaling, Tastes, tastes_of

SIZE, SIGMA = 300, 2.0


def noise(seed: int) -> np.ndarray:
    return SIGMA * np.random.default_rng(seed).normal(size=(SIZE, SIZE))


def test_pure_noise_has_no_tastes() -> None:
    """Of 40 matrices: an eigenvalue beyond the margin comes about once in 25."""
    found = [tastes_of(noise(seed), sigma=SIGMA, people=1000).directions.shape[1] for seed in range(40)]
    assert sum(found) <= 8


def test_a_direction_is_found_and_as_long_as_it_was_beside_its_noise() -> None:
    generator = np.random.default_rng(0)
    direction = generator.normal(size=SIZE)
    direction /= np.linalg.norm(direction)
    strength, people = 300.0, 1000
    found = tastes_of(strength * np.outer(direction, direction) + noise(7), sigma=SIGMA, people=people)
    assert found.directions.shape[1] == 1
    # l - K s^2 / l, the nearest multiple, and the cosine of the angle: 1 - K s^2 / l^2, with s = sigma / sqrt(2).
    spread = SIZE * SIGMA**2 / 2.0
    nearest = strength - spread / strength
    expected = nearest / (nearest + RIDGE * people / SIZE)
    assert abs(found.gains[0] - expected) < 0.03
    assert abs((found.directions[:, 0] @ direction) ** 2 - (1.0 - spread / strength**2)) < 0.02


def test_items_beyond_the_matrix_are_ranked_by_popularity() -> None:
    popularity = np.array([5.0, 4.0, 1.0, 3.0, 0.5], np.float32)
    scaling = Scaling.of(popularity, 3, 0.1)
    assert scaling.top.tolist() == [0, 1, 3]
    nobody = Tastes(np.zeros((3, 0), np.float32), np.zeros(0, np.float32))
    scorer = GramScorer(popularity, scaling, nobody, Csr(np.array([0, 0, 2]), np.array([1, 4], np.int32)))
    scores = scorer.score_all(np.array([0, 1]))
    assert np.allclose(scores / scores[:, :1], popularity / popularity[0])
    some = scorer.score_some(np.array([1, 0]), np.array([[2, 0], [4, 1]], np.int32))
    assert np.allclose(some, [[scores[1, 2], scores[1, 0]], [scores[0, 4], scores[0, 1]]])


def test_popularity_below_the_noise_is_taken_for_the_noise() -> None:
    scaling = Scaling.of(np.array([-3.0, 0.2, 16.0], np.float32), 3, 1.0)
    assert np.allclose(scaling.scales, [1.0, 1.0, 0.5])
