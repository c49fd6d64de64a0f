"""`veilrec audit`: what it prints, when it fails, and what it refuses."""

import json
import math
import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.cli.running import says, typed, veilrec
from veilrec.audit import auditor, plan_distributed
from veilrec.audit import method as of_methods
from veilrec.audit.method import AuditEffort
from veilrec.methods.registry import METHODS
from veilrec.privacy.mechanisms.sums import CohortSum

audit = partial(veilrec, "audit", "--quick")
told, _, refused = typed("audit", "--quick")


@pytest.fixture
def little(monkeypatch):
    """Audits of methods on a few people, with a canary that hardly sings."""
    monkeypatch.setattr(of_methods, "QUICK", AuditEffort(users=40, rounds=2, drawn=200, runs=120))


def test_json_is_one_object_with_every_field_that_a_claim_needs():
    assert "audit 1/1  k-ary-response (proven)" in audit("k-ary-response").err
    report = told("k-ary-response")
    (row,) = report["mechanisms"]
    assert (row["name"], row["calibration"]) == ("k-ary-response", "proven")
    assert (row["claimed_epsilon"], row["delta"]) == (1.0, 0.0)
    assert 0.9 < row["lower_bound"] <= 1.0
    assert (row["verdict"], row["expected"], row["passed"]) == ("holds", "holds", True)
    assert (row["unit"], row["adjacency"], row["scope"]) == ("history", "replace-one", "per message")
    assert (row["trust"], row["basis"], row["method"]) == ("nobody", "proven", "enumeration")
    assert report["false_alarm_rate"] == pytest.approx(1e-4)
    row = told("cohort-sum")["mechanisms"][0]
    assert (row["scope"], row["trust"], row["basis"]) == ("per round", "server", "proven")
    row = told("half-the-noise")["mechanisms"][0]
    assert (row["trust"], row["basis"]) == ("nobody", "none")  # the claim of a planted bug
    report = told("serving-interest")
    assert {row["name"] for row in report["mechanisms"]} == {"serving-interest"} and report["passed"]
    bounds = [told("laplace", "--seed", seed)["mechanisms"][0]["lower_bound"] for seed in ("0", "0", "7")]
    assert bounds[0] == bounds[1] != bounds[2] < math.inf


def test_the_table_says_what_is_protected_and_how_to_read_it_in_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = audit("randomised-response")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    assert "…" not in done.out
    says(done.out, "randomised-response length 40", "length 40 (as-published)", "user, replace-one, per message;")
    says(done.out, "trusting: nobody; delta 0;", "refuted", "holds", "audited", "How to read it")
    assert "Every verdict is the expected one" in " ".join(done.out.split())


def test_an_unexpected_verdict_fails_the_command(monkeypatch):
    (sound,) = auditor.select("k-ary-response")
    monkeypatch.setenv("COLUMNS", "200")
    for change, words in (
        ({"claimed_epsilon": 0.5}, "FAILED k-ary-response (proven)"),  # a proven claim that falls
        ({"kind": "known-bad"}, "FAILED"),  # a bad claim that is not refuted
        ({"claimed_epsilon": 3.0}, "rotted"),  # an attack that finds too little
    ):
        case = replace(sound, **change)
        monkeypatch.setattr(auditor, "all_cases", lambda case=case: (case,))
        done = audit("k-ary-response")
        assert done.code == 1, change
        assert words in done.out


def test_a_plot_is_written_or_refused_before_any_work(tmp_path, monkeypatch):
    target = tmp_path / "audit.svg"
    assert audit("top-k-update", "--plot", str(target)).code == 0
    assert "top-k-update" in target.read_text()
    folder, written = tmp_path / "a.svg", tmp_path / "b.svg"
    folder.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # root may write everywhere
    for path, words in (
        (tmp_path / "a.pdf", "svg or .png"),
        (tmp_path / "no" / "a.svg", "there is no folder"),
        (folder, "cannot be written"),
        (written, "cannot be written"),
    ):
        done = veilrec("audit", "all", "--plot", path)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert words in done.err


def test_a_method_is_one_object_with_its_claim_every_check_and_the_canary(little):
    found = told("dp-fedmf")
    assert (found["method"], found["holds"], found["quick"], found["seed"]) == ("dp-fedmf", True, True, 0)
    assert (found["claimed"]["epsilon"], found["claimed"]["unit"], found["claimed"]["basis"]) == (8.0, "user", "proven")
    assert all({"name", "measured", "expected", "holds"} <= check.keys() for check in found["checks"])
    assert all(check["holds"] for check in found["checks"])
    assert 0.0 <= found["canary"]["epsilon_lower"] <= 8.0
    assert (found["canary"]["confidence"], found["canary"]["runs"]) == (0.9999, 120)
    assert 0.0 < found["false_alarm_rate"] < 2e-4
    found = told("fedmf")  # promises nothing, and says so
    assert (found["holds"], found["claimed"]["basis"], found["canary"]) == (True, "none", None)


