"""Runs that are read again, go on, or fail alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.reproduce.toys import SMALL, with_rows
from veilrec.errors import BadInput
from veilrec.methods import fedmf
from veilrec.report.reproduce.experiment import Row
from veilrec.report.reproduce.plan import Options, make_plan
from veilrec.report.reproduce.runner import execute, finished
from veilrec.report.reproduce.variants import Trial
from veilrec.runs.loop import Interrupted
from veilrec.runs.training import Request, read_config

FEDMF = Row("FedMF", "fedmf", settings=SMALL, presets=("tuned",))
MF = Row("MF", "mf", presets=("tuned",))


def quiet(_: str) -> None:
    """Say nothing."""


def trials_of(out, *rows):
    return make_plan(with_rows(*rows), Options(quick=True), out).trials()


def test_a_finished_run_is_read_and_not_run_again(toy_plan, toy_summary):
    said = []
    before = {t.folder: (t.folder / "result.json").stat().st_mtime_ns for t in toy_plan.trials()}
    execute(toy_plan.trials(), say=said.append)
    assert all(finished(trial) for trial in toy_plan.trials())
    assert {folder: (folder / "result.json").stat().st_mtime_ns for folder in before} == before
    assert said == ["3 of 3 runs are finished already and are read again."]


def test_an_interrupted_run_goes_on_and_ends_the_same(tmp_path):
    (whole,) = trials_of(tmp_path / "whole", FEDMF)
    (cut,) = trials_of(tmp_path / "cut", FEDMF)
    expected = execute([whole], say=quiet)[whole.folder].result
    seen = _StopAfter(2)
    with pytest.raises(Interrupted, match="the same command goes on"):
        execute([cut], say=quiet, follow=lambda title, rounds: seen)
    assert not finished(cut)
    result = execute([cut], say=quiet)[cut.folder].result
    assert result["weights_sha256"] == expected["weights_sha256"]
    assert result["metrics"] == expected["metrics"]


class _StopAfter:
    """A listener who has had enough after so many rounds."""

    def __init__(self, rounds):
        self.rounds = rounds

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False

    def on_metrics(self, progress, metrics):
        pass

    def on_round(self, progress, report):
        if progress.rounds_done == self.rounds:
            raise Interrupted("stopped")


def test_a_run_that_fails_leaves_the_others_alone(tmp_path):
    said = []
    too_many = Row("FedMF", "fedmf", settings=("cohort.size=100000",), presets=("tuned",))
    failed, fine = trials_of(tmp_path, too_many, MF)
    outcomes = execute([failed, fine], say=said.append)
    assert outcomes[failed.folder].result is None
    assert "cohort.size is 100000" in outcomes[failed.folder].problem
    assert outcomes[fine.folder].result["method"] == "mf"
    assert len(said) == 1


def test_two_processes_give_what_one_gives(tmp_path):
    alone, together = trials_of(tmp_path / "1", FEDMF, MF), trials_of(tmp_path / "2", FEDMF, MF)
    one, two = execute(alone, say=quiet), execute(together, jobs=2, say=quiet)
    for left, right in zip(alone, together, strict=True):
        assert one[left.folder].result["metrics"] == two[right.folder].result["metrics"]


def change(trial, old, new):
    config = trial.folder / "config.yaml"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("seed: 0", "seed: 7", "seed was 7 and is 0 today"),
        ("    epochs: 5", "    epochs: 3", "config.local.epochs was 3 and is 5 today"),  # a default of another day
        ("rounds: 3", "rounds: 30", "rounds was 30 and is 3 today"),
        ("method: fedmf", "", "its config.yaml cannot be read"),
    ],
)
def test_another_run_in_the_folder_is_trained_anew(tmp_path, old, new, why):
    said = []
    (trial,) = trials_of(tmp_path, FEDMF)
    expected = execute([trial], say=quiet)[trial.folder].result
    change(trial, old, new)
    assert not finished(trial)
    result = execute([trial], say=said.append)[trial.folder].result
    kept = trial.folder.with_name(f"{trial.folder.name}-before-1")
    run = "fedmf on synthetic-ratings, tuned cohort.size=20 rounds=3, seed 0"
    assert said == [f"{run}: trained anew, because {why}; the old run is now {kept.name}."]
    assert (kept / "result.json").exists()
    assert finished(trial)
    assert result["weights_sha256"] == expected["weights_sha256"]


def test_an_interrupted_run_with_other_settings_is_trained_anew(tmp_path):
    said = []
    (trial,) = trials_of(tmp_path, FEDMF)
    with pytest.raises(Interrupted):
        execute([trial], say=quiet, follow=lambda title, rounds: _StopAfter(2))
    change(trial, "    epochs: 5", "    epochs: 3")
    assert execute([trial], say=said.append)[trial.folder].result is not None
    assert len(said) == 1
    assert "because config.local.epochs was 3 and is 5 today;" in said[0]


def test_a_run_that_settled_for_a_smaller_cohort_is_finished_all_the_same(tmp_path):
    said = []
    data = "synthetic-ratings:users=20,items=200,mean_history=12,seed=3"
    trial = Trial(Request("fedmf", data, protocol="loo-99", rounds=1), tmp_path / "run")
    for _ in range(2):
        execute([trial], say=said.append)
    assert said == ["1 of 1 runs are finished already and are read again."]
    size = read_config(trial.folder)["config"]["cohort"]["size"]
    assert size == 20 < fedmf.METHOD.config().cohort.size


def test_a_change_of_a_preset_makes_a_finished_run_out_of_date(tmp_path, monkeypatch):
    (trial,) = trials_of(tmp_path, FEDMF)
    execute([trial], say=quiet)
    presets = {**fedmf.METHOD.presets, "tuned": {"local": {"epochs": 2}}}
    monkeypatch.setattr(fedmf, "METHOD", replace(fedmf.METHOD, presets=presets))
    assert not finished(trial)


def test_jobs_below_one_are_refused():
    with pytest.raises(BadInput, match="--jobs is 0"):
        execute([], jobs=0, say=quiet)
