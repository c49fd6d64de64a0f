"""What rounds are about: by reports, by the released model, or by a public seed; the same after a restart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.core.plan import FullModelRounds
from veilrec.core.schema import Schema, Tensor
from veilrec.privacy.mechanisms.clipping import BadUpdate
from veilrec.privacy.mechanisms.reports import ItemHistogram, RandomisedReports
from veilrec.privacy.mechanisms.responses import RandomisedResponse
from veilrec.server.round_specs import (
    Ballot,
    MovedRows,
    ReportedItems,
    ReportThreshold,
    SeededDirections,
    SeededParts,
    Tally,
)
from veilrec.wire import messages
from veilrec.wire.messages import BadMessage

N_ITEMS = 30
SCHEMA = Schema((Tensor("items", (N_ITEMS, 4), True), Tensor("layer", (5, 4), False)))
KEEP = math.exp(2.0) / (1.0 + math.exp(2.0))


def tally(*counts: float, reports: int = 100) -> Tally:
    return Tally(np.array(counts, np.float64), reports)


def test_items_above_the_mean_or_above_a_given_threshold_of_equation_8() -> None:
    # privacy-math, section 6: epsilon 2, n = 1000
    told = tally(300, 100, reports=1000)
    assert ReportThreshold(keep_probability=KEEP).frequencies(told) == pytest.approx([0.237393, 0.0], abs=1e-6)
    assert ReportThreshold(keep_probability=KEEP, estimate=False).frequencies(told).tolist() == [0.3, 0.1]
    told = tally(90, 10, 50, 49)
    assert ReportThreshold().rows(told).tolist() == [0, 2]  # mean 0.4975
    assert ReportThreshold(threshold=0.2).rows(told).tolist() == [0, 2, 3]
    assert ReportThreshold(threshold=0.0).rows(told).tolist() == [0, 1, 2, 3]
    with pytest.raises(BadInput, match=r"threshold is 0.95: no item .* has frequency 0.9"):
        ReportThreshold(threshold=0.95).rows(tally(90, 10))
    items = ReportedItems(ReportThreshold())
    for nothing in (tally(0, 0, 0), tally(7, 7, 7), None):  # used equally often, or not reported: all are in
        assert items.next(3, {}, nothing).rows is None
    assert FullModelRounds().next(3, {}, None).number == 3
    parts = SeededParts(schema=SCHEMA, public_seed=4, entry_share=0.25, names=("layer",), rows_from=items)
    about = parts.next(0, {}, told)  # rows that come from elsewhere
    assert about.rows is not None
    assert about.rows.tolist() == [0, 2]
    assert dict(about.shares) == {"layer": 0.25}


def test_a_ballot_counts_good_reports_only() -> None:
    response = RandomisedResponse(length=3, epsilon=1.0, change="one bit")
    ballot = Ballot(RandomisedReports(response), 4)
    ballot.receive(messages.encode_report(np.array([True, False, True]), 4))
    ballot.receive(messages.encode_report(np.array([True, False, False]), 4))
    with pytest.raises(BadMessage):
        ballot.receive(messages.encode_report(np.array([True, True, True]), 5))
    assert ballot.reports == 2
    assert ballot.counts.tolist() == [2, 0, 1]
    few = Ballot(ItemHistogram(length=3, most_items=1, epsilon=1.0, delta=1e-6, adjacency="add-remove"), 4)
    with pytest.raises(BadUpdate, match="at most 1"):
        few.receive(messages.encode_report(np.array([True, False, True]), 4))
    assert (few.reports, few.counts.sum()) == (0, 0)


def test_moved_rows_are_in_and_the_rest_gets_its_chance() -> None:
    start = np.zeros((N_ITEMS, 4), np.float32)
    agenda = MovedRows(start, "items", 0.4, 1)
    weights = start.copy()
    weights[[2, 9]] = 1.0
    seen = set()
    for number in range(20):
        rows = agenda.next(number, {"items": weights}, None).rows
        assert rows is not None
        assert len(rows) == len(set(rows.tolist())) == 12
        assert {2, 9} <= set(rows.tolist())
        seen |= set(rows.tolist())
    assert seen == set(range(N_ITEMS))
    assert MovedRows(start, "items", 1.0, 1).next(0, {"items": weights}, None).rows is None


def test_seeded_parts_and_directions_are_public() -> None:
    agenda = SeededParts(schema=SCHEMA, public_seed=4, row_share=0.5, entry_share=0.25, names=("layer",))
    one, same, other = agenda.next(0, {}, None), agenda.next(0, {}, None), agenda.next(1, {}, None)
    assert one.rows is not None
    assert other.rows is not None
    assert len(one.rows) == 15
    assert np.array_equal(one.rows, same.rows)
    assert not np.array_equal(one.rows, other.rows)
    entries, later = one.entries("layer", 20), other.entries("layer", 20)
    assert entries is not None
    assert len(entries) == 5
    assert not np.array_equal(entries, later)
    assert one.entries("items", 120) is None
    basis = SeededDirections(rank=2, public_seed=1).next(0, {}, None).basis(4)
    assert basis is not None
    assert np.allclose(basis.T @ basis, np.eye(2), atol=1e-6)
