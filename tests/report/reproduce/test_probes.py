"""Models before training, and models as they are asked: measured once, and only of what there is."""

import json
from dataclasses import replace
from unittest import mock

import pytest

from tests.report.reproduce.toys import FEDMF, SMALL, quiet, run, with_rows
from veilrec.client.queries import Serving
from veilrec.core.errors import BadInput
from veilrec.report.reproduce import results
from veilrec.report.reproduce.results import RunOutcome, execute, summarise, take
from veilrec.report.reproduce.study import StudyOptions, make_study
from veilrec.report.reproduce.summary import grids, to_json
from veilrec.runs.checkpoint import read_result

START = replace(FEDMF, label="FedMF, untrained", untrained=True)
SERVED = replace(FEDMF, label="FedMF, asked", serving=Serving(mode="vector", epsilon=10.0))


def study_of(out, *rows):
    return make_study(with_rows(*rows), StudyOptions(quick=True), out)


@pytest.fixture
def asked(monkeypatch):
    """Models that say how they were asked, and a list of the runs that were."""
    seen = []

    def answer(folder, serving):
        seen.append((folder.name, serving))
        result = read_result(folder)
        return {**result, "metrics": {**result["metrics"], "hr@10": 0.25}}

    monkeypatch.setattr(results, "_served", answer)
    return seen


def test_the_start_needs_no_run_and_is_measured_once(tmp_path):
    study = study_of(tmp_path, START)
    assert study.trials() == []
    (probe,) = study.probes()
    said = []
    first = take([probe], {}, say=said.append)
    assert take([probe], {}, say=said.append) == first
    assert len(said) == 1
    assert not (tmp_path / "runs").exists()


def test_the_start_is_not_the_trained_model(tmp_path):
    study = study_of(tmp_path, START, FEDMF)
    summary = summarise(study, run(study))
    start, trained = summary.panels[0].lines
    assert start.measured["ndcg@10"].mean != trained.measured["ndcg@10"].mean
    assert (start.rounds, trained.rounds) == (None, 3)
    assert start.guarantee.basis == "none"
    table = grids(summary)[0]
    assert ["FedMF, untrained", "no training"] in [list(row[:2]) for row in table.rows]
    assert table.title.endswith(", 3 rounds")  # the start has none
    rows = to_json(summary, "command")["panels"][0]["rows"]
    assert [row["untrained"] for row in rows] == [True, False]


def test_a_run_is_trained_once_however_often_it_is_asked(tmp_path, asked):
    other = replace(FEDMF, label="FedMF, again", serving=Serving(mode="vector", epsilon=1.0))
    study = study_of(tmp_path, FEDMF, SERVED, other)
    (trial,) = study.trials()
    summary = summarise(study, run(study))
    assert [serving.epsilon for _, serving in asked] == [10.0, 1.0]
    assert {name for name, _ in asked} == {trial.folder.name}
    own, served, _ = summary.panels[0].lines
    assert served.measured["hr@10"].mean == 0.25 != own.measured["hr@10"].mean
    assert served.variant.how == "tuned, asked: vector, proven"
    assert to_json(summary, "c")["panels"][0]["rows"][1]["serving"] == "vector epsilon=10"


def test_another_model_or_a_damaged_measurement_is_measured_anew(tmp_path, asked):
    study = study_of(tmp_path, SERVED)
    (trial,), (probe,) = study.trials(), study.probes()
    runs = execute([trial], say=quiet)
    good = take([probe], runs, say=quiet)
    assert take([probe], runs, say=quiet) == good
    assert len(asked) == 1
    probe.place.write_text("{")
    assert take([probe], runs, say=quiet) == good
    path = trial.folder / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "weights_sha256": "another"}))
    take([probe], runs, say=quiet)
    assert len(asked) == 3


def test_of_a_run_that_failed_nothing_is_measured(tmp_path, asked):
    study = study_of(tmp_path, SERVED)
    (probe,) = study.probes()
    runs = {probe.trial.folder: RunOutcome(None, problem="failed: too few")}
    found = take([probe], runs, say=quiet)
    assert (found[probe.place].problem, asked) == ("failed: too few", [])


def test_a_model_that_cannot_be_asked_so_stops_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "_served", mock.Mock(side_effect=BadInput("no such mode")))
    study = study_of(tmp_path, SERVED, START)
    served, start = summarise(study, run(study)).panels[0].lines
    assert served.problem == "failed: no such mode"
    assert start.measured
    assert not any(place.exists() for place in served.variant.places())


def test_two_processes_measure_what_one_measures(tmp_path):
    rows = [replace(START, label=f"{dim}", settings=(*SMALL, f"local.dim={dim}")) for dim in (4, 8)]
    probes_of = [study_of(tmp_path / name, *rows).probes() for name in ("one", "two")]
    one, two = take(probes_of[0], {}, say=quiet), take(probes_of[1], {}, jobs=2, say=quiet)
    for left, right in zip(*probes_of, strict=True):
        assert one[left.place].result == two[right.place].result
