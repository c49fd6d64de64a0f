"""What needs no training of PrivRec's paper: privacy-math.md, section 5, and its two tables of accuracy."""

from __future__ import annotations

import pytest

from veilrec.privacy.accounting.published import DELTAS, FRAPPE_TABLE, MOVIELENS_TABLE
from veilrec.report.reproduce.privrec_budgets import impossible_steps, poisson, privacy_losses
from veilrec.report.reproduce.privrec_printed import FRAPPE, METHODS, MOVIELENS

ROUNDING = 6e-4  # of vectors with four digits, from another grid of losses


@pytest.fixture(scope="module")
def losses():
    return privacy_losses()


@pytest.mark.parametrize("data", [MOVIELENS, FRAPPE])
def test_every_step_of_every_row_is_impossible_and_so_are_all_thirty(data):
    (grid,) = impossible_steps(data).grids
    assert [row[:2] for row in grid.rows] == [
        *((method, "3 of 3") for method in METHODS),
        ("Tables 1 and 2", "30 of 30"),
    ]


def test_which_steps_and_by_how_much():
    movielens, frappe = (
        {row[0]: row[2] for row in impossible_steps(data).grids[0].rows} for data in (MOVIELENS, FRAPPE)
    )
    # nDCG gains .137 less .106, where Hits gain .160 less .123, over log2(7), with half a digit for each of the four
    assert movielens["PrivRec"].startswith("@5 to @10: 0.0310, at most 0.0145; @10 to @20: ")
    assert "hits fall, @5 to @10: -0.0210" in frappe["FCF"]


def test_all_36_entries_as_printed_and_as_they_came_about(losses):
    rows = [row for grid in losses.grids for row in grid.rows]
    tables = MOVIELENS_TABLE | FRAPPE_TABLE
    assert [(row[0], row[1], row[2]) for row in rows] == [
        (f"{cohort} / {population}", f"{delta:g}", f"{printed:.4f}")
        for (population, cohort), line in tables.items()
        for delta, printed in zip(DELTAS, line, strict=True)
    ]
    assert len(rows) == 36
    assert all(float(row[3]) == pytest.approx(float(row[2]), abs=1e-3) for row in rows)
    assert all(float(row[6]) < float(row[4]) < float(row[3]) for row in rows)


@pytest.mark.parametrize(
    ("where", "fixed", "coin"),
    [
        ("5 / 4800", 0.2269, 0.1941),
        ("10 / 4800", 0.4758, 0.4084),
        ("20 / 4800", 0.9925, 0.8492),
        ("30 / 4800", 1.5244, 1.2978),
        ("2 / 760", 0.6099, 0.5234),
        ("8 / 760", 2.6545, 2.2426),
        ("15 / 760", 5.2349, 4.3822),
    ],
)
def test_what_holds_at_a_delta_of_a_millionth(losses, where, fixed, coin):
    (row,) = (row for grid in losses.grids for row in grid.rows if row[:2] == (where, "1e-06"))
    assert float(row[4]) == pytest.approx(fixed, abs=ROUNDING)
    assert float(row[6]) == pytest.approx(coin, abs=ROUNDING)
    assert row[5] == f"{float(row[2]) / float(row[4]):.1f}"


def test_the_curves_say_the_same(losses):
    curves = {curve.label: curve for curve in losses.curves}
    assert curves["Movielens, printed (replace-one)"].y == [line[1] for line in MOVIELENS_TABLE.values()]
    assert curves["Frappe, holds (add-remove, Poisson)"].y[-1] == poisson(760, 15, 1e-6)
    assert len(curves) == 6


def test_no_epsilon_without_its_terms(losses):
    for grid in losses.grids:
        assert "per user, whole run of 1000 rounds, trusting the server" in grid.title
        for column in (2, 4, 6):
            assert any(word in grid.head[column] for word in ("replace-one", "add-remove"))
            assert any(word in grid.head[column] for word in ("as published", "proven"))
