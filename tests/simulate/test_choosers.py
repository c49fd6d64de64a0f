"""What rounds are about: asked for when it must be, the same after a restart, and counted once."""

from __future__ import annotations

import numpy as np
import pytest

from veilrec._csr import Csr
from veilrec.server.selection import Threshold
from veilrec.simulate.choosers import Choice, HistogramItems, MovedRows, ReportedItems, SeededBasis, SeededParts
from veilrec.updates import Schema, Tensor
from veilrec.wire import bits

N_ITEMS, DEVICES = 30, 200
SCHEMA = Schema((Tensor("items", (N_ITEMS, 4), True), Tensor("layer", (5, 4), False)))


def popular_first() -> Csr:
    generator = np.random.default_rng(0)
    chances = np.linspace(0.9, 0.01, N_ITEMS)
    rows = [np.flatnonzero(generator.random(N_ITEMS) < chances) for _ in range(DEVICES)]
    rows[5] = rows[5][:0]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return Csr(offsets, np.concatenate(rows).astype(np.int32))


def reported(*, reports: str = "everybody", fresh: bool = False, keep: float = 0.9) -> ReportedItems:
    threshold = Threshold(keep_probability=keep)
    return ReportedItems(popular_first(), N_ITEMS, threshold, 3, reports=reports, fresh=fresh)  # type: ignore[arg-type]


def choices(chooser: ReportedItems, rounds: int = 4) -> list[Choice]:
    cohorts = [np.random.default_rng(number).choice(DEVICES, 40, replace=False) for number in range(rounds)]
    return [chooser.choose(number, np.sort(cohort), {}) for number, cohort in enumerate(cohorts)]


@pytest.mark.parametrize(
    ("reports", "fresh", "asked"),
    [
        ("everybody", False, [199, 0, 0, 0]),
        ("everybody", True, [199] * 4),
        ("cohort", False, [40] * 4),
        ("cohort", True, [40] * 4),
    ],
)
def test_who_is_asked_and_when(reports: str, fresh: bool, asked: list[int]) -> None:
    made = choices(reported(reports=reports, fresh=fresh))
    assert [choice.report_bytes for choice in made] == [n * bits.size(N_ITEMS) for n in asked]
    rows = [choice.rows.tolist() for choice in made if choice.rows is not None]
    assert len(rows) == 4
    assert (rows[0] == rows[1] == rows[2]) == (reports == "everybody" and not fresh)
    assert all(set(range(8)) <= set(one) for one in rows[:1])  # the most used half has the most used items


def test_going_on_after_a_restart_asks_nobody_again_and_chooses_the_same() -> None:
    straight, resumed = reported(), reported()
    first = straight.choose(0, np.arange(3), {})
    later = resumed.choose(7, np.arange(3), {})
    assert later.report_bytes == 0
    assert first.rows is not None
    assert later.rows is not None
    assert np.array_equal(first.rows, later.rows)


def test_without_lies_the_items_are_those_above_the_mean() -> None:
    counts = np.bincount(popular_first().items, minlength=N_ITEMS)
    rows = reported(keep=1.0).choose(0, np.arange(3), {}).rows
    assert rows is not None
    assert rows.tolist() == np.flatnonzero(counts > counts.mean()).tolist()


def test_a_histogram_without_noise_chooses_the_same_and_with_noise_others() -> None:
    exact = HistogramItems(popular_first(), N_ITEMS, Threshold(), 3, most=N_ITEMS, sigma=0.0)
    counts = np.bincount(popular_first().items, minlength=N_ITEMS)
    assert exact.rows.tolist() == np.flatnonzero(counts > counts.mean()).tolist()
    noisy = HistogramItems(popular_first(), N_ITEMS, Threshold(), 3, most=N_ITEMS, sigma=1000.0)
    assert noisy.rows.tolist() != exact.rows.tolist()
    assert [exact.choose(n, np.arange(2), {}).report_bytes for n in (0, 1)] == [199 * bits.size(N_ITEMS), 0]


def test_moved_rows_are_in_and_the_rest_gets_its_chance() -> None:
    start = np.zeros((N_ITEMS, 4), np.float32)
    chooser = MovedRows(start, "items", 0.4, 1)
    weights = start.copy()
    weights[[2, 9]] = 1.0
    seen = set()
    for number in range(20):
        rows = chooser.choose(number, np.arange(2), {"items": weights}).rows
        assert rows is not None
        assert len(rows) == len(set(rows.tolist())) == 12
        assert {2, 9} <= set(rows.tolist())
        seen |= set(rows.tolist())
    assert seen == set(range(N_ITEMS))
    assert MovedRows(start, "items", 1.0, 1).choose(0, np.arange(2), {"items": weights}).rows is None


def test_seeded_parts_and_bases_are_public() -> None:
    first, again = (SeededParts(SCHEMA, 4, row_share=0.5, kept_share=0.25, names=("layer",)) for _ in range(2))
    one, same, other = (
        first.choose(0, np.arange(2), {}),
        again.choose(0, np.arange(9), {}),
        first.choose(1, np.arange(2), {}),
    )
    assert one.rows is not None
    assert same.rows is not None
    assert other.rows is not None
    assert len(one.rows) == 15
    assert len(one.kept["layer"]) == 5
    assert np.array_equal(one.rows, same.rows)
    assert np.array_equal(one.kept["layer"], same.kept["layer"])
    assert not np.array_equal(one.rows, other.rows)
    basis = SeededBasis(4, 2, 1).choose(0, np.arange(2), {}).basis
    assert basis is not None
    assert basis.shape == (4, 2)
