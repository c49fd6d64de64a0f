"""Adressa's log from its files to a measured run, as a user gives it."""

from __future__ import annotations

from pathlib import Path

from tests.cli.running import told
from tests.data.adressa_log import write_log

SMALL = [part for size in ("word_dim=8", "heads=2", "head_dim=8", "attention=8") for part in ("--set", f"size.{size}")]


def test_central_and_federated_training(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path / "cache"))
    data, run = f"adressa:{write_log(tmp_path / 'one_week')}", tmp_path / "run"
    result = told("train", "nrms", "--data", data, "--rounds", "12", "--set", "batch=32", *SMALL, "--out", run)
    assert result["protocol"] == "last-day-20"
    assert {"auc", "mrr", "ndcg@5", "ndcg@10", "cases"} <= set(result["metrics"])
    # 150 clicks: chance is 0.5 with a standard error of 0.025, and taste alone is worth more than 0.7
    assert result["metrics"]["auc"] > 0.65
    best = told("recommend", run, "--user", "cx:3", "-k", "4")["recommendations"]
    assert all(entry["title"] for entry in best)
    options = ("--rounds", "2", "--early-stop", "2", "--set", "cohort.size=20", "--calibration", "none")
    result = told("train", "fednewsrec", "--data", data, *options, *SMALL, "--out", tmp_path / "federated")
    assert result["metrics"]["cases"] > 50
    assert result["communication"]["up_bytes"] > 0
