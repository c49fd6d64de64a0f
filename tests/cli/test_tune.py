"""`veilrec tune`, as a user types it: a search, what it prints, and a training with what it found."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_train import veilrec

DATA = "synthetic-ratings:users=150,items=200,seed=3"


def test_a_search_ends_with_the_command_that_uses_it(tmp_path):
    out = str(tmp_path / "search")
    done = veilrec("tune", "mf", "--data", DATA, "--rounds", "2", "--trials", "2", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "ndcg@10 on validation items" in done.stdout
    command = done.stdout.splitlines()[-1].rpartition(": ")[2]
    assert command == f"veilrec train --config {out}/best.yaml"
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["trial 1/2", "trial 2/2"]
    trained = veilrec(*command.split()[1:], "--out", str(tmp_path / "run"), "--json")
    found = json.loads(trained.stdout)
    asked = json.loads(
        veilrec("tune", "mf", "--data", DATA, "--rounds", "2", "--trials", "2", "--out", out, "--json").stdout
    )
    assert (found["method"], found["rounds"]) == ("mf", asked["rounds"])
    assert asked["command"] == command and asked["measured_on"] == "validation items"


def test_a_private_method_is_told_what_is_not_covered(tmp_path):
    space = tmp_path / "space.yaml"
    space.write_text("privacy.clip_norm: {low: 0.1, high: 1.0, log: true}\n")
    options = ("--space", str(space), "--rounds", "2", "--trials", "1", "--out", str(tmp_path / "search"))
    done = veilrec("tune", "dp-fedmf", "--data", DATA, *options)
    assert "Not covered by the guarantee: The settings were chosen by 1 trial" in done.stdout
    assert "no guarantee covers it" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mf", "--trials", "0"), "--trials is 0"),
        (("mv",), "unknown method"),
        (("popularity",), "give --space FILE"),
        (("mf", "--space", "none.yaml"), "cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = veilrec("tune", *arguments)
    assert done.returncode == 2
    assert words in done.stderr and len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
