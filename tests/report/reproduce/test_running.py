"""From an experiment to runs that are read again, go on, or fail alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.reproduce.toys import DATA, EXPERIMENTS, SMALL, TOY, with_rows
from veilrec.core.errors import BadInput
from veilrec.methods.priv_fedmf_sub import fedmf
from veilrec.report.reproduce.experiment import ExperimentRow
from veilrec.report.reproduce.results import execute
from veilrec.report.reproduce.study import StudyOptions, make_study
from veilrec.runs.checkpoint import read_config
from veilrec.runs.loop import Interrupted
from veilrec.runs.request import RunRequest
from veilrec.runs.trials import RunTrial, finished, title

OUT = Path("nowhere")


def variants(experiment, data=DATA, **options):
    study = make_study(experiment, StudyOptions(data=data, **options), OUT)
    return [(v.row.label, v.preset, v.calibration, v.problem) for p in study.panels for v in p.variants]


def test_calibrations_and_presets_are_all_run():
    rows = (ExperimentRow("FedMF", "fedmf"), ExperimentRow("DP-FedMF", "dp-fedmf", presets=("tuned",)))
    assert variants(with_rows(*rows)) == [
        ("FedMF", "paper", None, ""),
        ("FedMF", "tuned", None, ""),
        ("DP-FedMF", "tuned", "as-published", ""),
        ("DP-FedMF", "tuned", "proven", ""),
    ]
    assert variants(with_rows(rows[0]), presets=("paper",)) == [("FedMF", "paper", None, "")]


def test_rows_can_be_left_out():
    rows = (
        ExperimentRow("FedMF", "fedmf", presets=("tuned",)),
        ExperimentRow("DP-FedMF", "dp-fedmf", presets=("tuned",)),
    )
    assert variants(with_rows(*rows), calibrations=("proven",)) == [
        ("FedMF", "tuned", None, ""),
        ("DP-FedMF", "tuned", "proven", ""),
    ]
    assert [row[0] for row in variants(with_rows(*rows), methods=("fedmf",))] == ["FedMF"]


def test_a_row_may_ask_for_training_without_noise():
    row = ExperimentRow("FedNewsRec", "fednewsrec", presets=("tuned",), calibrations=("as-published", "none"))
    expected = [("FedNewsRec", "tuned", "as-published", ""), ("FedNewsRec", "tuned", "none", "")]
    assert variants(with_rows(row), "synthetic-news") == expected
    assert variants(with_rows(row), "synthetic-news", calibrations=("none",)) == expected[1:]


def test_published_noise_has_settings_of_its_own():
    row = ExperimentRow("DP-FedMF", "dp-fedmf", tuned_as_published=("privacy.epsilon=2",))
    settings = {
        (v.preset, v.calibration): v.trials[0].request.settings
        for v in make_study(with_rows(row), StudyOptions(seeds=1, data=DATA), OUT).panels[0].variants
    }
    assert settings["tuned", "as-published"] == ("privacy.epsilon=2", "calibration=as-published")
    assert settings["tuned", "proven"] == ("calibration=proven",)
    assert settings["paper", "as-published"] == ("calibration=as-published",)


def test_seeds_are_runs_of_their_own():
    study = make_study(
        with_rows(ExperimentRow("FedMF", "fedmf", presets=("tuned",))), StudyOptions(seeds=4, data=DATA), OUT
    )
    assert [trial.request.seed for trial in study.trials()] == [0, 1, 2, 3]
    assert len({trial.folder for trial in study.trials()}) == 4


def test_what_is_not_there_is_said_and_does_not_stop_the_rest():
    rows = (
        ExperimentRow("Gone", "no-such-method"),
        ExperimentRow("Odd", "fedmf", settings=("no_such_setting=1",), presets=("tuned",)),
        ExperimentRow("Bare", "popularity", presets=("paper",)),
        ExperimentRow("FedMF", "fedmf", presets=("tuned",)),
    )
    found = {label: problem for label, _, _, problem in variants(with_rows(*rows))}
    assert found["Gone"] == "not available: this version has no method no-such-method"
    assert "no_such_setting" in found["Odd"]
    assert found["Bare"] == "not available: popularity has no preset paper"
    assert found["FedMF"] == ""


def test_missing_data_is_refused_with_the_way_to_get_it(no_data):
    with pytest.raises(BadInput, match=r"ml-1m was not found.*veilrec data fetch ml-1m.*--quick"):
        make_study(TOY, StudyOptions(), OUT)


def test_a_panel_that_may_be_missing_is_left_out(no_data):
    study = make_study(replace(TOY, panels=(replace(TOY.panels[0], required=False),)), StudyOptions(), OUT)
    assert study.panels == ()
    assert "Table 0 is left out: ml-1m was not found." in study.notes


def test_quick_falls_back_to_made_up_data_and_says_so(no_data):
    study = make_study(EXPERIMENTS["fedmf-accuracy"], StudyOptions(quick=True, seeds=5), OUT)
    assert study.seeds == (0,)
    assert [panel.data.partition(":")[0] for panel in study.panels] == ["synthetic-ratings"]
    assert study.notes[0] == "Quick: 10 rounds of one seed: to see that it runs, not to quote."
    assert any("cannot be compared" in note for note in study.notes)
    assert {trial.request.rounds for trial in study.trials()} == {10}


def test_other_data_takes_the_panel_of_its_name_or_the_first():
    assert make_study(TOY, StudyOptions(data=DATA), OUT).panels[0].data == DATA
    accuracy = EXPERIMENTS["fedmf-accuracy"]
    study = make_study(accuracy, StudyOptions(data=DATA), OUT)
    assert study.panels[0].panel is accuracy.panels[0]
    assert "cannot be compared" in study.notes[0]


def test_our_own_figures_are_compared_with_nobodys_data():
    assert make_study(EXPERIMENTS["fedmf-lean"], StudyOptions(data=DATA), OUT).notes == ()


def test_every_setting_has_a_folder_of_its_own():
    def folder(**request):
        options = {"protocol": request.pop("protocol", None)}
        row = ExperimentRow("FedMF", "fedmf", presets=("tuned",), **request)
        return make_study(with_rows(row), StudyOptions(seeds=1, data=DATA, **options), OUT).trials()[0].folder

    assert folder() == folder()
    assert len({folder(), folder(settings=SMALL), folder(protocol="loo-full")}) == 3


def test_a_rows_own_settings_come_after_those_of_quick():
    quick = replace(with_rows(ExperimentRow("FedMF", "fedmf", settings=("cohort.size=7",))).quick, settings=SMALL)
    study = make_study(
        replace(with_rows(ExperimentRow("FedMF", "fedmf", settings=("cohort.size=7",))), quick=quick),
        StudyOptions(quick=True),
        OUT,
    )
    (trial,) = study.trials()
    assert trial.request.settings == ("cohort.size=20", "cohort.size=7")  # quick says how many rounds there are
    assert trial.request.rounds == 3


def test_quick_never_has_more_rounds_than_the_whole_and_the_title_says_how_many_there_are():
    rows = ExperimentRow("FedMF", "fedmf", settings=("rounds=40",), presets=("tuned",)), MF
    fedmf_trial, mf_trial = make_study(with_rows(*rows), StudyOptions(quick=True), OUT).trials()
    assert title(fedmf_trial) == "fedmf on synthetic-ratings, tuned, 3 rounds, seed 0"
    assert title(mf_trial) == "mf on synthetic-ratings, tuned, 1 epoch, seed 0"
    whole = make_study(with_rows(rows[0]), StudyOptions(seeds=1, data=DATA), OUT).trials()[0]
    assert title(whole) == "fedmf on synthetic-ratings, tuned, 40 rounds, seed 0"
    few = replace(with_rows(ExperimentRow("Two", "fedmf", settings=("rounds=2",))), quick=replace(TOY.quick, rounds=9))
    assert make_study(few, StudyOptions(quick=True), OUT).trials()[0].request.rounds == 9  # of the preset's 100


def test_the_papers_totals_are_of_its_rounds_and_stand_beside_no_others():
    def printed(**options):
        return [set(v.row.printed) for v in make_study(TOY, StudyOptions(data=DATA, **options), OUT).panels[0].variants]

    assert printed()[0] == {"hr@10", "paper_params"}
    assert printed(quick=True)[0] == {"hr@10"}


def test_quick_leaves_out_what_small_data_is_too_small_for(no_data):
    study = make_study(EXPERIMENTS["fednewsrec-fig4"], StudyOptions(quick=True), OUT)
    assert {variant.row.at for variant in study.panels[0].variants} == {100, 300}  # of 500 users


def test_panels_without_the_method_that_is_asked_for_are_left_out(no_data):
    asked = {
        name: make_study(EXPERIMENTS["frontier"], StudyOptions(quick=True, methods=(name,)), OUT)
        for name in ("markov", "ease")
    }
    protocols = {name: {panel.protocol for panel in study.panels} for name, study in asked.items()}
    assert protocols == {"markov": {"loo-99", "loo-full"}, "ease": {"loo-99", "loo-full", "ratio-8-2"}}


def test_data_that_no_row_learns_from_is_refused():
    with pytest.raises(
        BadInput, match="no row of fednewsrec-fig7 can be run: .* does not learn from synthetic-ratings"
    ):
        make_study(EXPERIMENTS["fednewsrec-fig7"], StudyOptions(data=DATA), OUT)
    with pytest.raises(BadInput, match=r"none\.csv is not there"):
        make_study(TOY, StudyOptions(data="csv:none.csv"), OUT)


def test_no_preset_of_a_papers_row_is_missing():
    for name, experiment in EXPERIMENTS.items():
        study = make_study(experiment, StudyOptions(quick=True, skip_missing=True), OUT)
        assert [line for line in study.left_out() if "not available" in line] == [], name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (StudyOptions(seeds=0), "--seeds is 0"),
        (StudyOptions(protocol="loo-98"), "did you mean loo-99"),
        (StudyOptions(presets=("best",)), "unknown preset"),
        (StudyOptions(data="ml-2m"), "unknown data set"),
        (StudyOptions(calibrations=("proved",)), "did you mean proven"),
        (StudyOptions(methods=("dp-fedmv",)), "unknown method of toy.*did you mean dp-fedmf"),
        (StudyOptions(data=DATA, presets=("paper",)), "no row of toy is left by --preset, --calibration and --method"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(BadInput, match=words):
        make_study(TOY, options, OUT)


FEDMF = ExperimentRow("FedMF", "fedmf", settings=SMALL, presets=("tuned",))
MF = ExperimentRow("MF", "mf", presets=("tuned",))


def quiet(_: str) -> None:
    """Say nothing."""


def trials_of(out, *rows):
    return make_study(with_rows(*rows), StudyOptions(quick=True), out).trials()


def test_a_finished_run_is_read_and_not_run_again(toy_study, toy_summary):
    said = []
    before = {t.folder: (t.folder / "result.json").stat().st_mtime_ns for t in toy_study.trials()}
    execute(toy_study.trials(), say=said.append)
    assert all(finished(trial) for trial in toy_study.trials())
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
    too_many = ExperimentRow("FedMF", "fedmf", settings=("cohort.size=100000",), presets=("tuned",))
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
    run = "fedmf on synthetic-ratings, tuned cohort.size=20, 3 rounds, seed 0"
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
    trial = RunTrial(RunRequest("fedmf", data, protocol="loo-99", rounds=1), tmp_path / "run")
    for _ in range(2):
        execute([trial], say=said.append)
    assert said == ["1 of 1 runs are finished already and are read again."]
    size = read_config(trial.folder)["config"]["cohort"]["size"]
    assert size == 20 < fedmf.FEDMF.config().cohort.size


def test_a_change_of_a_preset_makes_a_finished_run_out_of_date(tmp_path, monkeypatch):
    (trial,) = trials_of(tmp_path, FEDMF)
    execute([trial], say=quiet)
    presets = {**fedmf.FEDMF.presets, "tuned": {"local": {"epochs": 2}}}
    monkeypatch.setattr(fedmf, "FEDMF", replace(fedmf.FEDMF, presets=presets))
    assert not finished(trial)


def test_jobs_below_one_are_refused():
    with pytest.raises(BadInput, match="--jobs is 0"):
        execute([], jobs=0, say=quiet)
