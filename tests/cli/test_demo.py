from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from veilrec.cli.demo import demo
from veilrec.errors import BadInput
from veilrec.report import demo as demo_room
from veilrec.runs.request import Request

_app = typer.Typer()
_app.command()(demo)


def _small(kind: str, seed: int) -> demo_room.Scenario:
    data = f"synthetic-ratings:users=150,items=200,mean_history=12,seed={seed}"
    requests = (
        Request("fedmf", data, seed, "loo-99", rounds=3, settings=("cohort.size=20",)),
        Request("ease", data, seed, "loo-99"),
    )
    return demo_room.Scenario(kind, seed, data, "little", "fedmf", requests, ("Train.", "Compare."), ("A note.",))


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, and a demo that takes a second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_room, "choose_scenario", _small)
    return tmp_path


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(_app, list(arguments), catch_exceptions=False)


def test_it_leaves_a_report_runs_and_a_picture(room: Path) -> None:
    result = _run()
    assert result.exit_code == 0
    for word in ("fedmf", "ease", "popularity", "random", "no privacy guarantee", "A simulated run protects nobody"):
        assert word in " ".join(result.stdout.split())
    assert "1. Make up little." in result.stderr
    assert "<svg" in (room / "report.html").read_text()
    assert (room / "veilrec-demo" / "curves.svg").read_text().startswith("<?xml")
    assert (room / "veilrec-demo" / "fedmf" / "result.json").exists()


def test_json_is_one_object_and_says_the_same_as_the_files(room: Path) -> None:
    result = _run("--json", "--seed", "5", "--out", "here", "--report", "page.html")
    said = json.loads(result.stdout)
    saved = json.loads((room / "here" / "fedmf" / "result.json").read_text())
    assert said["metrics"]["fedmf"] == saved["metrics"]
    assert said["baselines"] == saved["baselines"]
    assert said["communication"]["up_bytes"] == saved["communication"]["up_bytes"]
    assert said["seed"] == 5
    assert said["best_possible"]["hr@10"] > said["baselines"]["random"]["hr@10"]
    assert len(said["recommendations"]["items"]) == 10
    assert (said["report"], said["out"]) == ("page.html", "here")
    assert "veilrec demo --seed 5 --out here --report page.html" in (room / "page.html").read_text()


def test_it_can_be_run_again_and_keeps_what_is_not_its_own(room: Path) -> None:
    first = json.loads(_run("--json").stdout)
    (room / "veilrec-demo" / "notes.txt").write_text("mine")
    again = json.loads(_run("--json").stdout)
    assert first["metrics"] == again["metrics"]
    assert (room / "veilrec-demo" / "notes.txt").read_text() == "mine"


def test_a_demo_that_was_broken_off_is_replaced(room: Path) -> None:
    demo_room.check_places(_small("ratings", 0), room / "veilrec-demo", room / "report.html")
    assert _run().exit_code == 0


def test_it_refuses_a_folder_of_somebody_else_and_touches_nothing(room: Path) -> None:
    (room / "veilrec-demo" / "fedmf").mkdir(parents=True)
    (room / "veilrec-demo" / "fedmf" / "thesis.tex").write_text("years")
    with pytest.raises(BadInput, match="no former demo"):
        _run()
    assert (room / "veilrec-demo" / "fedmf" / "thesis.tex").exists()
    assert not (room / "report.html").exists()


def test_it_refuses_a_report_of_somebody_else_before_any_work(room: Path) -> None:
    (room / "report.html").write_text("<h1>Sales</h1>")
    with pytest.raises(BadInput, match="no report of veilrec"):
        _run()
    assert not (room / "veilrec-demo").exists()


def test_it_refuses_a_place_where_no_report_can_be_written_before_any_work(room: Path) -> None:
    (room / "file").write_text("not a folder")
    with pytest.raises(BadInput, match=r"cannot be written to file/report\.html .*choose another --report"):
        _run("--report", "file/report.html")
    assert [path.name for path in room.iterdir()] == ["file"]


def test_it_refuses_a_file_or_a_link_as_its_folder(room: Path) -> None:
    (room / "veilrec-demo").write_text("a file")
    with pytest.raises(BadInput, match="not a folder"):
        _run()
    (room / "elsewhere").mkdir()
    (room / "link").symlink_to(room / "elsewhere")
    with pytest.raises(BadInput, match="not a folder"):
        _run("--out", "link")


def test_the_news_demo_is_honest_about_ids() -> None:
    scenario = demo_room.choose_scenario("news", 4)
    assert scenario.data.startswith("synthetic-news:") and scenario.data.endswith("seed=4")
    assert {request.protocol for request in scenario.requests} == {"mind"}
    assert "by its id alone" in scenario.notes[0]


@pytest.mark.slow
def test_the_real_demo_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above popularity, and close to the same model trained in one place (4,000 cases: sd 0.008)."""
    monkeypatch.chdir(tmp_path)
    said = json.loads(_run("--json").stdout)
    hits = {name: values["hr@10"] for name, values in (said["metrics"] | said["baselines"]).items()}
    assert hits["fedmf"] > hits["popularity"] + 0.1
    assert abs(hits["fedmf"] - hits["mf"]) < 0.05
    assert hits["popularity"] > hits["random"] + 0.1
    assert max(hits.values()) < said["best_possible"]["hr@10"] + 0.03
