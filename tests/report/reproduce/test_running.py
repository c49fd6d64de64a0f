"""From an experiment to runs that are read again, go on, or fail alone."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.report.reproduce.toys import DATA, EXPERIMENTS, FEDMF, OUT, SMALL, TOY, quiet, with_rows
from veilrec.core.errors import BadInput
from veilrec.methods.priv_fedmf_sub import fedmf
from veilrec.report.reproduce.experiment import ExperimentRow
from veilrec.report.reproduce.results import execute
from veilrec.report.reproduce.study import StudyOptions, make_study
from veilrec.runs.checkpoint import read_config
from veilrec.runs.loop import Interrupted
from veilrec.runs.request import RunRequest
from veilrec.runs.trials import RunTrial, finished, title

BARE = ExperimentRow("FedMF", "fedmf")
PRIVATE = ExperimentRow("DP-FedMF", "dp-fedmf", presets=("tuned",))
NEWS = ExperimentRow("FedNewsRec", "fednewsrec", presets=("tuned",), calibrations=("as-published", "none"))
MF = ExperimentRow("MF", "mf", presets=("tuned",))


def variants(*rows, data=DATA, **options):
    study = make_study(with_rows(*rows), StudyOptions(data=data, **options), OUT)
    return [(v.row.label, v.preset, v.calibration) for p in study.panels for v in p.variants]


def trials_of(out, *rows):
    return make_study(with_rows(*rows), StudyOptions(quick=True), out).trials()


def test_presets_calibrations_and_rows_are_chosen():
    paper, tuned = ("FedMF", "paper", None), ("FedMF", "tuned", None)
    published, proven = (("DP-FedMF", "tuned", name) for name in ("as-published", "proven"))
    news = [("FedNewsRec", "tuned", name) for name in ("as-published", "none")]
    for rows, options, expected in (
        ((BARE, PRIVATE), {}, [paper, tuned, published, proven]),
        ((BARE,), {"presets": ("paper",)}, [paper]),
        ((FEDMF, PRIVATE), {"calibrations": ("proven",)}, [tuned, proven]),
        ((FEDMF, PRIVATE), {"methods": ("fedmf",)}, [tuned]),
        ((NEWS,), {"data": "synthetic-news"}, news),
        ((NEWS,), {"data": "synthetic-news", "calibrations": ("none",)}, news[1:]),
    ):
        assert variants(*rows, **options) == expected


def test_settings_and_folders_of_trials():
    row = ExperimentRow("DP-FedMF", "dp-fedmf", tuned_as_published=("privacy.epsilon=2",))
    made = make_study(with_rows(row), StudyOptions(seeds=1, data=DATA), OUT).panels[0].variants
    settings = {(v.preset, v.calibration): v.trials[0].request.settings for v in made}
    assert settings["tuned", "as-published"] == ("privacy.epsilon=2", "calibration=as-published")
    assert settings["tuned", "proven"] == ("calibration=proven",)
    assert settings["paper", "as-published"] == ("calibration=as-published",)
    trials = make_study(with_rows(FEDMF), StudyOptions(seeds=4, data=DATA), OUT).trials()
    assert [trial.request.seed for trial in trials] == [0, 1, 2, 3]
    others = [
        make_study(with_rows(replace(FEDMF, settings=given)), StudyOptions(data=DATA, protocol=protocol), OUT).trials()
        for given, protocol in ((SMALL, None), ((), None), (SMALL, "loo-full"))
    ]
    assert others[0][0].folder == trials[0].folder
    assert len({trial.folder for trial in (*trials, *(every[0] for every in others))}) == 6


def test_what_is_not_there_is_said_and_does_not_stop_the_rest():
    rows = (
        ExperimentRow("Gone", "no-such-method"),
        ExperimentRow("Odd", "fedmf", settings=("no_such_setting=1",), presets=("tuned",)),
        ExperimentRow("Bare", "popularity", presets=("paper",)),
        FEDMF,
    )
    (panel,) = make_study(with_rows(*rows), StudyOptions(data=DATA), OUT).panels
    found = {variant.row.label: variant.problem for variant in panel.variants}
    assert "no_such_setting" in found.pop("Odd")
    gone, bare = "this version has no method no-such-method", "popularity has no preset paper"
    assert found == {"Gone": f"not available: {gone}", "Bare": f"not available: {bare}", "FedMF": ""}
    for name, experiment in EXPERIMENTS.items():  # and no preset of a paper's row is missing
        study = make_study(experiment, StudyOptions(quick=True, skip_missing=True), OUT)
        assert [line for line in study.left_out() if "not available" in line] == [], name


def test_without_data_a_study_is_refused_left_out_or_of_synthetic_data(no_data):
    with pytest.raises(BadInput, match=r"ml-1m was not found.*veilrec data fetch ml-1m.*--quick"):
        make_study(TOY, StudyOptions(), OUT)
    study = make_study(replace(TOY, panels=(replace(TOY.panels[0], required=False),)), StudyOptions(), OUT)
    assert study.panels == ()
    assert "Table 0 is left out: ml-1m was not found." in study.notes
    study = make_study(EXPERIMENTS["fedmf-accuracy"], StudyOptions(quick=True, seeds=5), OUT)
    assert (study.seeds, [panel.data.partition(":")[0] for panel in study.panels]) == ((0,), ["synthetic-ratings"])
    assert study.notes[0].startswith("Quick: 10 rounds of one seed, preset tuned")
    assert any("cannot be compared" in note for note in study.notes)
    assert {trial.request.rounds for trial in study.trials()} == {10}
    study = make_study(EXPERIMENTS["fednewsrec-fig4"], StudyOptions(quick=True), OUT)
    assert {variant.row.at for variant in study.panels[0].variants} == {100, 300}  # others need more than 500 users
    for name, protocols in (("markov", {"loo-99", "loo-full"}), ("ease", {"loo-99", "loo-full", "ratio-8-2"})):
        study = make_study(EXPERIMENTS["frontier"], StudyOptions(quick=True, methods=(name,)), OUT)
        assert {panel.protocol for panel in study.panels} == protocols


def test_other_data_takes_the_panel_of_its_name_or_the_first():
    assert make_study(TOY, StudyOptions(data=DATA), OUT).panels[0].data == DATA
    accuracy = EXPERIMENTS["fedmf-accuracy"]
    study = make_study(accuracy, StudyOptions(data=DATA), OUT)
    assert study.panels[0].panel is accuracy.panels[0]
    assert "cannot be compared" in study.notes[0]
    assert make_study(EXPERIMENTS["fedmf-lean"], StudyOptions(data=DATA), OUT).notes == ()  # our own figure
    for name, data, words in (
        ("fednewsrec-fig7", DATA, "no row of fednewsrec-fig7 can be run: .* does not learn from synthetic-ratings"),
        ("fedmf-accuracy", "csv:none.csv", r"none\.csv is not there"),
    ):
        with pytest.raises(BadInput, match=words):
            make_study(EXPERIMENTS[name], StudyOptions(data=data), OUT)


def test_quick_takes_the_presets_that_are_asked_for_and_says_which_it_leaves_out():
    experiment = EXPERIMENTS["fedmf-accuracy"]

    def presets(*asked):
        study = make_study(experiment, StudyOptions(quick=True, data=DATA, presets=asked), OUT)
        return {variant.preset for panel in study.panels for variant in panel.variants}, study.notes[0]

    told, note = presets()
    assert told == {"tuned"} and "preset tuned where there is one (--preset paper for the other)" in note
    for asked in (("paper",), ("paper", "tuned")):
        told, note = presets(*asked)
        assert told == set(asked) and "preset" not in note


def test_quick_never_has_more_rounds_than_the_whole_and_comes_before_a_rows_own_settings():
    long, own = replace(FEDMF, settings=("rounds=40",)), replace(FEDMF, settings=("cohort.size=7",))
    titles = [title(trial) for trial in trials_of(OUT, long, MF)]
    (whole,) = make_study(with_rows(long), StudyOptions(seeds=1, data=DATA), OUT).trials()
    assert [*titles, title(whole)] == [
        "fedmf on synthetic-ratings, tuned, 3 rounds, seed 0",
        "mf on synthetic-ratings, tuned, 1 epoch, seed 0",
        "fedmf on synthetic-ratings, tuned, 40 rounds, seed 0",
    ]
    experiment = replace(with_rows(own), quick=replace(TOY.quick, settings=SMALL, rounds=9))
    (trial,) = make_study(experiment, StudyOptions(quick=True), OUT).trials()
    assert trial.request.settings == ("cohort.size=20", "cohort.size=7")  # quick says how many rounds there are
    assert trial.request.rounds == 9
    for quick, names in ((False, {"hr@10", "paper_params"}), (True, {"hr@10"})):  # totals are of the paper's rounds
        (panel,) = make_study(TOY, StudyOptions(data=DATA, quick=quick), OUT).panels
        assert set(panel.variants[0].row.printed) == names


def test_bad_options_are_refused():
    for options, words in (
        (StudyOptions(seeds=0), "--seeds is 0"),
        (StudyOptions(protocol="loo-98"), "did you mean loo-99"),
        (StudyOptions(presets=("best",)), "unknown preset"),
        (StudyOptions(data="ml-2m"), "unknown data set"),
        (StudyOptions(calibrations=("proved",)), "did you mean proven"),
        (StudyOptions(methods=("dp-fedmv",)), "unknown method of toy.*did you mean dp-fedmf"),
        (StudyOptions(data=DATA, presets=("paper",)), "no row of toy is left by --preset, --calibration and --method"),
    ):
        with pytest.raises(BadInput, match=words):
            make_study(TOY, options, OUT)
    with pytest.raises(BadInput, match="--jobs is 0"):
        execute([], jobs=0, say=quiet)


def test_a_finished_run_is_read_and_not_run_again(toy_study, toy_summary):
    said = []
    before = {t.folder: (t.folder / "result.json").stat().st_mtime_ns for t in toy_study.trials()}
    execute(toy_study.trials(), say=said.append)
    assert {folder: (folder / "result.json").stat().st_mtime_ns for folder in before} == before
    assert said == ["3 of 3 runs are finished already and are read again."]


def stop_after_two(progress, report):
    if progress.rounds_done == 2:
        raise Interrupted("stopped")


def interrupted(out):
    (cut,) = trials_of(out, FEDMF)
    listener = SimpleNamespace(on_round=stop_after_two, on_metrics=lambda progress, metrics: None)
    with pytest.raises(Interrupted, match="the same command goes on"):
        execute([cut], say=quiet, follow=lambda title, rounds: nullcontext(listener))
    assert not finished(cut)
    return cut


def test_an_interrupted_run_goes_on_and_ends_the_same(tmp_path):
    (whole,) = trials_of(tmp_path / "whole", FEDMF)
    expected = execute([whole], say=quiet)[whole.folder].result
    cut = interrupted(tmp_path / "cut")
    result = execute([cut], say=quiet)[cut.folder].result
    assert (result["weights_sha256"], result["metrics"]) == (expected["weights_sha256"], expected["metrics"])


def test_a_run_that_fails_leaves_the_others_alone(tmp_path):
    said = []
    failed, fine = trials_of(tmp_path, replace(FEDMF, settings=("cohort.size=100000",)), MF)
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


def test_a_run_that_settled_for_a_smaller_cohort_is_finished_all_the_same(tmp_path):
    said = []
    data = "synthetic-ratings:users=20,items=200,mean_history=12,seed=3"
    trial = RunTrial(RunRequest("fedmf", data, protocol="loo-99", rounds=1), tmp_path / "run")
    for _ in range(2):
        execute([trial], say=said.append)
    assert said == ["1 of 1 runs are finished already and are read again."]
    assert read_config(trial.folder)["config"]["cohort"]["size"] == 20 < fedmf.FEDMF.config().cohort.size
