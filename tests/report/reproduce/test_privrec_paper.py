"""What the studies of PrivRec and DP-PrivRec run: the paper's rows with its numbers, and ours without."""

from __future__ import annotations

from pathlib import Path

import pytest

from veilrec.errors import BadInput
from veilrec.methods.base import configure
from veilrec.methods.registry import get
from veilrec.report.reproduce.experiment import Experiment
from veilrec.report.reproduce.privrec_paper import E1, E2, PUBLISHED_BOUNDS, QUANTILES, M
from veilrec.report.reproduce.privrec_printed import FRAPPE, METHODS, MOVIELENS, TABLES, numbers
from veilrec.report.reproduce.registry import EXPERIMENTS
from veilrec.report.reproduce.study import Options, make_study
from veilrec.report.reproduce.summary import parts_of, summarise, to_json, to_markdown

OUT = Path("nowhere")
MADE_UP = "synthetic-ratings:users=60,items=80,mean_history=8,seed=1"
STUDIES = {name: one for name, one in EXPERIMENTS.items() if "privrec-" in name}
TRAINED = {name: one for name, one in STUDIES.items() if one.panels}


def variants(experiment: Experiment, **options):
    study = make_study(experiment, Options(data=MADE_UP, **options), OUT)
    return [variant for panel in study.panels for variant in panel.variants]


def config_of(row, preset, dataset="ml-1m"):
    calibration = row.calibrations[:1] if row.method == "dp-privrec" else ()
    settings = (*row.settings, *(f"calibration={name}" for name in calibration))
    return configure(get(row.method), preset=preset, dataset=dataset, settings=settings)[0]


def test_all_six_are_there():
    assert set(STUDIES) == {
        *(f"privrec-{name}" for name in ("table1", "table2", "fig2")),
        *(f"dp-privrec-{name}" for name in ("fig3", "table3", "fig5")),
    }


@pytest.mark.parametrize(("name", "data"), [("privrec-table1", MOVIELENS), ("privrec-table2", FRAPPE)])
def test_every_printed_number_stands_beside_its_method(name, data):
    (panel,) = STUDIES[name].panels
    printed = {row.label: row.printed for row in panel.rows if row.printed}
    assert printed == {method: numbers(TABLES[data, method]) for method in METHODS}
    assert set(STUDIES[name].metrics) == set(printed["PrivRec"])
    assert [row.method for row in panel.rows if row.printed] == [method.lower() for method in METHODS]
    ours = [row for row in panel.rows if not row.printed]
    assert {row.method for row in ours} == {
        *("private-popularity", "popularity-head", "private-gram", "dp-privrec", "fedmf", "ease")
    }
    assert all("(ours)" in row.label and row.presets == ("tuned",) for row in ours)


def test_figures_carry_no_numbers():
    for name in ("privrec-fig2", "dp-privrec-fig3", "dp-privrec-fig5"):
        assert not any(row.printed for panel in STUDIES[name].panels for row in panel.rows)
        assert any("carr" in note and "The paper says" in note for note in STUDIES[name].notes_on(["paper"]))


@pytest.mark.parametrize("experiment", TRAINED.values(), ids=list(TRAINED))
@pytest.mark.parametrize("quick", [False, True])
def test_every_row_can_be_run(experiment, quick):
    study = make_study(experiment, Options(data="synthetic-ratings", quick=quick), OUT)
    assert not study.left_out()


@pytest.mark.parametrize("experiment", TRAINED.values(), ids=list(TRAINED))
def test_models_are_evaluated_at_their_end_alone(experiment):
    assert all(t.request.evaluate_every == t.request.rounds for v in variants(experiment, seeds=1) for t in v.trials)


def test_an_epsilon_in_a_label_is_the_one_that_is_asked_for():
    for experiment in TRAINED.values():
        for row in (row for panel in experiment.panels for row in panel.rows if "epsilon " in row.label):
            epsilon = row.label.partition("epsilon ")[2].split()[0]
            assert row.settings == (f"privacy.epsilon={epsilon}",)
            assert row.calibrations == ("proven",)


