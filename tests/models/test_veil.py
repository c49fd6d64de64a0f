"""Kernels, recency, popularity and places of veil against what they are by hand."""

from dataclasses import replace

import numpy as np
import pytest

from veilrec.models import veil
from veilrec.models.veil import ALONE, Content, amounts_of, decays_of, estimated, placed, profiles

TABLE = np.array([[0, 0, 0], [0, 1, 0.5], [0, 0.5, 1]], np.float32)
TEXTS = np.array([[1, 0], [0.6, 0.8], [-1, 0], [0, 1]], np.float32)
CONTENT = Content(
    codes=np.array([[1, 2, 0, 1]], np.int32),
    tables=TABLE.ravel(),
    starts=np.array([0]),
    widths=np.array([3]),
    texts=TEXTS,
    kernels=np.array([[0, ALONE], [1, ALONE], [2, ALONE], [0, 1]], np.int32),
    scales=np.array([1, 1, 2, 1], np.float32),
    basis=np.eye(4, 2, dtype=np.float32),
)


def test_kernels_of_pairs():
    found = CONTENT.similar(np.array([0, 0, 0], np.int32), np.array([1, 2, 3], np.int32))
    assert found == pytest.approx(np.array([[0.5, 0.6, 2 * 0.216, 0.3], [0, -1, 0, 0], [1, 0, 0, 0]]), abs=1e-6)


def test_features_are_means_by_recency():
    history, decays = np.array([3, 2, 1, 0], np.int32), decays_of((1.0, 50.0))
    candidates = np.array([[0, 1], [2, 3]], np.int32)
    found = CONTENT.features(history, np.array([3, 0]), candidates, decays, 2)
    weights = np.stack([np.ones(2), decays])  # of items 1 and 2, the latest two before position 3: [back, scales]
    for place, item in enumerate((0, 1)):
        kernels = CONTENT.similar(np.full(2, item, np.int32), np.array([1, 2], np.int32))
        expected = (weights.T @ kernels) / weights.sum(axis=0)[:, np.newaxis]
        assert found[0, place].reshape(2, 4) == pytest.approx(expected, abs=1e-6)
    assert not found[1].any()  # nothing came before


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("at_once", [2, 4096])
def test_scores_are_features_by_weights(compiled, at_once, monkeypatch):
    monkeypatch.setattr(veil, "compiles", lambda: compiled)
    monkeypatch.setattr(veil, "_AT_ONCE", at_once)
    two_tables = replace(
        CONTENT,
        codes=np.array([[1, 2, 0, 1], [1, 1, 0, 0]], np.int32),
        tables=np.concatenate([TABLE.ravel(), np.array([0.25, 0.5, 0.5, 2.0], np.float32)]),
        starts=np.array([0, 9]),
        widths=np.array([3, 2]),
        kernels=np.array([[0, ALONE], [2, ALONE], [3, ALONE], [0, 1], [1, 2]], np.int32),  # texts are 2 and 3 here
        scales=np.array([1, 3, 2, 1, 0.5], np.float32),
    )
    history, candidates, decays = np.array([3, 2, 0, 1, 0], np.int32), np.arange(4, dtype=np.int32), decays_of((1, 50))
    weights = np.random.default_rng(3).standard_normal((2, 5)).astype(np.float32)
    for used in range(4):  # of the latest three at most
        described = two_tables.features(history, np.array([used]), candidates[np.newaxis], decays, 3)[0]
        context = history[:used][::-1]
        found = two_tables.scores(context, candidates, amounts_of(weights, used, decays))
        assert found == pytest.approx(described @ weights.ravel(), abs=1e-5) and found.any() == (used > 0)


def test_profiles_are_running_means():
    history, ends = np.array([0, 1, 3], np.int32), np.array([3, 0, 1, 3])
    found = profiles(history, ends, CONTENT.basis, np.array([0.5, 1.0], np.float32))
    assert found[0, :2] == pytest.approx([0.25 / 1.75, 0.5 / 1.75]) and found[0, 2:] == pytest.approx([1 / 3, 1 / 3])
    assert not found[1].any() and found[2] == pytest.approx([1, 0, 1, 0]) and np.array_equal(found[3], found[0])


