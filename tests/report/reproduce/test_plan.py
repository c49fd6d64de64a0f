"""From an experiment to runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.reproduce.toys import DATA, SMALL, TOY, with_rows
from veilrec.errors import BadInput
from veilrec.report.reproduce.experiment import Row
from veilrec.report.reproduce.plan import Options, make_plan
from veilrec.report.reproduce.tables import EXPERIMENTS

OUT = Path("nowhere")


def variants(experiment, **options):
    plan = make_plan(experiment, Options(data=DATA, **options), OUT)
    return [(v.row.label, v.preset, v.calibration, v.problem) for p in plan.panels for v in p.variants]


def test_calibrations_and_presets_are_all_run():
    rows = (Row("FedMF", "fedmf"), Row("DP-FedMF", "dp-fedmf", presets=("tuned",)))
    assert variants(with_rows(*rows)) == [
        ("FedMF", "paper", None, ""),
        ("FedMF", "tuned", None, ""),
        ("DP-FedMF", "tuned", "as-published", ""),
        ("DP-FedMF", "tuned", "proven", ""),
    ]
    assert variants(with_rows(rows[0]), presets=("paper",)) == [("FedMF", "paper", None, "")]


def test_rows_can_be_left_out():
    rows = (Row("FedMF", "fedmf", presets=("tuned",)), Row("DP-FedMF", "dp-fedmf", presets=("tuned",)))
    assert variants(with_rows(*rows), calibrations=("proven",)) == [
        ("FedMF", "tuned", None, ""),
        ("DP-FedMF", "tuned", "proven", ""),
    ]
    assert [row[0] for row in variants(with_rows(*rows), methods=("fedmf",))] == ["FedMF"]


def test_a_row_may_ask_for_training_without_noise():
    row = Row("FedNewsRec", "fednewsrec", presets=("tuned",), calibrations=("as-published", "none"))
    expected = [("FedNewsRec", "tuned", "as-published", ""), ("FedNewsRec", "tuned", "none", "")]
    assert variants(with_rows(row)) == expected
    assert variants(with_rows(row), calibrations=("none",)) == expected[1:]


def test_published_noise_has_settings_of_its_own():
    row = Row("DP-FedMF", "dp-fedmf", tuned_as_published=("privacy.epsilon=2",))
    settings = {
        (v.preset, v.calibration): v.trials[0].request.settings
        for v in make_plan(with_rows(row), Options(seeds=1, data=DATA), OUT).panels[0].variants
    }
    assert settings["tuned", "as-published"] == ("privacy.epsilon=2", "calibration=as-published")
    assert settings["tuned", "proven"] == ("calibration=proven",)
    assert settings["paper", "as-published"] == ("calibration=as-published",)


def test_seeds_are_runs_of_their_own():
    plan = make_plan(with_rows(Row("FedMF", "fedmf", presets=("tuned",))), Options(seeds=4, data=DATA), OUT)
    assert [trial.request.seed for trial in plan.trials()] == [0, 1, 2, 3]
    assert len({trial.folder for trial in plan.trials()}) == 4


def test_what_is_not_there_is_said_and_does_not_stop_the_rest():
    rows = (
        Row("Gone", "no-such-method"),
        Row("Odd", "fedmf", settings=("no_such_setting=1",), presets=("tuned",)),
        Row("Bare", "popularity", presets=("paper",)),
        Row("FedMF", "fedmf", presets=("tuned",)),
    )
    found = {label: problem for label, _, _, problem in variants(with_rows(*rows))}
    assert found["Gone"] == "not available: this version has no method no-such-method"
    assert "no_such_setting" in found["Odd"]
    assert found["Bare"] == "not available: popularity has no preset paper"
    assert found["FedMF"] == ""


def test_missing_data_is_refused_with_the_way_to_get_it(no_data):
    with pytest.raises(BadInput, match=r"ml-1m was not found.*veilrec data fetch ml-1m.*--quick"):
        make_plan(TOY, Options(), OUT)


def test_a_panel_that_may_be_missing_is_left_out(no_data):
    plan = make_plan(replace(TOY, panels=(replace(TOY.panels[0], required=False),)), Options(), OUT)
    assert plan.panels == ()
    assert "Table 0 is left out: ml-1m was not found." in plan.notes


def test_quick_falls_back_to_made_up_data_and_says_so(no_data):
    plan = make_plan(EXPERIMENTS["fedmf-accuracy"], Options(quick=True, seeds=5), OUT)
    assert plan.seeds == (0,)
    assert [panel.data.partition(":")[0] for panel in plan.panels] == ["synthetic-ratings"]
    assert plan.notes[0] == "Quick: 10 rounds of one seed: to see that it runs, not to quote."
    assert any("cannot be compared" in note for note in plan.notes)
    assert {trial.request.rounds for trial in plan.trials()} == {10}


def test_other_data_takes_the_panel_of_its_name_or_the_first():
    assert make_plan(TOY, Options(data=DATA), OUT).panels[0].data == DATA
    accuracy = EXPERIMENTS["fedmf-accuracy"]
    plan = make_plan(accuracy, Options(data=DATA), OUT)
    assert plan.panels[0].panel is accuracy.panels[0]
    assert "cannot be compared" in plan.notes[0]


def test_our_own_figures_are_compared_with_nobodys_data():
    assert make_plan(EXPERIMENTS["fedmf-lean"], Options(data=DATA), OUT).notes == ()


def test_every_setting_has_a_folder_of_its_own():
    def folder(**request):
        options = {"protocol": request.pop("protocol", None)}
        row = Row("FedMF", "fedmf", presets=("tuned",), **request)
        return make_plan(with_rows(row), Options(seeds=1, data=DATA, **options), OUT).trials()[0].folder

    assert folder() == folder()
    assert len({folder(), folder(settings=SMALL), folder(protocol="loo-full")}) == 3


def test_a_share_of_the_users_is_a_cohort():
    row = Row("FedMF", "fedmf", presets=("tuned",), share=0.1)
    (trial,) = make_plan(with_rows(row), Options(seeds=1, data=DATA), OUT).trials()
    assert trial.request.settings == ("cohort.size=15",)


def test_a_rows_own_settings_come_after_those_of_quick():
    quick = replace(with_rows(Row("FedMF", "fedmf", settings=("cohort.size=7",))).quick, settings=SMALL)
    plan = make_plan(
        replace(with_rows(Row("FedMF", "fedmf", settings=("cohort.size=7",))), quick=quick), Options(quick=True), OUT
    )
    assert plan.trials()[0].request.settings == (*SMALL, "cohort.size=7")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(seeds=0), "--seeds is 0"),
        (Options(protocol="loo-98"), "did you mean loo-99"),
        (Options(presets=("best",)), "unknown preset"),
        (Options(data="ml-2m"), "unknown data set"),
        (Options(calibrations=("proved",)), "did you mean proven"),
        (Options(methods=("dp-fedmv",)), "unknown method of toy.*did you mean dp-fedmf"),
        (Options(data=DATA, presets=("paper",)), "no row of toy is left by --preset, --calibration and --method"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(BadInput, match=words):
        make_plan(TOY, options, OUT)
