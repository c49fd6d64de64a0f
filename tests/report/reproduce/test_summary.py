"""Several seeds as one line."""

from __future__ import annotations

import statistics

import pytest

from tests.report.reproduce.toys import DATA, with_rows
from veilrec.report.reproduce.experiment import Row
from veilrec.report.reproduce.plan import Options, make_plan
from veilrec.report.reproduce.runner import Outcome, execute
from veilrec.report.reproduce.summary import Measured, amounts, summarise


def test_mean_and_spread():
    assert Measured((1.0, 3.0)).mean == 2.0
    assert Measured((1.0, 3.0)).sd == pytest.approx(statistics.stdev([1, 3]))
    assert Measured((1.0,)).sd is None


def test_seeds_are_put_together(tmp_path):
    row = Row("FedMF", "fedmf", settings=("cohort.size=20", "rounds=2"), presets=("tuned",))
    plan = make_plan(with_rows(row), Options(seeds=2, data=DATA), tmp_path)
    outcomes = execute(plan.trials(), say=lambda _: None)
    (line,) = summarise(plan, outcomes).panels[0].lines
    each = [outcomes[t.folder].result["metrics"]["hr@10"] for t in plan.trials()]
    assert line.measured["hr@10"].values == tuple(each)
    assert line.rounds == 2
    assert [at for at, _ in line.curve["hr@10"]] == [1, 2]
    assert line.curve["hr@10"][-1][1].values == tuple(each)


def test_a_line_holds_what_was_measured_and_promised(toy_summary):
    lines = {(line.variant.row.label, line.variant.calibration): line for line in toy_summary.panels[0].lines}
    plain, published, proven, gone = lines.values()
    assert plain.guarantee.basis == "none"
    assert published.guarantee.basis == "as published"
    assert proven.guarantee.basis == "proven"
    assert gone.problem == "not available: this version has no method no-such-method"
    assert not gone.measured
    assert set(toy_summary.panels[0].baselines) == {"popularity", "random"}


def test_a_method_below_popularity_is_named(toy_summary):
    (note,) = [note for note in toy_summary.notes if "popularity" in note]
    assert note.startswith("Table 0: no better than popularity (nDCG@10 0.")
    assert "DP-FedMF (tuned, proven)" in note


def test_a_seed_that_failed_is_left_out_and_said(toy_plan, toy_summary):
    plan = make_plan(toy_plan.experiment, Options(seeds=2, data=DATA), toy_plan.trials()[0].folder.parent)
    variant = plan.panels[0].variants[0]
    good, bad = (trial.folder for trial in variant.trials)
    result = {
        "metrics": {"hr@10": 0.5, "ndcg@10": 0.3},
        "baselines": {},
        "rounds": 3,
        "guarantee": {"basis": "none"},
        "communication": {"up_bytes": 4, "paper_params": 2_000_000},
    }
    outcomes = {t.folder: Outcome(None, problem="failed: x") for t in plan.trials()} | {good: Outcome(result)}
    line = summarise(plan, outcomes).panels[0].lines[0]
    assert bad != good
    assert line.problem == "failed: x (1 of 2 seeds are shown)"
    assert line.measured["paper_params"].mean == 2.0
    assert amounts(result)["up_bytes"] == 4
