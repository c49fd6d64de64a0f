import math

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.privacy.accounting.accountant import epsilon_of
from veilrec.privacy.mechanisms.interests import EmbeddingNoise, InterestResponse, PooledInterest
from veilrec.privacy.randomness import SeededSource


def _pooled(**options):
    right = {"projection": np.eye(5, 8), "clip_norm": 1.0, "slots": 50, "epsilon": 1.0, "delta": 1e-6}
    return PooledInterest(**right | options)


def test_pooling_of_section_1_moves_with_one_click_by_no_more_than_stated():
    pooled = _pooled()
    assert pooled.sensitivity.value == pytest.approx(0.04)
    assert pooled.sigma == pytest.approx(0.168987, rel=2e-5)  # the lattice costs 1e-5
    assert 5.974598 / pooled.sigma == pytest.approx(35.0, abs=0.5)
    assert _pooled(adjacency="add-remove").sigma == pytest.approx(0.168987 / 2.0, rel=2e-5)
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


def test_interest_response_tells_the_strongest_interest():
    attention = np.random.default_rng(4).dirichlet(np.ones(5), 100)
    told = InterestResponse(basis=5, epsilon=60.0).release(attention, SeededSource(4)).value
    np.testing.assert_array_equal(told, attention.argmax(axis=1))


def test_embedding_noise_as_published_section_0():
    published = {"epsilon": 1.0, "calibration": "as-published"}
    laplace = EmbeddingNoise(dimension=400, clip_norm=0.001, delta=0.0, noise="laplace", **published)
    assert epsilon_of(laplace.event(), 0.0) == pytest.approx(20.0)  # sqrt(d) too weak
    padded = EmbeddingNoise(dimension=10, clip_norm=1.0, delta=1e-6, published_pad_probability=0.5, **published)
    assert padded.scale == pytest.approx(2.0 * math.sqrt(2.0 * math.log(1.25 * 0.5 / 1e-6)))  # of a padding not there


def test_what_makes_no_sense_is_refused():
    pooled = [
        *({"projection": matrix} for matrix in (2.0 * np.eye(5, 8), np.full((5, 8), math.nan))),
        *({name: 0} for name in ("slots", "clip_norm", "epsilon", "delta")),
    ]
    embedding = [{"clip_norm": 0.0}, {"dimension": 0}, {"epsilon": -1.0}, {"delta": 0.0}, {"noise": "no"}]
    right = {"dimension": 4, "clip_norm": 1.0, "epsilon": 1.0, "delta": 1e-6}
    for make, wrongs in ((_pooled, pooled), (lambda **changed: EmbeddingNoise(**right | changed), embedding)):
        for wrong in wrongs:
            with pytest.raises(BadInput, match=next(iter(wrong))):
                make(**wrong)
    with pytest.raises(BadInput, match="delta"):
        EmbeddingNoise(**right | {"noise": "laplace"})
    with pytest.raises(BadInput, match="at most 50"):
        _pooled().release(np.zeros((51, 8)), SeededSource(3))
