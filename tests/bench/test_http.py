"""`veilrec bench http`: it measures a server of its own and says what was promised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.server.http.toys import write_release
from veilrec.bench.http import Load, Tally, _figures, run
from veilrec.cli.main import app
from veilrec.errors import BadInput

SMALL = Load(connections=4, seconds=0.5, warm_up_seconds=0.1, items=300)


def test_a_short_measurement() -> None:
    said: list[str] = []
    (task,) = run(SMALL, said.append)["tasks"]
    assert task["errors"] == 0
    assert task["requests"] > 10
    assert task["requests_per_cpu_second"] > 0
    assert 0 < task["p50_ms"] <= task["p99_ms"] <= task["slowest_ms"]
    assert set(task["missed"]) <= set(task["promised"])
    assert any("4 connections" in line for line in said)


def test_a_release_without_interests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no interests"):
        run(SMALL, lambda _: None, release=write_release(tmp_path / "release", family="factors"))


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilrec.bench.http.QUICK", SMALL)
    done = CliRunner().invoke(app, ["bench", "http", "--quick", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["quick"] is True
    assert report["tasks"][0]["name"] == "http"


def test_figures() -> None:
    figures = _figures(Tally([0.001, 0.002, 0.003], errors=1), took=2.0, cpu=0.5)
    assert (figures["requests_per_cpu_second"], figures["errors"], figures["p50_ms"]) == (6, 1, 2.0)
