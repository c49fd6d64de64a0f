"""Keyed draws. Statistical tests use fixed seeds; each states how often a correct generator would fail it."""

import itertools

import numpy as np
from scipy import stats

from veilrec.core import rng

ALMOST_NEVER = 1e-6  # false-alarm rate of every statistical test here


def test_known_words_of_splitmix64():
    # The first three outputs of splitmix64 from state 0; published with the reference generator by S. Vigna.
    words = [rng.word(np.uint64(0), counter) for counter in range(3)]
    assert words == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_words_of_neighbouring_streams_do_not_overlap():
    starts = [
        rng.stream(1, purpose, round_, client) for purpose in (1, 2) for round_ in range(5) for client in range(20)
    ]
    words = {rng.word(np.uint64(start), counter) for start in starts for counter in range(200)}
    assert len(words) == len(starts) * 200


def test_draws_depend_on_every_part_of_the_key_and_on_nobody_else():
    clients = np.arange(50)
    together = rng.normals(3, rng.PRIVATE_STATE, 2, clients, 6)
    backwards = rng.normals(3, rng.PRIVATE_STATE, 2, clients[::-1], 6)[::-1]
    alone = np.concatenate([rng.normals(3, rng.PRIVATE_STATE, 2, clients[d : d + 1], 6) for d in clients])
    assert np.array_equal(together, backwards)
    assert np.array_equal(together, alone)
    assert np.array_equal(rng.uniforms(3, 1, 0, clients, 9)[:, :4], rng.uniforms(3, 1, 0, clients, 4))
    client = np.array([5])
    base = rng.uniforms(1, 2, 3, client, 4)
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert not np.array_equal(base, rng.uniforms(*other, client, 4))
    assert not np.array_equal(base, rng.uniforms(1, 2, 3, np.array([6]), 4))


def test_draws_follow_their_law_across_and_along_clients():
    uniforms = rng.uniforms(11, rng.AVAILABILITY, 0, np.arange(2_000), 50)
    for values, law in ((uniforms, "uniform"), (rng.normals(12, rng.MODEL, 0, np.arange(2_000), 50), "norm")):
        for sample in (values.ravel(), values[:, 0], values[0]):
            assert stats.kstest(sample, law).pvalue > ALMOST_NEVER
        assert stats.pearsonr(values[:-1, 0], values[1:, 0]).pvalue > ALMOST_NEVER
        assert stats.pearsonr(values[:, 0], values[:, 1]).pvalue > ALMOST_NEVER
    assert rng._single_unit(np.uint64(2**64 - 1)) < np.float32(1.0)
    assert rng._single_unit(np.uint64(0)) == np.float32(0.0)


def test_below_is_uniform_within_its_stated_bias():
    # Exactly: number n is hit by the upper halves h with n <= h * bound / 2^32 < n + 1.
    for bound in (1, 2, 3, 7, 1_682, 65_537, 1_000_000):
        edges = [-(-(n << 32) // bound) for n in (0, 1, bound // 2, bound // 2 + 1, bound - 1, bound)]
        for low, high in itertools.pairwise(sorted(set(edges))):
            first, last = (rng.below(np.uint64(low << 32), bound), rng.below(np.uint64((high - 1) << 32), bound))
            assert first == low * bound >> 32
            assert last == (high - 1) * bound >> 32
        for n in {0, bound // 2, bound - 1}:
            hits = -(-((n + 1) << 32) // bound) - -(-(n << 32) // bound)
            assert abs(hits * bound / 2**32 - 1.0) <= bound / 2**32
    assert rng.below(np.uint64(2**64 - 1), 10) == 9
    start = np.uint64(rng.stream(4, rng.LEARNING, 0, 0))
    counts = np.bincount([rng.below(np.uint64(rng.word(start, c)), 13) for c in range(26_000)], minlength=13)
    assert stats.chisquare(counts).pvalue > ALMOST_NEVER
