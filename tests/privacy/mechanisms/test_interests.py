from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.mechanisms.interests import EmbeddingNoise, InterestResponse, PooledInterest
from veilrec.privacy.randomness import SeededSource


def _pooled(**options: Any) -> PooledInterest:
    right: dict[str, Any] = {"projection": np.eye(5, 8), "clip_norm": 1.0, "slots": 50, "epsilon": 1.0, "delta": 1e-6}
    return PooledInterest(**right | options)


def test_pooling_of_section_1() -> None:
    pooled = _pooled()
    assert pooled.sensitivity.value == pytest.approx(0.04)
    assert pooled.sigma == pytest.approx(0.168987, rel=2e-5)  # the lattice costs 1e-5
    assert 5.974598 / pooled.sigma == pytest.approx(35.0, abs=0.5)
    assert _pooled(adjacency="add-remove").sigma == pytest.approx(0.168987 / 2.0, rel=2e-5)


def test_one_click_moves_the_pool_by_no_more_than_stated() -> None:
    generator = np.random.default_rng(1)
    pooled = _pooled(epsilon=1000.0, delta=0.5)  # hardly any noise
    history = 3.0 * generator.normal(size=(50, 8))
    source = SeededSource(1)
    base = pooled.release(history, source).value
    for _ in range(20):
        changed = history.copy()
        changed[7] = 100.0 * generator.normal(size=8)
        moved = pooled.release(changed, source).value - base
        assert np.linalg.norm(moved) <= 0.04 + 20.0 * pooled.sigma


def test_an_empty_history_is_answered_like_any_other() -> None:
    assert _pooled().release(np.empty((0, 8)), SeededSource(2)).value.shape == (5,)


@pytest.mark.parametrize(
    "wrong",
    [
        {"projection": 2.0 * np.eye(5, 8)},
        {"projection": np.full((5, 8), math.nan)},
        {"slots": 0},
        {"clip_norm": 0.0},
        {"epsilon": 0.0},
        {"delta": 0.0},
    ],
)
def test_bad_pooling_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        _pooled(**wrong)


def test_more_clicks_than_slots_are_refused() -> None:
    with pytest.raises(BadInput, match="at most 50"):
        _pooled().release(np.zeros((51, 8)), SeededSource(3))


def test_interest_response_tells_the_strongest_interest() -> None:
    attention = np.random.default_rng(4).dirichlet(np.ones(5), 100)
    told = InterestResponse(basis=5, epsilon=60.0).release(attention, SeededSource(4)).value
    np.testing.assert_array_equal(told, attention.argmax(axis=1))


def test_published_embedding_noise_is_sqrt_d_too_weak_section_0() -> None:
    published = EmbeddingNoise(
        dimension=400, clip_norm=0.001, epsilon=1.0, delta=0.0, noise="laplace", calibration="as-published"
    )
    assert epsilon_of(published.event(), 0.0) == pytest.approx(20.0)


def test_published_embedding_gaussian_divides_delta_by_a_padding_that_is_not_there() -> None:
    published = EmbeddingNoise(
        dimension=10, clip_norm=1.0, epsilon=1.0, delta=1e-6, published_pad_probability=0.5, calibration="as-published"
    )
    assert published.scale == pytest.approx(2.0 * math.sqrt(2.0 * math.log(1.25 * 0.5 / 1e-6)))


@pytest.mark.parametrize(
    "wrong", [{"clip_norm": 0.0}, {"dimension": 0}, {"epsilon": -1.0}, {"delta": 0.0}, {"noise": "none"}]
)
def test_bad_embedding_noise_is_refused(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"dimension": 4, "clip_norm": 1.0, "epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(BadInput, match=next(iter(wrong))):
        EmbeddingNoise(**right | wrong)


def test_laplace_embedding_noise_has_delta_0() -> None:
    with pytest.raises(BadInput, match="delta"):
        EmbeddingNoise(dimension=4, clip_norm=1.0, epsilon=1.0, delta=1e-6, noise="laplace")
