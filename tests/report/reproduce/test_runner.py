"""Runs that are read again, go on, or fail alone."""

from __future__ import annotations

import json

import pytest

from tests.report.reproduce.toys import SMALL, with_rows
from veilrec.errors import BadInput
from veilrec.report.reproduce.experiment import Row
from veilrec.report.reproduce.plan import Options, make_plan
from veilrec.report.reproduce.runner import execute, finished
from veilrec.simulate.run import Interrupted

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


def test_another_run_in_the_folder_does_not_count(tmp_path):
    (trial,) = trials_of(tmp_path, MF)
    execute([trial], say=quiet)
    config = trial.folder / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: 7"))
    assert json.loads((trial.folder / "result.json").read_text())["seed"] == 0
    assert not finished(trial)


def test_jobs_below_one_are_refused():
    with pytest.raises(BadInput, match="--jobs is 0"):
        execute([], jobs=0, say=quiet)
