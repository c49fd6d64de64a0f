"""Sub-models: items are numbered anew and back, and reports say what they should with the chance they should."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec._csr import Csr
from veilrec.device.submodel import Reporter, few_items, narrow, places, simulated_histogram, simulated_reports
from veilrec.privacy.mechanisms.bits import RandomisedResponse
from veilrec.privacy.mechanisms.memoised import MemoryStore
from veilrec.privacy.randomness import SeededSource
from veilrec.wire import bits

N_ITEMS = 50


def some_data(n: int = 400, seed: int = 0) -> Csr:
    generator = np.random.default_rng(seed)
    rows = [generator.choice(N_ITEMS, generator.integers(0, 12), replace=False) for _ in range(n)]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return Csr(offsets, np.concatenate(rows).astype(np.int32))


def test_items_outside_are_left_out_and_the_others_come_back() -> None:
    data, rows = some_data(), np.array([3, 7, 20, 49], np.int32)
    inside = narrow(data, places(rows, N_ITEMS))
    for device in range(len(data)):
        assert rows[inside.row(device)].tolist() == [i for i in data.row(device).tolist() if i in rows]


def test_simulated_reports_lie_as_often_as_they_should() -> None:
    """Each of 50 counts of 400 coins: a z-score above 5 comes once in 30,000 runs."""
    data, devices = some_data(), np.arange(400, dtype=np.int64)
    truth = np.bincount(data.items, minlength=N_ITEMS)
    flip = 0.2
    counts = simulated_reports(data, devices, N_ITEMS, flip, seed=1, period=0)
    expected = truth * (1 - flip) + (400 - truth) * flip
    assert np.all(np.abs(counts - expected) < 5 * np.sqrt(400 * flip * (1 - flip)))
    assert not np.array_equal(counts, truth)
    assert np.array_equal(simulated_reports(data, devices, N_ITEMS, 0.0, seed=1, period=0), truth)


def test_a_simulated_report_depends_on_device_and_period_alone() -> None:
    data, devices = some_data(), np.arange(400, dtype=np.int64)
    whole = simulated_reports(data, devices, N_ITEMS, 0.3, seed=1, period=2)
    halves = [
        simulated_reports(data.take(part), part, N_ITEMS, 0.3, seed=1, period=2)
        for part in (devices[:150], devices[150:])
    ]
    assert np.array_equal(whole, sum(halves))
    assert not np.array_equal(whole, simulated_reports(data, devices, N_ITEMS, 0.3, seed=1, period=3))


def test_a_histogram_counts_at_most_so_many_items_of_a_device() -> None:
    data, devices = some_data(), np.arange(400, dtype=np.int64)
    truth = np.bincount(data.items, minlength=N_ITEMS)
    assert np.array_equal(simulated_histogram(data, devices, N_ITEMS, 50, seed=1), truth)
    few = simulated_histogram(data, devices, N_ITEMS, 3, seed=1)
    assert few.sum() == np.minimum(data.lengths(), 3).sum()
    assert np.all(few <= truth)
    own = np.arange(20, dtype=np.int32)
    assert len(set(few_items(own, 5, SeededSource(1)).tolist())) == 5
    assert few_items(own, 20, SeededSource(1)) is own


@pytest.mark.parametrize("fresh", [False, True])
def test_a_real_report_is_drawn_once_per_period(fresh: bool) -> None:
    mechanism = RandomisedResponse(length=N_ITEMS, epsilon=1.0, change="one bit")
    reporter, own = Reporter(mechanism, MemoryStore()), np.array([1, 5], np.int32)
    source = SeededSource(7)
    messages = [reporter.report(own, source, period=number if fresh else 0, round_number=number) for number in range(3)]
    told = [bits.decode(message, N_ITEMS, number) for number, message in enumerate(messages)]
    assert all(len(message) == bits.size(N_ITEMS) == 12 + 7 for message in messages)
    same = [np.array_equal(told[0], other) for other in told[1:]]
    assert same == [not fresh, not fresh]
