"""Adressa's log from its files to a measured run, as a user gives it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.data.adressa_log import write_log
from veilrec.cli.main import app

SMALL = [part for size in ("word_dim=8", "heads=2", "head_dim=8", "attention=8") for part in ("--set", f"size.{size}")]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("VEILREC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("adressa") / "one_week")


def veilrec(*arguments: str) -> dict:
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_centralised_model_learns_the_tastes(log: Path, tmp_path: Path) -> None:
    result = veilrec(
        "train",
        "nrms",
        "--data",
        f"adressa:{log}",
        "--rounds",
        "12",
        "--set",
        "batch=32",
        *SMALL,
        "--out",
        str(tmp_path / "run"),
    )
    assert result["protocol"] == "last-day-20"
    assert {"auc", "mrr", "ndcg@5", "ndcg@10", "cases"} <= set(result["metrics"])
    # 150 clicks: chance is 0.5 with a standard error of 0.025, and taste alone is worth more than 0.7
    assert result["metrics"]["auc"] > 0.65
    best = veilrec("recommend", str(tmp_path / "run"), "--user", "cx:3", "-k", "4")["recommendations"]
    assert all(entry["title"] for entry in best)


def test_devices_learn_too_with_validation(log: Path, tmp_path: Path) -> None:
    result = veilrec(
        "train",
        "fednewsrec",
        "--data",
        f"adressa:{log}",
        "--rounds",
        "4",
        "--early-stop",
        "2",
        *SMALL,
        "--set",
        "cohort.size=20",
        "--calibration",
        "none",
        "--out",
        str(tmp_path / "run"),
    )
    assert result["metrics"]["cases"] > 50
    assert result["communication"]["up_bytes"] > 0
