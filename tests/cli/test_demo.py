import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.cli.running import says
from veilrec.cli.demo import demo, typed_name
from veilrec.core.errors import BadInput
from veilrec.report import demo as demo_module
from veilrec.report.demo import DemoTraining
from veilrec.runs.request import RunRequest
from veilrec.wire.releases import open_release

_app = typer.Typer()
_app.command()(demo)


def _small(kind, seed):
    data = f"synthetic-ratings:users=150,items=200,mean_history=12,seed={seed}"
    trainings = (
        DemoTraining(RunRequest("fedmf", data, seed, "loo-99", rounds=3, settings=("cohort.size=20",)), "Train."),
        DemoTraining(RunRequest("dp-fedmf", data, seed, "loo-99", rounds=2), "Train with noise."),
        DemoTraining(RunRequest("ease", data, seed, "loo-99"), "Compare."),
    )
    return (demo_module.DemoScenario("ratings", "Films", seed, data, "little", trainings, ("A note.",)),)


def _with_veil(kind, seed):
    (films,) = _small(kind, seed)
    request = RunRequest("veil", films.data, seed, "loo-99", settings=("people=20000",), noise="secure", rounds=3)
    trainings = (*films.trainings[:1], DemoTraining(request, "Train veil."))
    return (replace(films, trainings=trainings, serves="veil", release="release-films"),)


def _shorter(kind, seed, real=demo_module.choose_scenarios):
    """The real scenarios, measured at their end alone, without fm, which only stands beside the others."""
    for scenario in real(kind, seed):
        kept = [one for one in scenario.trainings if one.request.method != "fm"]
        ends = [replace(one, request=replace(one.request, evaluate_every=1000)) for one in kept]
        yield replace(scenario, trainings=tuple(ends))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder, and a demo that takes a second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_module, "choose_scenarios", _small)
    return tmp_path


def _run(line=""):
    return CliRunner().invoke(_app, line.split(), catch_exceptions=False)


def test_it_leaves_a_report_runs_a_picture_and_says_what_is_promised(folder):
    result = _run()
    assert result.exit_code == 0
    said = " ".join(result.stdout.split())
    assert "Generate little." in result.stderr
    promise = "(8, 1e-06)-DP per user (add-remove), whole run, trusting: server, proven"
    says(
        said,
        "fedmf",
        "ease",
        "popularity",
        "random",
        "no privacy guarantee",
        "nothing was hidden from whoever ran them",
    )
    says(
        said,
        f"without what stands in its way it would be {promise}.",
        "veilrec privacy show veilrec-demo/dp-fedmf",
        "3 rounds of 20 clients, to clients",
    )
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "veilrec-demo"]
    made = {path.name for path in (folder / "veilrec-demo").iterdir()}
    assert made == {"demo.json", "ratings.svg", "fedmf", "dp-fedmf", "ease"}
    assert (folder / "veilrec-demo" / "ratings.svg").read_text().startswith("<?xml")
    differs = "not the price of noise alone: fedmf had 3 rounds of 20 clients, dp-fedmf 2 rounds of all 150 clients"
    page = (folder / "report.html").read_text()
    says(
        page,
        "<svg",
        "The price of privacy: dp-fedmf, no guarantee as it is",
        f"would be {promise}, reached",
        f"{differs}, and settings differ (local",
    )


def test_json_is_one_object_and_says_the_same_as_the_files(folder):
    said = json.loads(_run("--json --seed 5 --out here --report page.html").stdout)
    saved = json.loads((folder / "here" / "fedmf" / "result.json").read_text())
    (part,) = said["parts"]
    assert part["metrics"]["fedmf"] == saved["metrics"]
    assert part["baselines"] == saved["baselines"]
    assert part["communication"]["fedmf"]["up_bytes"] == saved["communication"]["up_bytes"]
    assert (part["guarantees"]["dp-fedmf"]["basis"], said["seed"]) == ("proven", 5)
    assert part["best_possible"]["hr@10"] > part["baselines"]["random"]["hr@10"]
    assert (said["report"], said["out"]) == ("page.html", "here")
    page, person = (folder / "page.html").read_text(), part["person"]
    assert "veilrec demo --seed 5 --out here --report page.html" in page
    assert list(person["lists"]) == ["fedmf", "dp-fedmf", "ease", "popularity"]
    for own in person["lists"].values():
        assert [item["fits"] for item in own["items"]] == [
            item["category"] in person["favourites"] for item in own["items"]
        ]
        assert len(own["items"]) == 10
    assert person["lists"]["dp-fedmf"]["items"][0]["title"] in page


def test_a_catalogue_is_released_and_ranked_on_a_client_that_asks_nobody(folder, monkeypatch):
    monkeypatch.setattr(demo_module, "choose_scenarios", _with_veil)
    told = json.loads(_run("--json").stdout)
    assert list(told["services"]) == ["veil"]
    service = told["services"]["veil"]
    assert service["release"]["family"] == "catalogue"
    assert service["audit"] is None
    assert {one["mode"]: one["sent_bytes"] for one in service["asked"]} == {"none-sent": 0, "nobody": 0}
    release = open_release(folder / "veilrec-demo" / "release-films")
    assert release.protected and release.key.hex() == service["release"]["key"]
    page = (folder / "report.html").read_text()
    says(page, "From the model to on-device ranking", "Ranked here by", "serve veilrec-demo/release-films")
    monkeypatch.setattr("sys.argv", [".venv/bin/veilrec", "demo"])
    said = _run().stdout
    says(said, "One client, veil", "veilrec serve veilrec-demo/release-films")
    *steps, last = said.split("Next:")[1].splitlines()[1:]
    assert last.startswith("The last one keeps the service running")
    assert len(steps) == 4 and all(step.startswith("  .venv/bin/veilrec ") for step in steps)


