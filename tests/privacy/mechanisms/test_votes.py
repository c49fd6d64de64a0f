"""One vote a person: its norm is at most one exactly, in whichever order votes come, and every sum has its noise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests.privacy.mechanisms.test_reports import DEVICES, N_ITEMS, some_data
from veilrec.core.arrays import Csr
from veilrec.privacy.events import NonPrivateEvent
from veilrec.privacy.mechanisms.reports import PlainVotes, VoteReports, vote_sizes
from veilrec.privacy.randomness import FastSource, SeededSource


def votes(length: int = N_ITEMS, epsilon: float = 1.0) -> VoteReports:
    return VoteReports(length=length, epsilon=epsilon, delta=1e-6, adjacency="add-remove")


def test_all_votes_of_a_person_are_at_most_one_exactly() -> None:
    sizes = vote_sizes(20_000)
    n = np.arange(20_001)
    assert np.all(n * sizes**2 <= 2**48)
    assert np.allclose(sizes[1:] * votes().step, n[1:] ** -0.5, atol=2.0**-24)
    assert sizes[0] == 0


def test_at_once_and_each_by_itself_are_the_same() -> None:
    data, mechanism = some_data(), votes()
    at_once = mechanism.count(data, DEVICES, seed=1, period=0)
    each = mechanism.count_each(data, DEVICES, lambda device: SeededSource(7, device))
    assert np.array_equal(at_once, each)
    halves = [mechanism.count(data.take(part), part, seed=2, period=3) for part in (DEVICES[150:], DEVICES[:150])]
    assert np.array_equal(at_once, sum(halves))
    expected = np.zeros(N_ITEMS)
    for device in DEVICES:
        row = data.row(device)
        expected[row] += 1.0 / np.sqrt(max(len(row), 1))
    assert np.allclose(at_once * mechanism.step, expected, atol=1e-4)


def test_an_item_that_is_there_twice_is_told_once() -> None:
    twice = Csr(np.array([0, 3]), np.array([4, 4, 7], np.int32))
    counts = votes().count(twice, np.array([0]), seed=0, period=0)
    own = np.zeros(N_ITEMS, np.bool_)
    own[[4, 7]] = True
    assert np.array_equal(counts, votes().weigh(votes().report(own, SeededSource(1)).value))


@pytest.mark.parametrize("source", [SeededSource(1), FastSource(1, one_generator=True)])
def test_every_sum_has_its_noise(source: SeededSource | FastSource) -> None:
    """A p-value below 1e-6 comes once in a million runs."""
    wide = votes(20_000)
    noise = wide.protect(np.full(20_000, 7 * 2**24), source) - 7.0
    assert stats.kstest(noise / wide.sigma, "norm").pvalue > 1e-6
    exact = PlainVotes(length=20_000).protect(np.full(20_000, 7 * 2**24), source)
    assert np.array_equal(exact, np.full(20_000, 7.0))


@pytest.mark.parametrize("mechanism", VoteReports.examples())
def test_the_worst_pair_is_as_far_apart_as_is_said(mechanism: VoteReports) -> None:
    first, second = (mechanism.weigh(people).sum(axis=0) * mechanism.step for people in mechanism.worst_pair())
    assert np.linalg.norm(first - second) == pytest.approx(mechanism.sensitivity.value)
    generator = np.random.default_rng(0)
    others = generator.random((500, 2, mechanism.length)) < generator.random((500, 2, 1))
    apart = np.linalg.norm(np.diff(mechanism.weigh(others) * mechanism.step, axis=1)[:, 0], axis=1)
    assert mechanism.adjacency == "add-remove" or apart.max() <= mechanism.sensitivity.value
    assert mechanism.delta(1.0) <= 1e-6


def test_votes_without_noise_promise_nothing() -> None:
    assert isinstance(PlainVotes(length=3).event(), NonPrivateEvent)
    assert PlainVotes(length=3).delta(100.0) == 1.0
