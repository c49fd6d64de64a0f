"""Experiments small enough to run in a second or two."""

from __future__ import annotations

from dataclasses import replace

from veilrec.report.reproduce.experiment import Experiment, Panel, Printed, Quick, Row

DATA = "synthetic-ratings:users=150,items=200,mean_history=12,seed=3"
SMALL = ("cohort.size=20", "rounds=3")

ROWS = (
    Row("FedMF", "fedmf", {"hr@10": Printed("0.650"), "paper_params": Printed("9487.36")}, SMALL, ("tuned",)),
    Row("DP-FedMF", "dp-fedmf", {"hr@10": Printed("0.515")}, SMALL, ("tuned",)),
    Row("NoSuch", "no-such-method", presets=("tuned",)),
)

TOY = Experiment(
    name="toy",
    title="A toy",
    paper="nobody 2026",
    protocol="loo-99",
    metrics=("hr@10", "ndcg@10", "paper_params", "up_bytes"),
    picture="points",
    panels=(Panel("Table 0", "ml-1m", ROWS, "MovieLens 1M"),),
    quick=Quick(None, DATA, rounds=3),
    notes=("A note.",),
)


def with_rows(*rows: Row, picture: str = "points") -> Experiment:
    """The toy with other rows."""
    return replace(TOY, panels=(replace(TOY.panels[0], rows=rows),), picture=picture)
