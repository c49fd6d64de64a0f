from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from veilrec.bench import secagg
from veilrec.bench.secagg import Load
from veilrec.cli.bench import app


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(secagg, "QUICK", Load(devices=12, length=300, helpers=2))


def test_both_protocols_give_the_exact_sum_and_count_what_they_send(small):
    done = CliRunner().invoke(app, ["secagg", "--quick", "--json"])
    assert done.exit_code == 0, done.output
    helpers, pairs = json.loads(done.stdout)["tasks"]
    assert helpers["exact"]
    assert pairs["exact"]
    assert helpers["added_up"] == 9
    assert helpers["device_up_bytes"] == 100 + 8 + 4 * 300  # signed key, check, vector
    assert helpers["helper_down_bytes"] > 9 * 100
    assert pairs["device_up_bytes"] > 4 * 300
    assert pairs["neighbours"] <= 11
    assert json.loads(done.stdout)["noise"]["device_cpu_ms"] >= 0.0


def test_the_line_says_what_it_costs(small, monkeypatch):
    monkeypatch.setattr(secagg, "PROMISED_MS", 0.0)
    done = CliRunner().invoke(app, ["secagg", "--quick"])
    for words in (
        "helpers, 2 helpers: exact sum of 9",
        "neighbours: exact sum of",
        "missed device_cpu_ms <= 0",
        "not for",
    ):
        assert words in done.stdout