def test_popularity_follows_votes_where_noise_is_small_and_content_where_it_is_large():
    generator = np.random.default_rng(0)
    kind = np.repeat([0.0, 1.0], 200)
    true = np.exp(2.0 + 2.0 * kind + 0.3 * generator.standard_normal(400))
    content = kind[:, np.newaxis].astype(np.float32)
    exact = estimated(true, 0.0, content)
    assert np.corrcoef(exact[:, 0], np.log(true))[0, 1] > 0.99
    votes = true + 30.0 * generator.standard_normal(400)
    noisy, blind = estimated(votes, 30.0, content), estimated(votes, 30.0, np.zeros((400, 0), np.float32))
    error, without = (np.mean((found[:, 0] - np.log(true)) ** 2) for found in (noisy, blind))
    assert error < 0.5 * without
    assert (noisy[:, 1] >= -1e-6).all()  # a vote more never makes an item less popular


def test_popularity_of_nothing_is_finite():
    assert np.isfinite(estimated(np.zeros(5), 3.0, np.zeros((5, 2), np.float32))).all()
    assert np.isfinite(estimated(np.array([-4.0, 1e7]), 0.5, np.zeros((2, 0), np.float32))).all()


N_ITEMS, DIRECTIONS = 400, 3


def made(noise, *, by_content=1.0):
    """Sums, votes, content, and what is true of items beyond content (of standard deviation 0.3)."""
    generator = np.random.default_rng(4)
    content = generator.standard_normal((N_ITEMS, 5)).astype(np.float32)
    beyond = 0.3 * generator.standard_normal((N_ITEMS, DIRECTIONS))
    votes = np.exp(generator.normal(3.0, 1.0, N_ITEMS))
    place = 0.4 + by_content * content @ generator.standard_normal((5, DIRECTIONS)) * 0.3 + beyond
    sums = votes[:, np.newaxis] * place + noise * generator.standard_normal((N_ITEMS, DIRECTIONS))
    return sums.astype(np.float32), votes, content, beyond


def agreement(found, true):
    return float(np.corrcoef(found.ravel(), true.ravel())[0, 1])


def test_what_is_beyond_content_is_found_where_noise_is_small():
    sums, votes, content, beyond = made(0.01)
    found = placed(sums, 0.01, votes, content)
    assert agreement(found.values, beyond) > 0.97 and found.values.std() == pytest.approx(1.0, abs=0.15)
    # What content says is not said again.
    assert np.abs(np.corrcoef(found.values[:, 0], content.T)[0, 1:]).max() < 0.15


def test_items_with_few_votes_keep_little_where_noise_is_large():
    sums, votes, content, beyond = made(20.0)
    found = placed(sums, 20.0, votes, content)
    many, few = votes > np.quantile(votes, 0.9), votes < np.quantile(votes, 0.5)
    assert np.abs(found.values[few]).mean() < 0.3 * np.abs(found.values[many]).mean()
    assert agreement(found.values[many], beyond[many]) > 0.5
    # Shrunk: closer to the truth than what is not, by far.
    unshrunk = sums / votes[:, np.newaxis] - found.expected
    error = ((0.3 * found.values - beyond) ** 2).mean()
    assert error < 0.2 * ((unshrunk - beyond) ** 2).mean() and error < 1.02 * (beyond**2).mean()


def test_noise_alone_says_nothing():
    generator = np.random.default_rng(1)
    votes = np.exp(generator.normal(2.0, 1.0, N_ITEMS))
    sums = (50.0 * generator.standard_normal((N_ITEMS, DIRECTIONS))).astype(np.float32)
    found = placed(sums, 50.0, votes, generator.standard_normal((N_ITEMS, 5)).astype(np.float32))
    assert np.abs(found.values).max() < 0.5  # in units of what is known of an item with many votes


def test_gains_are_how_far_a_sum_moves_a_value():
    sums, votes, content, _ = made(5.0)
    before = placed(sums, 5.0, votes, content)
    moved = sums.copy()
    moved[7, 1] += 0.5
    after = placed(moved, 5.0, votes, content)
    # One item of 400 hardly moves what is expected of all.
    assert after.values[7, 1] - before.values[7, 1] == pytest.approx(0.5 * before.gains[7, 1], rel=0.15)


def test_without_directions_there_is_nothing():
    found = placed(np.zeros((5, 0), np.float32), 1.0, np.ones(5), np.zeros((5, 2), np.float32))
    assert found.values.shape == found.gains.shape == found.expected.shape == (5, 0)
