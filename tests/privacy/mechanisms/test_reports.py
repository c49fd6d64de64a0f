"""Reports say what they should, as often as they should; a histogram counts no more of anybody than it covers."""

import numpy as np
import pytest
from scipy import stats

from veilrec.core.csr import Csr
from veilrec.privacy.mechanisms.clipping import BadUpdate
from veilrec.privacy.mechanisms.reports import ItemHistogram, PlainVotes, RandomisedReports, VoteReports, vote_sizes
from veilrec.privacy.mechanisms.responses import RandomisedResponse
from veilrec.privacy.randomness import FastSource, SeededSource

N_ITEMS, CLIENTS = 50, np.arange(400, dtype=np.int64)


def some_data(n=400, seed=0):
    generator = np.random.default_rng(seed)
    rows = [generator.choice(N_ITEMS, generator.integers(0, 12), replace=False) for _ in range(n)]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return Csr(offsets, np.concatenate(rows).astype(np.int32))


def randomised(epsilon=1.4):
    return RandomisedReports(RandomisedResponse(length=N_ITEMS, epsilon=epsilon, change="one bit"))


def histogram(max_items=3):
    return ItemHistogram(length=N_ITEMS, max_items=max_items, epsilon=2.0, delta=1e-6, adjacency="add-remove")


TRUTH = np.bincount(some_data().items, minlength=N_ITEMS)


@pytest.mark.parametrize("at_once", [True, False])
def test_reports_lie_as_often_as_they_should(at_once):
    """Each of 50 counts of 400 coins: a z-score above 5 comes once in 30,000 runs."""
    mechanism = randomised()
    if at_once:
        counts = mechanism.count(some_data(), CLIENTS, seed=1, period=0)
    else:
        counts = mechanism.count_each(
            some_data(), CLIENTS, lambda client: SeededSource(7, client), lambda client: SeededSource(8, client)
        )
    flip = 1.0 - mechanism.keep_probability
    expected = TRUTH * (1 - flip) + (400 - TRUTH) * flip
    assert np.all(np.abs(counts - expected) < 5 * np.sqrt(400 * flip * (1 - flip)))
    assert not np.array_equal(counts, TRUTH)


@pytest.mark.parametrize("mechanism", [randomised(), histogram()])
def test_a_simulated_report_depends_on_client_and_period_alone(mechanism):
    data = some_data()
    whole = mechanism.count(data, CLIENTS, seed=1, period=2)
    halves = [mechanism.count(data.take(part), part, seed=1, period=2) for part in (CLIENTS[:150], CLIENTS[150:])]
    assert np.array_equal(whole, sum(halves))
    assert not np.array_equal(whole, mechanism.count(data, CLIENTS, seed=1, period=3))


@pytest.mark.parametrize("most", [3, 50])
def test_a_histogram_counts_at_most_so_many_items_of_a_client(most):
    data, mechanism = some_data(), histogram(most)
    at_once = mechanism.count(data, CLIENTS, seed=1, period=0)
    each = mechanism.count_each(
        data, CLIENTS, lambda client: SeededSource(7, client), lambda client: SeededSource(8, client)
    )
    for counts in (at_once, each):
        assert counts.sum() == np.minimum(data.lengths(), most).sum()
        assert np.all(counts <= TRUTH)
    assert (most < 12) or np.array_equal(at_once, TRUTH)


def test_which_items_a_client_reports_is_chance_and_too_many_are_refused():
    # 500 reports of 2 of 10 items: a z-score above 5 comes once in 100,000 runs.
    own = np.zeros(N_ITEMS, np.bool_)
    own[:10] = True
    told = sum(histogram(2).report(own, SeededSource(seed)).value.astype(int) for seed in range(500))
    assert np.all(np.abs(told[:10] - 100) < 5 * np.sqrt(500 * 0.2 * 0.8))
    assert told[10:].sum() == 0
    told = np.zeros(N_ITEMS, np.bool_)
    told[:4] = True
    with pytest.raises(BadUpdate, match="names 4 items: this one takes at most 3"):
        histogram().check(told)
    randomised().check(told)


@pytest.mark.parametrize("source", [SeededSource(1), FastSource(1, one_generator=True)])
def test_every_count_and_every_sum_has_its_noise(source):
    wide = ItemHistogram(length=20_000, max_items=100, epsilon=2.0, delta=1e-6, adjacency="add-remove")
    assert wide.sigma == pytest.approx(22.305, rel=1e-3)  # privacy-math, section 6
    noise = wide.protect(np.full(20_000, 7), source) - 7.0
    assert stats.kstest(noise / wide.sigma, "norm").pvalue > 1e-6
    assert np.array_equal(randomised().protect(TRUTH, source), TRUTH)
    # A p-value below 1e-6 comes once in a million runs.
    wide = votes(20_000)
    noise = wide.protect(np.full(20_000, 7 * 2**24), source) - 7.0
    assert stats.kstest(noise / wide.sigma, "norm").pvalue > 1e-6
    exact = PlainVotes(length=20_000).protect(np.full(20_000, 7 * 2**24), source)
    assert np.array_equal(exact, np.full(20_000, 7.0))


def votes(length=N_ITEMS, epsilon=1.0):
    return VoteReports(length=length, epsilon=epsilon, delta=1e-6, adjacency="add-remove")


def test_all_votes_of_a_person_are_at_most_one_exactly():
    sizes = vote_sizes(20_000)
    n = np.arange(20_001)
    assert np.all(n * sizes**2 <= 2**48)
    assert np.allclose(sizes[1:] * votes().step, n[1:] ** -0.5, atol=2.0**-24)
    assert sizes[0] == 0


def test_votes_are_the_same_at_once_and_each_by_itself_and_an_item_counts_once():
    data, mechanism = some_data(), votes()
    at_once = mechanism.count(data, CLIENTS, seed=1, period=0)
    each = mechanism.count_each(
        data, CLIENTS, lambda client: SeededSource(7, client), lambda client: SeededSource(8, client)
    )
    assert np.array_equal(at_once, each)
    halves = [mechanism.count(data.take(part), part, seed=2, period=3) for part in (CLIENTS[150:], CLIENTS[:150])]
    assert np.array_equal(at_once, sum(halves))
    expected = np.zeros(N_ITEMS)
    for client in CLIENTS:
        row = data.row(client)
        expected[row] += 1.0 / np.sqrt(max(len(row), 1))
    assert np.allclose(at_once * mechanism.step, expected, atol=1e-4)
    twice = Csr(np.array([0, 3]), np.array([4, 4, 7], np.int32))
    counts = votes().count(twice, np.array([0]), seed=0, period=0)
    own = np.zeros(N_ITEMS, np.bool_)
    own[[4, 7]] = True
    assert np.array_equal(counts, votes().weigh(votes().report(own, SeededSource(1)).value))