def test_figure_2_varies_one_parameter_at_a_time():
    by_name = {panel.source: panel.rows for panel in STUDIES["privrec-fig2"].panels}
    assert len(by_name) == 6
    for data in (MOVIELENS, FRAPPE):
        for name, values in (("E1", E1), ("E2", E2), ("M", M)):
            rows = by_name[f"Fig. 2, {name}, {data}"]
            for preset in ("paper", "tuned"):
                assert tuple(row.at for row in rows if preset in row.presets) == values
    for row in by_name["Fig. 2, E2, Movielens"]:
        local = config_of(row, row.presets[0]).local
        assert row.at == (local.epochs if row.presets == ("paper",) else local.steps)
        assert row.presets == ("paper",) or local.batch == 0  # a step of all items is an epoch
    assert all(config_of(row, row.presets[0]).cohort.size == row.at for row in by_name["Fig. 2, M, Movielens"])
    assert all(row.rounds == row.at for row in by_name["Fig. 2, E1, Frappe"])


def test_figure_2_trains_the_papers_own_point_once():
    study = make_study(STUDIES["privrec-fig2"], Options(data=MADE_UP, seeds=1, presets=("paper",)), OUT)
    assert len(study.trials()) == len(E1) + len(E2) + len(M) - 2


def test_rounds_that_a_row_is_about_are_kept_in_the_quick_version():
    study = make_study(STUDIES["privrec-fig2"], Options(data=MADE_UP, quick=True), OUT)
    rounds = {v.row.label: v.trials[0].request.rounds for v in study.panels[0].variants}
    assert rounds == {"PrivRec, E1 5": 5, "PrivRec, E1 20": 20}
    assert {v.trials[0].request.rounds for v in study.panels[-1].variants} == {5}


def test_algorithm_2_as_printed_is_run_with_the_papers_settings():
    for panel, first in zip(STUDIES["dp-privrec-fig3"].panels, (40.0, 35.0), strict=True):
        (row,) = (row for row in panel.rows if row.diverges)
        config = config_of(row, "paper", panel.dataset)
        assert config.calibration == "as-published"
        assert (config.privacy.clip_norm, config.bound.quantile, config.bound.count_share) == (first, 0.9, 0.7)
        assert (config.cohort.size, config.bound.noise_multiplier, config.local.epochs) == (30, 1.0, 100)


def test_figure_5_has_every_quantile_and_bound_of_the_paper():
    published, proven = STUDIES["dp-privrec-fig5"].panels
    found = {
        (config.bound.quantile, config.privacy.clip_norm) for config in (config_of(r, "paper") for r in published.rows)
    }
    assert found == {(gamma, float(bound)) for gamma in QUANTILES for bound in PUBLISHED_BOUNDS}
    assert all(row.diverges for row in published.rows)
    assert not any(row.diverges for row in proven.rows)
    assert {config_of(row, "tuned").privacy.epsilon for row in proven.rows} == {2.0}
    assert {config_of(row, "tuned").bound.quantile for row in proven.rows} == set(QUANTILES)


def test_a_table_that_needs_no_training_trains_nothing():
    table = STUDIES["dp-privrec-table3"]
    study = make_study(table, Options(quick=True), OUT)
    assert not study.trials()
    assert not study.quick  # it is the whole of it
    summary = summarise(study, {})
    assert [grid["title"].partition(",")[0] for grid in to_json(summary, "")["tables"]] == ["Table 3", "Table 4"]
    assert "No training." in to_markdown(summary, "", "x.png")
    assert table.sources() == "Table 3, Table 4"
    with pytest.raises(BadInput, match="trains nothing: leave out --data, --method"):
        make_study(table, Options(data="ml-1m", methods=("privrec",)), OUT)


def test_eight_metrics_are_two_tables_of_four():
    metrics = STUDIES["privrec-table1"].metrics
    assert parts_of(metrics) == [metrics[:4], metrics[4:]]
    assert parts_of(metrics[:5]) == [metrics[:5]]
    assert parts_of(()) == []
