"""Experiments small enough to run in a second or two."""

from dataclasses import replace
from pathlib import Path

from veilrec.papers import NAMES
from veilrec.report.reproduce.experiment import (
    Experiment,
    ExperimentPanel,
    ExperimentRow,
    PrintedNumber,
    QuickVersion,
    load_experiment,
)
from veilrec.report.reproduce.results import execute, take

EXPERIMENTS = {name: load_experiment(name) for name in NAMES}

DATA = "synthetic-ratings:users=150,items=200,mean_history=12,seed=3"
SMALL = ("cohort.size=20", "rounds=3")

PRINTED = {"hr@10": PrintedNumber("0.650"), "paper_params": PrintedNumber("9487.36")}
ROWS = (
    ExperimentRow("FedMF", "fedmf", PRINTED, SMALL, ("tuned",)),
    ExperimentRow("DP-FedMF", "dp-fedmf", {"hr@10": PrintedNumber("0.515")}, SMALL, ("tuned",)),
    ExperimentRow("NoSuch", "no-such-method", presets=("tuned",)),
)

TOY = Experiment(
    name="toy",
    title="A toy",
    paper="nobody 2026",
    protocol="loo-99",
    metrics=("hr@10", "ndcg@10", "paper_params", "up_bytes"),
    picture="points",
    panels=(ExperimentPanel("Table 0", "ml-1m", ROWS, "MovieLens 1M"),),
    quick=QuickVersion(synthetic=DATA, rounds=3),
    notes=("A note.",),
)


FEDMF = ExperimentRow("FedMF", "fedmf", settings=SMALL, presets=("tuned",))
OUT = Path("nowhere")  # of studies that are not run


def with_rows(*rows):
    """The toy with other rows."""
    return replace(TOY, panels=(replace(TOY.panels[0], rows=rows),))


def quiet(_):
    """Say nothing."""


def run(study):
    """What came of its trainings and measurements."""
    runs = execute(study.trials(), say=quiet)
    return {**runs, **take(study.probes(), runs, say=quiet)}
