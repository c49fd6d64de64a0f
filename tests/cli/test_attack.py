from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from veilrec.cli.attack import ATTACKS
from veilrec.cli.main import app
from veilrec.core.errors import BadInput

NEWS = "synthetic-news:users=60,news=200,days=3,seed=3"
SMALL = ["--set", "size.word_dim=8", "--set", "size.heads=2", "--set", "size.head_dim=4", "--set", "size.attention=4"]
OPEN = ["--set", "cohort.size=20", "--calibration", "none"]
FEW = ["--data", NEWS, *SMALL, "--uploads", "10"]


def run(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ["attack", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def refusal(*arguments: str) -> str:
    with pytest.raises(BadInput) as refused:
        run(*arguments)
    return str(refused.value)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with basis vectors."""
    out = tmp_path_factory.mktemp("runs") / "mine"
    asked = ["train", "privaterec", "--data", NEWS, *SMALL, *OPEN, "--rounds", "2", "--out", str(out), "--json"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    return out


@pytest.mark.parametrize("asked", [(), ("--list",)])
def test_without_a_name_it_says_which_attacks_there_are(asked: tuple[str, ...]) -> None:
    shown = run(*asked)
    assert shown.exit_code == 0
    for name in ATTACKS:
        assert f"veilrec attack {name}" in shown.stdout
    assert [entry["attack"] for entry in json.loads(run(*asked, "--json").stdout)["attacks"]] == list(ATTACKS)


def test_uploads_of_a_method_as_json() -> None:
    report = json.loads(run("gradient-rows", "--method", "fednewsrec", *OPEN, *FEW, "--json").stdout)
    assert (report["attack"], report["method"], report["calibration"]) == ("gradient-rows", "fednewsrec", "none")
    assert (report["by"], report["view"], report["uploads"], report["seed"]) == ("word-rows", "message", 10, 0)
    assert report["claimed"]["basis"] == "none"
    assert report["data"] == NEWS
    assert report["padding"] is None
    assert report["recall"] > 0.95
    low, high = report["interval"]
    assert low <= report["recall"] <= high
    assert 0.0 < report["chance"] < 1.0
    assert 0.0 < report["false_positive_rate"] < 1.0
    assert len(report["findings"]) == 3


def test_runs_and_methods_side_by_side_with_a_picture(trained: Path, tmp_path: Path) -> None:
    picture = tmp_path / "leak.svg"
    asked = ["gradient-rows", str(trained), "--method", "fednewsrec", "--calibration", "none"]
    shown = run(*asked, "--calibration", "proven", "--set", "cohort.size=20", *FEW, "--plot", str(picture))
    assert shown.exit_code == 0
    for told in ("privaterec, none", "fednewsrec, none", "fednewsrec, proven", "trusting: server, proven", "padding 0"):
        assert told in shown.stdout
    drawn = picture.read_text()
    for told in ("privaterec, none", "fednewsrec, proven", "chance", "trusting: server, proven"):
        assert told in drawn


def test_queries_of_a_run(trained: Path, tmp_path: Path) -> None:
    picture = tmp_path / "queries.png"
    asked = ["repeated-queries", str(trained), "--queries", "1", "--queries", "50"]
    report = json.loads(run(*asked, "--epsilon", "4", "--plot", str(picture), "--json").stdout)
    assert (report["attack"], report["method"], report["interests"]) == ("repeated-queries", "privaterec", 5)
    assert len(report["curves"]) == 4
    assert 1 / report["interests"] < report["chance"] <= 1.0  # most users share an interest
    for curve in report["curves"]:
        assert curve["claimed"]["epsilon"] == 4.0
        first, last = curve["points"]
        assert (first["queries"], last["queries"]) == (1, 50)
        assert curve["memoised"] == (first["epsilon_together"] == last["epsilon_together"])
        assert (last["error"] == pytest.approx(first["error"])) == curve["memoised"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = run(*asked)
    assert "found is how often the strongest interest is named" in " ".join(shown.stdout.split())
    assert "per history (replace-one), per message, trusting: nobody, proven" in shown.stdout


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--method", "nrms"], "sends no messages"),
        (["--method", "fcf", "--data", NEWS], "reads no titles"),
        (["--method", "dp-fedmf", "--data", "synthetic-ratings:users=50,items=300"], "no titles"),
        (["--method", "fednewsrec", "--uploads", "0"], "--uploads is 0"),
        (["--method", "fednewsrec", "--rounds", "0"], "--rounds is 0"),
        (["--method", "fednewsrec", "--calibration", "strong"], "strong"),
        (["--method", "fednewsrec", "--plot", "leak.pdf"], ".svg or .png"),
        (["--method", "nosuch"], "nosuch"),
        (["nosuch"], "there is no run"),
        ([], "nothing to attack"),
    ],
)
def test_what_cannot_be_attacked_is_refused_in_one_line(asked: list[str], told: str) -> None:
    line = refusal("gradient-rows", *asked)
    assert told in line
    assert "\n" not in line


def test_a_run_is_attacked_as_it_was_trained(trained: Path) -> None:
    assert "as it was trained" in refusal("gradient-rows", str(trained), "--calibration", "proven")


def test_a_run_whose_data_is_gone_is_refused(trained: Path) -> None:
    config = trained / "config.yaml"
    before = config.read_text()
    config.write_text(before.replace(NEWS, "mind:/nosuch"))
    try:
        for attack in ATTACKS:
            assert "/nosuch is not there" in refusal(attack, str(trained))
    finally:
        config.write_text(before)


def test_a_run_without_basis_vectors_says_what_to_train(tmp_path: Path) -> None:
    out = tmp_path / "plain"
    asked = ["train", "popularity", "--data", NEWS, "--out", str(out), "--json"]
    assert CliRunner().invoke(app, asked).exit_code == 0
    assert "privaterec" in refusal("repeated-queries", str(out))
    assert "privaterec" in refusal("repeated-queries")
    assert "sends no messages" in refusal("gradient-rows", str(out))