def test_noise_of_clients_is_audited_by_its_option_and_by_its_setting(little, monkeypatch):
    monkeypatch.setattr(plan_distributed, "QUICK", AuditEffort(users=40, rounds=2, drawn=200, runs=120))
    options = ("--distributed-noise", "--silent", "0.2"), ("--set", "privacy.noise= distributed")
    for given in options:
        found = told("dp-fedmf", *given)
        assert (found["holds"], found["claimed"]["trust"]) == (True, "server sees only noisy sums")
        by_name = {check["name"]: check for check in found["checks"]}
        assert by_name["clients whose noise is counted on"]["measured"] == (32 if "--silent" in given else 40)


def test_the_table_of_a_method_fits_and_says_how_to_read_it(little, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = audit("priv-fedmf-sub")
    assert done.code == 0
    assert "audit 1/1  priv-fedmf-sub" in done.err
    lines = done.out.splitlines()
    assert max(map(len, lines[1:])) <= 80  # the claim in the first line is never cut
    assert "…" not in done.out
    promise = "(8, 1e-06)-DP per user (add-remove), whole run"
    says(" ".join(done.out.split()), promise, "How to read it", "Canary:", "behaves as its state")


def test_a_method_whose_noise_is_gone_fails_the_command(little, monkeypatch):
    monkeypatch.setattr(CohortSum, "protect", lambda *arguments: None)
    monkeypatch.setenv("COLUMNS", "200")
    done = audit("dp-fedmf")
    assert done.code == 1
    says(done.out, "FAILED numbers of a round without noise", "FAILED canary")
    assert re.search(r"at least [\d.]+ \(by chance [\d.]+\)", done.out)  # as far as chance explains
    assert "at most 1 (by chance" not in done.out  # where it explains nothing
    assert audit("dp-fedmf", "--json").code == 1


def test_a_published_claim_holds_when_its_statement_is_true(little):
    found = told("dp-fedmf", "--set", "calibration=as-published")
    assert found["canary"] is None
    by_name = {check["name"]: check for check in found["checks"]}
    assert by_name["the paper's claim"]["measured"] == "refuted"
    measured = by_name["epsilon of a message, from the noise that was measured"]
    assert measured["measured"] == pytest.approx(found["claimed"]["honest_epsilon"], rel=0.03)


def test_all_has_mechanisms_and_methods_and_names_what_it_left_out(little, monkeypatch):
    few, served = auditor.select("k-ary-response"), auditor.serving_cases("serving-pooled")[:1]
    monkeypatch.setattr(auditor, "all_cases", lambda: few)
    monkeypatch.setattr(auditor, "serving_cases", lambda name: served)
    monkeypatch.setattr(of_methods, "proven_methods", lambda: ["dp-fedmf", "mf"])
    done = audit("all", "--json")
    assert done.code == 0
    report = json.loads(done.out)
    assert [row["name"] for row in report["mechanisms"]] == ["k-ary-response", "serving-pooled"]
    assert [row["method"] for row in report["methods"]] == ["dp-fedmf"]
    assert report["skipped"][0]["method"] == "mf"
    assert report["passed"] is True
    assert "audit of methods 1/2  dp-fedmf" in done.err
    monkeypatch.setattr(CohortSum, "protect", lambda *arguments: None)
    monkeypatch.setenv("COLUMNS", "120")
    done = audit("all")
    assert done.code == 1
    says(done.out, "FAILED dp-fedmf: numbers of a round without noise", "Not audited: mf")


PRIVATE = """dp-fedmf private-gram veil dpals dpals-features dp-fedmf-svd dp-fedmf-topk priv-fedmf-sub dp-fedncf
dp-fedncf-dgc priv-fedncf-sub priv-fedncf-sub-compress fednewsrec fednewsrec-head privaterec dp-fedrec
private-popularity dp-privrec popularity-head"""


def test_every_private_method_is_audited_with_all_and_none_has_the_name_of_a_mechanism():
    assert not {case.name for case in auditor.all_cases()} & METHODS.keys()
    assert set(of_methods.proven_methods()) == set(PRIVATE.split())


def test_what_cannot_be_audited_is_one_line():
    for line, words in (
        ("mf", "audit a federated method"),
        ("cohort-sum --set a=b", "--set is for methods"),
        ("cohort-sum --distributed-noise", "--distributed-noise is for a method"),
        ("cohort-sum --data synthetic-news", "says nothing about mechanisms"),
        ("dp-fedmf --set nothing=1", "setting of dp-fedmf"),
        ("dp-fedmff", "did you mean dp-fedmf"),
        ("k-ary-respons", "did you mean k-ary-response"),
        ("dp-fedmf --plot a.svg", "draws mechanisms"),
    ):
        assert words in refused(*line.split())
