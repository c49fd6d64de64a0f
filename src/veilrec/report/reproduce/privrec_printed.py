"""Every number of the two tables of accuracy that Wang et al. print of PrivRec, digit by digit.

No ranking has these figures: in all ten rows nDCG gains more from each k to the next than its Hits allow (see
`veilrec.evaluate.consistency`), and FCF has fewer Hits at 10 than at 5 on Frappe.
"""

from __future__ import annotations

from veilrec.report.reproduce.experiment import Printed

PAPER = "Wang et al. 2021, Fast-adapting and Privacy-preserving Federated Recommender System"
CUTOFFS = (5, 10, 20, 30)
DIGITS = 3  # behind the point
METHODS = ("FOFL-SELF", "NN-SELF", "FCF", "PrivRec", "PrivRec-CEN")
MOVIELENS, FRAPPE = "Movielens", "Frappe"

# Table 1 is Movielens-1M, Table 2 Frappe: Hits@k at 5, 10, 20, 30, then nDCG@k.
TABLES = {
    (MOVIELENS, "FOFL-SELF"): "0.118 0.152 0.195 0.241 0.101 0.130 0.169 0.207",
    (MOVIELENS, "NN-SELF"): "0.109 0.148 0.190 0.235 0.098 0.124 0.162 0.201",
    (MOVIELENS, "FCF"): "0.092 0.140 0.186 0.228 0.088 0.118 0.155 0.195",
    (MOVIELENS, "PrivRec"): "0.123 0.160 0.205 0.249 0.106 0.137 0.174 0.210",
    (MOVIELENS, "PrivRec-CEN"): "0.127 0.163 0.207 0.252 0.109 0.138 0.178 0.212",
    (FRAPPE, "FOFL-SELF"): "0.536 0.618 0.655 0.682 0.479 0.554 0.600 0.621",
    (FRAPPE, "NN-SELF"): "0.531 0.613 0.651 0.677 0.472 0.550 0.595 0.616",
    (FRAPPE, "FCF"): "0.527 0.506 0.646 0.671 0.469 0.544 0.591 0.612",
    (FRAPPE, "PrivRec"): "0.541 0.624 0.661 0.688 0.483 0.560 0.607 0.626",
    (FRAPPE, "PrivRec-CEN"): "0.543 0.628 0.665 0.690 0.484 0.563 0.608 0.628",
}


def numbers(line: str) -> dict[str, Printed]:
    """A line of a table by metric."""
    names = [f"{metric}@{k}" for metric in ("hr", "ndcg") for k in CUTOFFS]
    return {name: Printed(text) for name, text in zip(names, line.split(), strict=True)}
