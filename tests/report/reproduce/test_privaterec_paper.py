"""What the studies of PrivateRec run: the paper's rows, our proven ones, and what has to stand beside both."""

from __future__ import annotations

from pathlib import Path

import pytest

from veilrec.report.reproduce.experiment import Experiment, Row
from veilrec.report.reproduce.privaterec_printed import METRICS, MODELS, SERVING, TRAINING, numbers
from veilrec.report.reproduce.registry import EXPERIMENTS
from veilrec.report.reproduce.study import Options, make_study

OUT = Path("nowhere")
STUDIES = {name: one for name, one in EXPERIMENTS.items() if name.startswith("privaterec-")}
METHODS = {"centralized": "Centralized", "fedrec": "FedRec", "dp-fedrec": "DP-FedRec", "privaterec": "PrivateRec"}


def model_of(row: Row) -> str:
    """The model that a row is trained with, as the paper writes it."""
    (name,) = (setting.removeprefix("model=") for setting in row.settings if setting.startswith("model="))
    return name.upper()


def variants(experiment: Experiment, **options):
    study = make_study(experiment, Options(skip_missing=True, data="synthetic-news", **options), OUT)
    return [variant for panel in study.panels for variant in panel.variants]


def test_all_six_are_there():
    assert set(STUDIES) == {
        f"privaterec-{name}" for name in ("training", "serving", "budget", "padding", "basis", "dimension")
    }


@pytest.mark.parametrize(("name", "table"), [("privaterec-training", TRAINING), ("privaterec-serving", SERVING)])
def test_every_printed_number_stands_beside_the_run_that_it_is_of(name, table):
    for column, panel in enumerate(STUDIES[name].panels):
        printed = {(model_of(row), METHODS[row.method]): row.printed for row in panel.rows if row.printed}
        assert printed == {key: numbers(lines[column]) for key, lines in table.items()}
        assert sum(bool(row.printed) for row in panel.rows) == len(table)


@pytest.mark.parametrize("name", ["privaterec-training", "privaterec-serving"])
def test_what_is_printed_is_shown_even_where_there_is_no_mind(name):
    table = STUDIES[name].calculated().grids[0]
    source = TRAINING if name == "privaterec-training" else SERVING
    assert len(table.rows) == len(source)
    for row, lines in zip(table.rows, source.values(), strict=True):
        assert list(row[1:]) == [str(number) for line in lines for number in numbers(line).values()]
    assert len(table.head) == 1 + 2 * len(METRICS)


@pytest.mark.parametrize("experiment", STUDIES.values(), ids=list(STUDIES))
def test_the_untrained_start_and_fedrec_stand_beside_every_model(experiment):
    for panel in experiment.panels:
        for model in {model_of(row) for row in panel.rows}:
            rows = [row for row in panel.rows if model_of(row) == model]
            starts = {row.method for row in rows if row.untrained}
            assert {row.method for row in rows} & {"fedrec", "privaterec"} <= starts
            assert any(row.method == "fedrec" and not row.untrained and row.serving is None for row in rows)


def test_proven_rows_have_a_start_of_their_own_and_no_number_of_the_papers():
    proven = [row for row in STUDIES["privaterec-training"].panels[0].rows if row.calibrations == ("proven",)]
    assert {row.label.split(", ")[2] for row in proven} == {"public-encoder (ours)", "sums (ours)", "reports (ours)"}
    assert not any(row.printed for row in proven)
    trained, starts = ([row.settings for row in proven if row.untrained == start] for start in (False, True))
    assert trained == starts


def test_noise_is_what_the_label_says():
    """A row that names an epsilon_t or an epsilon_s is trained and asked with it."""
    for experiment in STUDIES.values():
        for row in (row for panel in experiment.panels for row in panel.rows if not row.untrained):
            words = row.label.replace(",", "").split()
            named = {word: float(words[place + 1]) for place, word in enumerate(words) if word.startswith("epsilon_")}
            if "epsilon_t" in named:
                assert f"privacy.epsilon={named['epsilon_t']:g}" in row.settings, row.label
            if "epsilon_s" in named:
                assert row.serving is not None, row.label
                assert row.serving.epsilon == named["epsilon_s"], row.label


def test_padding_is_the_same_in_training_and_in_serving():
    rows = [row for row in STUDIES["privaterec-padding"].panels[0].rows if row.at is not None]
    assert len(rows) == 16
    for row in rows:
        assert f"privacy.pad_probability={row.at:g}" in row.settings
        assert row.serving.padding == row.at


def test_one_run_is_asked_in_many_ways():
    budget = variants(STUDIES["privaterec-budget"], seeds=1)
    trained = {trial.folder for variant in budget for trial in variant.trials}
    asked = {probe.place for variant in budget for probe in variant.probes}
    assert len(trained) == 10  # four and four at an epsilon_t, PrivateRec without noise, FedRec
    assert len(asked) == 4 * 4 + 2


def test_the_papers_own_settings_are_run_only_where_they_are_asked_for(monkeypatch):
    monkeypatch.setattr("veilrec.models.word_vectors.dimensions", lambda source: 50)  # as with the package of vectors
    training = STUDIES["privaterec-training"]
    assert {variant.preset for variant in variants(training, seeds=1)} == {"tuned"}
    rows = variants(training, seeds=1, presets=("paper",), methods=("fedrec",))
    assert {variant.preset for variant in rows} == {"paper"}


def test_quick_has_all_panels_of_the_first_ones_data():
    study = make_study(STUDIES["privaterec-budget"], Options(quick=True), OUT)
    assert [panel.panel.source for panel in study.panels] == ["Fig. 6 of v2", "Fig. 4 of v2"]
    study = make_study(STUDIES["privaterec-training"], Options(quick=True, skip_missing=True), OUT)
    assert [panel.panel.source for panel in study.panels] == ["Table 1 of v2, NewsFeeds"]
    assert any("NewsFeeds, ours of synthetic-news: they cannot be compared" in note for note in study.notes)


def test_a_figure_without_numbers_has_none_but_the_one_of_the_text():
    for name in ("budget", "padding", "basis", "dimension"):
        printed = [row for panel in STUDIES[f"privaterec-{name}"].panels for row in panel.rows if row.printed]
        assert [(row.label, str(row.printed["auc"])) for row in printed] == (
            [("PrivateRec, epsilon_t 5", "0.6135")] if name == "budget" else []
        )


def test_every_model_of_the_paper_is_in_both_tables():
    for name in ("training", "serving"):
        assert {model_of(row) for row in STUDIES[f"privaterec-{name}"].panels[0].rows} == set(MODELS)


def test_rows_along_an_axis_are_one_curve():
    """How a row was run does not change along the axis, or every point would be a curve of its own."""
    for experiment, curves in (("padding", 4), ("budget", 6), ("basis", 2), ("dimension", 3)):
        found = variants(STUDIES[f"privaterec-{experiment}"], seeds=1)
        along = [v for v in found if v.row.at is not None]
        assert len({(v.row.label.rpartition(", ")[0], v.how) for v in along}) == curves, experiment
