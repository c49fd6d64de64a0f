"""The commands that attack a training: what they print, draw, and refuse."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from veilrec.attacks.running import attack_messages, attack_rows
from veilrec.attacks.subjects import Populations, subject_of_method
from veilrec.cli.main import app
from veilrec.core.errors import BadInput
from veilrec.privacy.guarantee import Trust

RATINGS = "synthetic-ratings:users=150,items=200,seed=3"
SMALL = ["--data", RATINGS, "--set", "cohort.size=0"]


def run(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ["attack", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "votes"
    done = CliRunner().invoke(app, ["train", "private-popularity", "--data", RATINGS, "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    return out


def test_membership_of_a_run_and_a_method(trained: Path, tmp_path: Path) -> None:
    picture = tmp_path / "who.svg"
    asked = ["membership", str(trained), "--method", "private-popularity", *SMALL, "--quick", "--canaries", "20"]
    report = json.loads(run(*asked, "--plot", str(picture), "--json").stdout)
    assert report["attack"] == "membership"
    for one in report["results"]:
        assert (one["method"], one["claimed"]["basis"], one["claimed"]["unit"]) == (
            "private-popularity",
            "proven",
            "user",
        )
        assert 0.5 < one["ceiling"]["auc"] < 1.0
        assert {(f["view"], f["kind"]) for f in one["findings"]} == {
            (view, kind) for view in ("every round", "final model") for kind in ("crafted", "random")
        }
        assert all(f["interval"][0] <= f["auc"] <= f["interval"][1] for f in one["findings"])
    assert "trusting: server, proven" in picture.read_text()
    shown = run(*asked).stdout
    assert "The best attack on all that is released can reach" in shown
    assert "per user (add-remove), whole run, trusting: server, proven" in " ".join(shown.split())


def test_rows_and_numbers_as_json_and_tables(tmp_path: Path) -> None:
    for attack, views in (("row-support", {"sum", "update"}), ("inversion", {"message", "secure sum", "released"})):
        asked = [attack, "--method", "private-popularity", *SMALL, "--quick", "--uploads", "20"]
        picture = tmp_path / f"{attack}.png"
        report = json.loads(run(*asked, "--json", "--plot", str(picture)).stdout)
        assert {f["view"] for f in report["findings"]} == views
        by_view = {f["view"]: f for f in report["findings"]}
        assert by_view["update" if attack == "row-support" else "message"]["recall"] > 0.99
        assert picture.read_bytes().startswith(b"\x89PNG")
        shown = run(*asked)
        assert "private-popularity" in shown.stdout
        assert "before any noise" in shown.stdout or "secure aggregation" in shown.stdout


def test_poisoning_as_json_and_table(tmp_path: Path) -> None:
    picture = tmp_path / "lies.svg"
    asked = ["poisoning", "--method", "private-popularity", *SMALL, "--quick", "--poison", "promote"]
    report = json.loads(run(*asked, "--json", "--plot", str(picture)).stdout)
    assert [(f["poison"], f["defence"]) for f in report["findings"]] == [
        (None, "none"),
        ("promote", "none"),
        (None, "bound"),
        ("promote", "bound"),
    ]
    _, unchecked, _, checked = report["findings"]
    assert unchecked["exposure"] > 0.9  # a thousand votes of one device
    assert checked["exposure"] < unchecked["exposure"]
    assert (checked["metric"], checked["liars"]) == ("hr@10", 8)
    assert "promote" in picture.read_text()
    assert "longer messages are refused" in " ".join(run(*asked).stdout.split())


def test_a_federation_is_attacked_by_its_run(trained: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    (made / "federation.yaml").write_text("format: 1\n")
    for attack in ("row-support", "gradient-rows"):
        with pytest.raises(BadInput, match="a federation without a run: finish it with `veilrec federate up"):
            run(attack, str(made))
    shutil.copytree(trained, made / "run")
    report = json.loads(run("row-support", str(made), "--quick", "--uploads", "10", "--json").stdout)
    assert report["model"] == f"{made / 'run'} after 1 rounds"


@pytest.mark.parametrize(
    ("trust", "sums"),
    [("server sees only sums", ["secure sum", "released"]), ("server sees only noisy sums", ["released"])],
)
def test_nobody_sees_messages_that_are_masked(trust: Trust, sums: list[str]) -> None:
    subject = subject_of_method("private-popularity", RATINGS, Populations(), settings=["cohort.size=0"])
    masked = replace(subject, claimed=replace(subject.claimed, trust=trust))
    for attack, views in ((attack_rows, ["sum"]), (attack_messages, sums)):
        found: Any = attack(masked, uploads=10).findings
        assert [one.view for one in found] == views


def test_news_are_promoted() -> None:
    asked = ["poisoning", "--method", "veil", "--data", "synthetic-news:users=150,seed=2", "--quick"]
    asked += ["--set", "privacy.epsilon=20", "--poison", "promote", "--defence", "none", "--json"]
    nobody, promoted = json.loads(run(*asked).stdout)["findings"]
    assert nobody["exposure"] < 0.2
    assert promoted["exposure"] > 0.6
    assert promoted["metric"] == "auc"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["membership"], "nothing to attack"),
        (["membership", "--method", "nosuch"], "nosuch"),
        (["membership", "--method", "ease"], "sends no messages"),
        (["membership", "--method", "private-popularity", *SMALL, "--kind", "odd"], "odd"),
        (["membership", "--method", "private-popularity", *SMALL, "--canaries", "1000"], "1000 canaries"),
        (["membership", "--method", "private-popularity", *SMALL, "--trainings", "0"], "--trainings is 0"),
        (["row-support", "--method", "private-popularity", *SMALL, "--uploads", "0"], "uploads is 0"),
        (["row-support", "--method", "private-popularity", *SMALL, "--plot", "x.pdf"], ".svg or .png"),
        (["inversion", "nosuch"], "there is no run"),
        (["poisoning", "--method", "private-popularity", *SMALL, "--share", "0.7"], "--share is 0.7"),
        (["poisoning", "--method", "private-popularity", *SMALL, "--poison", "arsenic"], "arsenic"),
        (["poisoning", "--method", "private-popularity", *SMALL, "--defence", "prayer"], "prayer"),
        (["poisoning", "--method", "private-popularity", *SMALL, "--rounds", "0"], "--rounds is 0"),
    ],
)
def test_bad_input_is_one_line(asked: list[str], told: str) -> None:
    with pytest.raises(BadInput) as refused:
        run(*asked)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_run_is_attacked_as_it_was_trained(trained: Path) -> None:
    with pytest.raises(BadInput, match="as it was trained"):
        run("membership", str(trained), "--calibration", "proven")
