from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from veilrec.cli.audit import audit
from veilrec.errors import BadInput
from veilrec.privacy.audit import cases

app = typer.Typer()
app.command()(audit)
QUICK = ["k-ary-response", "--quick"]


def test_json_is_one_object_with_every_field_that_a_claim_needs():
    done = CliRunner().invoke(app, [*QUICK, "--json"])
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    (row,) = report["mechanisms"]
    assert row["name"] == "k-ary-response"
    assert row["calibration"] == "proven"
    assert (row["claimed_epsilon"], row["delta"]) == (1.0, 0.0)
    assert 0.9 < row["lower_bound"] <= 1.0
    assert (row["verdict"], row["expected"], row["passed"]) == ("holds", "holds", True)
    assert (row["unit"], row["adjacency"], row["scope"]) == ("history", "replace-one", "per message")
    assert (row["trust"], row["basis"]) == ("nobody", "proven")
    assert row["method"] == "enumeration"
    assert report["false_alarm_rate"] == pytest.approx(1e-4)
    assert "audit 1/1  k-ary-response (proven)" in done.stderr


def test_table_says_what_is_protected_and_how_to_read_it():
    done = CliRunner().invoke(app, ["label-permutation", "--quick"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert "refuted" in done.stdout
    assert "click, replace-one, per message;" in done.stdout
    assert "trusting: nobody; delta 0;" in done.stdout
    assert "How to read it" in done.stdout
    assert "per message" in done.stdout


def test_nothing_is_cut_off_in_80_columns():
    done = CliRunner().invoke(app, ["randomised-response", "--quick"], env={"COLUMNS": "80"})
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "…" not in done.stdout
    for words in (
        "randomised-response length 40",
        "length 40 (as-published)",
        "user, replace-one, per message;",
        "trusting: nobody; delta 0;",
        "refuted",
        "holds",
        "audited",
    ):
        assert words in done.stdout
    assert "Every verdict is the expected one" in " ".join(done.stdout.split())


def test_a_sum_of_the_server_is_a_claim_per_round_that_trusts_it():
    row = json.loads(CliRunner().invoke(app, ["cohort-sum", "--quick", "--json"]).stdout)["mechanisms"][0]
    assert (row["scope"], row["trust"], row["basis"]) == ("per round", "server", "proven")


def test_the_claim_of_a_planted_bug_has_no_basis():
    row = json.loads(CliRunner().invoke(app, ["half-the-noise", "--quick", "--json"]).stdout)["mechanisms"][0]
    assert (row["trust"], row["basis"]) == ("nobody", "none")


def test_a_proven_claim_that_falls_fails_the_command(monkeypatch):
    (sound,) = cases.select("k-ary-response")
    values = vars(sound) | {"claimed_epsilon": 0.5}
    monkeypatch.setattr(cases, "all_cases", lambda: (type(sound)(**values),))
    done = CliRunner().invoke(app, QUICK, env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert "FAILED k-ary-response (proven)" in done.stdout


def test_a_bad_claim_that_is_not_refuted_fails_the_command(monkeypatch):
    (sound,) = cases.select("k-ary-response")
    values = vars(sound) | {"kind": "known-bad"}
    monkeypatch.setattr(cases, "all_cases", lambda: (type(sound)(**values),))
    assert CliRunner().invoke(app, [*QUICK, "--json"]).exit_code == 1


def test_a_rotted_attack_fails_the_command(monkeypatch):
    (sound,) = cases.select("k-ary-response")
    values = vars(sound) | {"claimed_epsilon": 3.0}
    monkeypatch.setattr(cases, "all_cases", lambda: (type(sound)(**values),))
    done = CliRunner().invoke(app, QUICK, env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert "rotted" in done.stdout


def test_unknown_mechanism_is_one_line():
    done = CliRunner().invoke(app, ["k-ary-respons"])
    assert isinstance(done.exception, BadInput)
    assert "did you mean k-ary-response" in str(done.exception)


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_plot_is_written(tmp_path, ending):
    target = tmp_path / f"audit.{ending}"
    done = CliRunner().invoke(app, ["top-k-update", "--quick", "--plot", str(target)])
    assert done.exit_code == 0
    assert target.stat().st_size > 1000
    if ending == "svg":
        assert "top-k-update" in target.read_text()


def test_plot_to_nowhere_is_refused_before_any_work(tmp_path):
    for path, words in ((tmp_path / "a.pdf", "svg or .png"), (tmp_path / "no" / "a.svg", "there is no folder")):
        done = CliRunner().invoke(app, ["all", "--plot", str(path)])
        assert isinstance(done.exception, BadInput)
        assert words in str(done.exception)
        assert not done.stderr


def test_plot_that_cannot_be_written_is_refused_before_any_work(tmp_path, monkeypatch):
    folder = tmp_path / "a.svg"
    folder.mkdir()
    written = tmp_path / "b.svg"
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # root may write everywhere
    for path in (folder, written):
        done = CliRunner().invoke(app, ["all", "--plot", str(path)])
        assert isinstance(done.exception, BadInput)
        assert "cannot be written" in str(done.exception)
        assert not done.stderr


def test_the_seed_decides():
    bounds = [
        json.loads(CliRunner().invoke(app, ["laplace", "--quick", "--json", "--seed", seed]).stdout)["mechanisms"][0][
            "lower_bound"
        ]
        for seed in ("0", "0", "7")
    ]
    assert bounds[0] == bounds[1] != bounds[2]
    assert all(math.isfinite(bound) for bound in bounds)