def test_only_a_former_demo_is_replaced(folder):
    first = json.loads(_run("--json").stdout)
    (folder / "veilrec-demo" / "notes.txt").write_text("mine")
    (folder / "veilrec-demo" / "fedmf" / "old").write_text("")
    assert json.loads(_run("--json").stdout)["parts"] == first["parts"]
    assert (folder / "veilrec-demo" / "notes.txt").read_text() == "mine"
    assert not (folder / "veilrec-demo" / "fedmf" / "old").exists()


@pytest.mark.parametrize("full", ["result.json", "demo.json", "report.html", "moving"])
def test_a_full_disk_leaves_everything_as_it_was(folder, monkeypatch, full):
    """Wherever space runs out: in a run, in the demo's own file, in the page, when all is put in its place."""
    before = {"demo.json": "{}", "notes.txt": "mine"}
    (folder / "veilrec-demo").mkdir()
    for name, text in before.items():
        (folder / "veilrec-demo" / name).write_text(text)

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    def failing(write):
        """Fail for files of the name, or of its temporary one."""
        return lambda path, *given, **named: (fail if full in path.name else write)(path, *given, **named)

    if full == "moving":
        monkeypatch.setattr(demo_module, "_move", fail)
    for name in ("write_bytes", "write_text"):
        monkeypatch.setattr(Path, name, failing(getattr(Path, name)))
    with pytest.raises(BadInput, match=r"left nothing behind \(No space left on device\): free some space") as stopped:
        _run()
    assert "\n" not in str(stopped.value)
    monkeypatch.undo()
    assert sorted(path.name for path in folder.iterdir()) == ["veilrec-demo"]
    assert {path.name: path.read_text() for path in (folder / "veilrec-demo").iterdir()} == before


def test_what_is_printed_can_be_pasted(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "veilrec").touch(0o755)
    monkeypatch.chdir(tmp_path)
    for called, path, expected in (
        (".venv/bin/veilrec", "", ".venv/bin/veilrec"),
        ("/opt/with space/veilrec", "", "'/opt/with space/veilrec'"),
        ("bin/veilrec", str(tmp_path / "bin"), "veilrec"),
        ("/usr/lib/python3/pytest", "", "veilrec"),
        ("-c", "", "veilrec"),
    ):
        monkeypatch.setenv("PATH", path)
        monkeypatch.setattr("sys.argv", [called, "demo"])
        assert typed_name() == expected


def test_it_refuses_places_of_somebody_else_before_any_work(folder):
    for name in ("theirs/fedmf", "elsewhere"):
        (folder / name).mkdir(parents=True)
    (folder / "theirs" / "fedmf" / "thesis.tex").write_text("years")
    (folder / "file").write_text("not a folder")
    (folder / "sales.html").write_text("<h1>Sales</h1>")
    (folder / "link").symlink_to(folder / "elsewhere")
    before = sorted(folder.rglob("*"))
    for words, fault in (
        ("--out theirs", "no former demo"),
        ("--out file", "not a folder"),
        ("--out link", "not a folder"),
        ("--report sales.html", "no report of veilrec"),
        ("--report file/report.html", r"file/report\.html cannot be written .*choose another --report"),
    ):
        with pytest.raises(BadInput, match=fault):
            _run(words)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.slow
def test_the_real_demo_learns(tmp_path, monkeypatch):
    """Films: 4,000 cases, sd 0.008. News: 2,800 impressions, sd of a mean AUC below 0.01."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_module, "choose_scenarios", lambda *asked: tuple(_shorter(*asked)))
    told = json.loads(_run("--json").stdout)
    films, news = told["parts"]
    hits = {name: values["hr@10"] for name, values in (films["metrics"] | films["baselines"]).items()}
    assert hits["fedmf"] > hits["popularity"] + 0.1
    assert abs(hits["fedmf"] - hits["mf"]) < 0.05
    assert hits["fedmf"] > hits["dp-fedmf"] > hits["popularity"] + 0.03
    assert hits["veil"] > hits["dp-fedmf"] + 0.03  # at an eighth of its epsilon
    assert hits["popularity"] > hits["random"] + 0.1
    assert max(hits.values()) < films["best_possible"]["hr@10"] + 0.03
    auc = {name: values["auc"] for name, values in (news["metrics"] | news["baselines"]).items()}
    assert auc["privaterec"] > max(auc["popularity"], auc["random"]) + 0.1
    assert max(auc.values()) < news["best_possible"]["auc"]
    service = told["services"]["privaterec"]
    assert service["audit"] == {"method": "privaterec", "holds": True}
    asked = {one["mode"]: one for one in service["asked"]}
    sizes = {"none-sent": 0, "interest": 9, "nobody": 0}  # the others keep too little of the exact list here
    assert {mode: one["sent_bytes"] for mode, one in asked.items()} == sizes
    assert all(one["used"] == mode for mode, one in asked.items())
    release = open_release(tmp_path / "veilrec-demo" / "release")
    assert release.protected and release.key.hex() == service["release"]["key"]
    says((tmp_path / "report.html").read_text(), "From the model to private queries", "serve veilrec-demo/release")
