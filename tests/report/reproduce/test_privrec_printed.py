"""PrivRec's two tables: whole, and impossible in every step of nDCG."""

from __future__ import annotations

from itertools import pairwise, product

from veilrec.evaluate.consistency import Impossible, impossible
from veilrec.report.reproduce.privrec_printed import CUTOFFS, DIGITS, FRAPPE, METHODS, MOVIELENS, TABLES, numbers


def wrong(row: tuple[str, str]) -> list[Impossible]:
    printed = numbers(TABLES[row])
    hits, ndcg = ({k: printed[f"{name}@{k}"].value for k in CUTOFFS} for name in ("hr", "ndcg"))
    return impossible(hits, ndcg, digits=DIGITS)


def test_both_tables_are_whole():
    assert set(TABLES) == set(product((MOVIELENS, FRAPPE), METHODS))
    lines = [numbers(line) for line in TABLES.values()]
    assert sum(map(len, lines)) == 80
    assert all(len(number.text.partition(".")[2]) == DIGITS for line in lines for number in line.values())


def test_some_numbers_of_the_paper():
    assert str(numbers(TABLES[MOVIELENS, "PrivRec"])["hr@10"]) == "0.160"
    assert str(numbers(TABLES[FRAPPE, "PrivRec-CEN"])["ndcg@30"]) == "0.628"
    assert str(numbers(TABLES[FRAPPE, "FCF"])["hr@10"]) == "0.506"


def test_no_step_of_ndcg_in_either_table_can_be():
    steps = [(row, step.before, step.k) for row in TABLES for step in wrong(row) if step.rule == "ndcg rises too much"]
    assert sorted(steps) == sorted((row, before, k) for row in TABLES for before, k in pairwise(CUTOFFS))
    assert len(steps) == 30


def test_beside_the_steps_one_figure_alone_is_wrong():
    others = {(row, step.rule, step.before, step.k) for row in TABLES for step in wrong(row)}
    others = {found for found in others if found[1] != "ndcg rises too much"}
    assert others == {
        ((FRAPPE, "FCF"), "hits fall", 5, 10),
        ((FRAPPE, "FCF"), "ndcg above hits", None, 10),  # the same figure: 0.506, which 0.606 would mend
    }
