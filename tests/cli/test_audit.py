from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from veilrec.audit import auditor
from veilrec.audit import auditor as serving_audit
from veilrec.audit import method as of_methods
from veilrec.audit.method import AuditEffort
from veilrec.cli.audit import audit
from veilrec.core.errors import BadInput
from veilrec.methods.registry import METHODS
from veilrec.privacy.mechanisms.sums import CohortSum

app = typer.Typer()
app.command()(audit)
QUICK = ["k-ary-response", "--quick"]


@pytest.fixture
def little(monkeypatch):
    """Audits of methods on a few people, with a canary that hardly sings."""
    monkeypatch.setattr(of_methods, "QUICK", AuditEffort(users=40, rounds=2, drawn=200, runs=120))


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
    (sound,) = auditor.select("k-ary-response")
    values = vars(sound) | {"claimed_epsilon": 0.5}
    monkeypatch.setattr(auditor, "all_cases", lambda: (type(sound)(**values),))
    done = CliRunner().invoke(app, QUICK, env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert "FAILED k-ary-response (proven)" in done.stdout


def test_a_bad_claim_that_is_not_refuted_fails_the_command(monkeypatch):
    (sound,) = auditor.select("k-ary-response")
    values = vars(sound) | {"kind": "known-bad"}
    monkeypatch.setattr(auditor, "all_cases", lambda: (type(sound)(**values),))
    assert CliRunner().invoke(app, [*QUICK, "--json"]).exit_code == 1


def test_a_rotted_attack_fails_the_command(monkeypatch):
    (sound,) = auditor.select("k-ary-response")
    values = vars(sound) | {"claimed_epsilon": 3.0}
    monkeypatch.setattr(auditor, "all_cases", lambda: (type(sound)(**values),))
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


def test_a_method_is_one_object_with_its_claim_every_check_and_the_canary(little):
    done = CliRunner().invoke(app, ["dp-fedmf", "--quick", "--json"])
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert (found["method"], found["holds"], found["quick"], found["seed"]) == ("dp-fedmf", True, True, 0)
    assert (found["claimed"]["epsilon"], found["claimed"]["unit"], found["claimed"]["basis"]) == (8.0, "user", "proven")
    assert all({"name", "measured", "expected", "holds"} <= check.keys() for check in found["checks"])
    assert all(check["holds"] for check in found["checks"])
    assert 0.0 <= found["canary"]["epsilon_lower"] <= 8.0
    assert (found["canary"]["confidence"], found["canary"]["runs"]) == (0.9999, 120)
    assert 0.0 < found["false_alarm_rate"] < 2e-4
    assert "audit 1/1  dp-fedmf" in done.stderr


def test_the_table_of_a_method_fits_and_says_how_to_read_it(little):
    done = CliRunner().invoke(app, ["priv-fedmf-sub", "--quick"], env={"COLUMNS": "80"})
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert max(map(len, lines[1:])) <= 80  # the claim in the first line is never cut
    assert "…" not in done.stdout
    words = " ".join(done.stdout.split())
    for part in (
        "(8, 1e-06)-DP per user (add-remove), whole run",
        "How to read it",
        "Canary:",
        "behaves as its statement",
    ):
        assert part in words


def test_a_method_whose_noise_is_gone_fails_the_command(little, monkeypatch):
    monkeypatch.setattr(CohortSum, "protect", lambda *arguments: None)
    done = CliRunner().invoke(app, ["dp-fedmf", "--quick"], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert "FAILED numbers of a round without noise" in done.stdout
    assert "FAILED canary" in done.stdout
    assert re.search(r"at least [\d.]+ \(by chance [\d.]+\)", done.stdout)  # as far as chance explains
    assert "at most 1 (by chance" not in done.stdout  # where it explains nothing
    assert CliRunner().invoke(app, ["dp-fedmf", "--quick", "--json"]).exit_code == 1


def test_a_published_claim_holds_when_its_statement_is_true(little):
    done = CliRunner().invoke(app, ["dp-fedmf", "--quick", "--set", "calibration=as-published", "--json"])
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["canary"] is None
    by_name = {check["name"]: check for check in found["checks"]}
    assert by_name["the paper's claim"]["measured"] == "refuted"
    measured = by_name["epsilon of a message, from the noise that was measured"]
    assert measured["measured"] == pytest.approx(found["claimed"]["honest_epsilon"], rel=0.03)


def test_a_method_that_promises_nothing_says_so(little):
    found = json.loads(CliRunner().invoke(app, ["fedmf", "--quick", "--json"]).stdout)
    assert (found["holds"], found["claimed"]["basis"], found["canary"]) == (True, "none", None)


def test_all_has_mechanisms_and_methods_and_names_what_it_left_out(little, monkeypatch):
    few = auditor.select("k-ary-response")
    monkeypatch.setattr(auditor, "all_cases", lambda: few)
    served = serving_audit.serving_cases("serving-pooled")[:1]
    monkeypatch.setattr(serving_audit, "serving_cases", lambda name: served)
    monkeypatch.setattr(of_methods, "proven_methods", lambda: ["dp-fedmf", "mf"])
    done = CliRunner().invoke(app, ["all", "--quick", "--json"])
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert [row["name"] for row in report["mechanisms"]] == ["k-ary-response", "serving-pooled"]
    assert [row["method"] for row in report["methods"]] == ["dp-fedmf"]
    assert report["skipped"][0]["method"] == "mf"
    assert report["passed"] is True
    assert "audit of methods 1/2  dp-fedmf" in done.stderr
    monkeypatch.setattr(CohortSum, "protect", lambda *arguments: None)
    done = CliRunner().invoke(app, ["all", "--quick"], env={"COLUMNS": "120"})
    assert done.exit_code == 1
    assert "FAILED dp-fedmf: numbers of a round without noise" in done.stdout
    assert "Not audited: mf" in done.stdout


def test_no_method_has_the_name_of_a_mechanism():
    assert not {case.name for case in auditor.all_cases()} & METHODS.keys()


def test_every_private_method_is_audited_with_all():
    assert set(of_methods.proven_methods()) == {
        "dp-fedmf",
        "private-gram",
        "veil",
        "dpals",
        "dpals-features",
        "dp-fedmf-svd",
        "dp-fedmf-topk",
        "priv-fedmf-sub",
        "dp-fedncf",
        "dp-fedncf-dgc",
        "priv-fedncf-sub",
        "priv-fedncf-sub-compress",
        "fednewsrec",
        "fednewsrec-head",
        "privaterec",
        "dp-fedrec",
        "private-popularity",
        "dp-privrec",
        "popularity-head",
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mf"], "audit a federated method"),
        (["cohort-sum", "--set", "a=b"], "--set is for methods"),
        (["dp-fedmf", "--set", "nothing=1"], "setting of dp-fedmf"),
        (["dp-fedmff"], "did you mean dp-fedmf"),
    ],
)
def test_what_cannot_be_audited_is_one_line(arguments, words):
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, BadInput)
    assert words in str(done.exception)


def test_a_method_has_no_plot(tmp_path):
    done = CliRunner().invoke(app, ["dp-fedmf", "--plot", str(tmp_path / "a.svg")])
    assert isinstance(done.exception, BadInput)
    assert "draws mechanisms" in str(done.exception)
