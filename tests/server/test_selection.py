"""Which items the sub-model has: eq. 8 and the threshold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from veilrec.errors import BadInput
from veilrec.server.selection import Ballot, Threshold
from veilrec.wire import bits
from veilrec.wire.codec import BadMessage

KEEP = math.exp(2.0) / (1.0 + math.exp(2.0))


def test_frequencies_are_those_of_equation_8() -> None:
    # privacy-math, section 6: epsilon 2, n = 1000
    estimated = Threshold(keep_probability=KEEP).frequencies(np.array([300, 100]), 1000)
    assert estimated == pytest.approx([0.237393, 0.0], abs=1e-6)
    raw = Threshold(keep_probability=KEEP, estimate=False).frequencies(np.array([300, 100]), 1000)
    assert raw.tolist() == [0.3, 0.1]


def test_items_above_the_mean_or_above_a_given_threshold() -> None:
    counts = np.array([90, 10, 50, 49])
    assert Threshold().rows(counts, 100).tolist() == [0, 2]  # mean 0.4975
    assert Threshold(threshold=0.2).rows(counts, 100).tolist() == [0, 2, 3]
    assert Threshold(threshold=0.0).rows(counts, 100).tolist() == [0, 1, 2, 3]


def test_a_threshold_that_nobody_reaches_is_refused_with_what_would_do() -> None:
    with pytest.raises(BadInput, match=r"threshold is 0.95: no item .* has frequency 0.9"):
        Threshold(threshold=0.95).rows(np.array([90, 10]), 100)


@pytest.mark.parametrize("counts", [[0, 0, 0], [7, 7, 7]])
def test_items_used_equally_often_are_all_in(counts: list[int]) -> None:
    assert Threshold().rows(np.array(counts), 10).tolist() == [0, 1, 2]


def test_a_ballot_counts_good_reports_only() -> None:
    ballot = Ballot(3, 4)
    ballot.receive(bits.encode(np.array([True, False, True]), 4))
    ballot.receive(bits.encode(np.array([True, False, False]), 4))
    with pytest.raises(BadMessage):
        ballot.receive(bits.encode(np.array([True, True, True]), 5))
    assert ballot.reports == 2
    assert ballot.counts.tolist() == [2, 0, 1]
