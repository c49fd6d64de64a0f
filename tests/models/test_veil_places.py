"""Places beyond content, estimated from sums, against the places that sums were made of."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec.core.arrays import Doubles, Floats
from veilrec.models.veil import placed

N_ITEMS, DIRECTIONS = 400, 3


def made(noise: float, *, by_content: float = 1.0) -> tuple[Floats, Doubles, Floats, Doubles]:
    """Sums, votes, content, and what is true of items beyond content (of standard deviation 0.3)."""
    generator = np.random.default_rng(4)
    content = generator.standard_normal((N_ITEMS, 5)).astype(np.float32)
    beyond = 0.3 * generator.standard_normal((N_ITEMS, DIRECTIONS))
    votes = np.exp(generator.normal(3.0, 1.0, N_ITEMS))
    place = 0.4 + by_content * content @ generator.standard_normal((5, DIRECTIONS)) * 0.3 + beyond
    sums = votes[:, np.newaxis] * place + noise * generator.standard_normal((N_ITEMS, DIRECTIONS))
    return sums.astype(np.float32), votes, content, beyond


def agreement(found: Floats, true: Doubles) -> float:
    return float(np.corrcoef(found.ravel(), true.ravel())[0, 1])


def test_what_is_beyond_content_is_found_where_noise_is_small() -> None:
    sums, votes, content, beyond = made(0.01)
    found = placed(sums, 0.01, votes, content)
    assert agreement(found.values, beyond) > 0.97
    assert found.values.std() == pytest.approx(1.0, abs=0.15)
    # What content says is not said again.
    assert np.abs(np.corrcoef(found.values[:, 0], content.T)[0, 1:]).max() < 0.15


def test_items_with_few_votes_keep_little_where_noise_is_large() -> None:
    sums, votes, content, beyond = made(20.0)
    found = placed(sums, 20.0, votes, content)
    many, few = votes > np.quantile(votes, 0.9), votes < np.quantile(votes, 0.5)
    assert np.abs(found.values[few]).mean() < 0.3 * np.abs(found.values[many]).mean()
    assert agreement(found.values[many], beyond[many]) > 0.5
    # Shrunk: closer to the truth than what is not, by far.
    unshrunk = sums / votes[:, np.newaxis] - found.expected
    error = ((0.3 * found.values - beyond) ** 2).mean()
    assert error < 0.2 * ((unshrunk - beyond) ** 2).mean()
    assert error < 1.02 * (beyond**2).mean()


def test_noise_alone_says_nothing() -> None:
    generator = np.random.default_rng(1)
    votes = np.exp(generator.normal(2.0, 1.0, N_ITEMS))
    sums = (50.0 * generator.standard_normal((N_ITEMS, DIRECTIONS))).astype(np.float32)
    found = placed(sums, 50.0, votes, generator.standard_normal((N_ITEMS, 5)).astype(np.float32))
    assert np.abs(found.values).max() < 0.5  # in units of what is known of an item with many votes


def test_gains_are_how_far_a_sum_moves_a_value() -> None:
    sums, votes, content, _ = made(5.0)
    before = placed(sums, 5.0, votes, content)
    moved = sums.copy()
    moved[7, 1] += 0.5
    after = placed(moved, 5.0, votes, content)
    # One item of 400 hardly moves what is expected of all.
    assert after.values[7, 1] - before.values[7, 1] == pytest.approx(0.5 * before.gains[7, 1], rel=0.15)


def test_without_directions_there_is_nothing() -> None:
    found = placed(np.zeros((5, 0), np.float32), 1.0, np.ones(5), np.zeros((5, 2), np.float32))
    assert found.values.shape == found.gains.shape == found.expected.shape == (5, 0)
