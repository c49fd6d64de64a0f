"""What privacy costs: what is run, what is trained once for two protocols, and what a reader sees of it."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.cli.running import says, typed
from tests.report.reproduce.toys import DATA, EXPERIMENTS, OUT, quiet, run
from veilrec.report.reproduce import experiment, figures, results
from veilrec.report.reproduce.experiment import QuickVersion
from veilrec.report.reproduce.results import RunOutcome, execute, read, recall, summarise
from veilrec.report.reproduce.study import StudyOptions, make_study
from veilrec.report.reproduce.summary import error_over_users, failed, grids, problems
from veilrec.runs import trials
from veilrec.runs.request import prepare
from veilrec.runs.training import train

FRONTIER, NEWS_FRONTIER = EXPERIMENTS["frontier"], EXPERIMENTS["news-frontier"]
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
FEW = (1.0, 8.0)
FIRST = "DPALS, epsilon 1"
RIVALS = {"veil, order off", "DPALS", "DPALS, features", "private Gram", "private popularity", "DP-FedMF"}


def with_methods(panels, *methods):
    return tuple(replace(panel, rows=tuple(row for row in panel.rows if row.method in methods)) for panel in panels)


QUICK = QuickVersion(synthetic=DATA, rounds=2, places=FEW)
SMALL = replace(FRONTIER, quick=QUICK, panels=with_methods(FRONTIER.panels, "private-popularity", "dpals", "ease"))
TERMS = "per user, add-remove, whole run, trusting: server, proven, delta 1e-06"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return make_study(SMALL, StudyOptions(quick=True), tmp_path_factory.mktemp("frontier"))


@pytest.fixture(scope="module")
def outcomes(study):
    return run(study)


@pytest.fixture(scope="module")
def summary(study, outcomes):
    return summarise(study, outcomes)


def without_first_point(summary, **changes):
    """The first panel alone; the first point of DPALS is changed, or left out."""
    panel = summary.panels[0]
    lines = [
        replace(line, guarantee=replace(line.guarantee, **changes)) if line.variant.row.label == FIRST else line
        for line in panel.lines
        if changes or line.variant.row.label != FIRST
    ]
    return replace(summary, panels=(replace(panel, lines=tuple(lines)),))


def folder_of_first(study):
    return next(variant for variant in study.panels[0].variants if variant.row.label == FIRST).trials[0].folder


def test_every_rival_has_every_epsilon_in_every_panel_and_reads_no_order_that_a_random_split_has_lost():
    for panel in FRONTIER.panels:
        at = {}
        for row in panel.rows:
            if row.at is not None:
                at.setdefault(row.family, []).append(row.at)
                assert f"privacy.epsilon={row.at:g}" in row.settings
                assert row.calibrations == ("proven",)
        assert {name for name, places in at.items() if tuple(places) == EPSILONS} >= RIVALS
        assert all(tuple(places) in (EPSILONS, FEW) for places in at.values())
        reads = {row.method for row in panel.rows if row.reads_order}
        assert reads == (set() if panel.protocol == "ratio-8-2" else {"veil", "sasrec", "markov", "recency-knn"})
    for panel in NEWS_FRONTIER.panels:  # claims of another kind are a curve of their own
        published = [row for row in panel.rows if row.calibrations == ("as-published",)]
        assert published and all("as published" in row.label for row in published)


def test_one_training_serves_both_and_is_judged_as_if_it_had_been_trained_for_it(study, summary, tmp_path):
    first, second, third = study.panels
    assert [panel.protocol for panel in study.panels] == ["loo-99", "loo-full", "ratio-8-2"]
    assert [v.trials for v in first.variants] == [v.trials for v in second.variants]
    assert len(study.trials()) == len(first.variants) + len(third.variants)
    for number in range(len(second.variants)):
        (trial,) = second.variants[number].trials
        asked = trial.request
        if asked.method == "dpals":
            apart = replace(asked, protocol="loo-full")
            train(prepare(apart), tmp_path / f"{number}")
            own = json.loads((tmp_path / f"{number}" / "result.json").read_text())
            line = summary.panels[1].lines[number]
            assert line.measured["ndcg@10"].mean == own["metrics"]["ndcg@10"]
            assert line.measured["up_bytes"].mean == own["communication"]["up_bytes"]
            assert line.measured["ndcg@10"].mean != summary.panels[0].lines[number].measured["ndcg@10"].mean


def test_what_is_there_is_not_trained_again(study, outcomes, summary, monkeypatch):
    for where, name in ((trials, "train"), (results, "evaluate_run")):
        monkeypatch.setattr(where, name, None)  # nothing is trained or measured again
    again = make_study(SMALL, StudyOptions(quick=True), study.trials()[0].folder.parent.parent)
    assert summarise(again, run(again)).panels == summary.panels


def test_more_seeds_train_only_what_is_missing(study, outcomes, monkeypatch):
    trained = []
    monkeypatch.setattr(trials, "train", lambda prepared, *_, **__: trained.append(prepared.request))
    monkeypatch.setattr(results, "_outcome", lambda *_: RunOutcome(None))
    options = StudyOptions(seeds=2, data=DATA, methods=("ease",), protocol="loo-99")
    more = make_study(SMALL, options, study.trials()[0].folder.parent.parent)
    execute(more.trials(), say=quiet)
    assert [request.seed for request in trained] == [1]  # it takes as many rounds in full as it does quickly


def test_the_table_has_a_column_for_every_epsilon_and_the_terms_once(summary):
    tables = grids(summary)
    assert tables[0].head == ["method", "1", "8", "no privacy", "seeds"]
    by_name = {row[0]: row for row in tables[0].rows}
    assert set(by_name) == {"DPALS", "private popularity", "EASE", "popularity"}
    line = next(line for line in summary.panels[0].lines if line.variant.row.label == "DPALS, epsilon 8")
    assert by_name["DPALS"][2] == f"{line.measured['hr@10'].mean:.4f}"
    assert by_name["EASE"][1:3] == ["", ""]
    assert {tuple(row[1:]) for row in tables[-1].rows} == {(TERMS, "as claimed")}


def test_the_picture_says_what_every_epsilon_means(summary, tmp_path):
    assert figures.save_all(summary, tmp_path) == ["frontier", "frontier-more"]
    for name in ("frontier", "frontier-more"):
        text = (tmp_path / f"{name}.svg").read_text()
        says(text, f"Epsilon: {TERMS}", "1 seed", "QUICK, not for quoting", "DPALS", "private popularity", "EASE")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "loo-99" in (tmp_path / "frontier.svg").read_text()
    assert "ratio-8-2" in (tmp_path / "frontier-more.svg").read_text()


def test_a_point_lies_at_the_epsilon_that_its_run_states_and_a_short_curve_is_named_under_the_picture(summary):
    figure = figures.draw(without_first_point(summary, epsilon=3.0))
    drawn = [list(line.get_xdata()) for line in figure.axes[0].get_lines()]
    assert [3.0, 8.0] in drawn
    assert [1.0, 8.0] in drawn  # private popularity, as it was
    for one, short in ((without_first_point(summary), True), (without_first_point(summary, epsilon=1.0), False)):
        assert any("of one or two epsilons: DPALS" in text.get_text() for text in figures.draw(one).texts) is short


def test_a_failed_run_is_shown_as_failed_and_ends_in_an_error(study, outcomes, tmp_path):
    place = folder_of_first(study)
    broken = summarise(study, {**outcomes, place: RunOutcome(None, problem="failed: the loss is not finite")})
    row = next(row for row in grids(broken)[0].rows if row[0] == "DPALS")
    assert row[1] == "failed" != row[2]
    assert failed(broken)
    assert any(FIRST in line and "not finite" in line for line in problems(broken))
    figures.save(broken, tmp_path / "broken.svg")
    assert "a run that failed" in (tmp_path / "broken.svg").read_text()


def test_what_is_not_run_yet_is_no_failure(study, outcomes):
    place = folder_of_first(study)
    moved = place.rename(place.with_name("elsewhere"))
    try:
        known = read(study.trials())
        found = summarise(study, {**known, **recall(study.probes(), known)})
    finally:
        moved.rename(place)
    for panel in (0, 2):  # HR@10 of loo-99 and of loo-full, which has no run either
        row = next(row for row in grids(found)[panel].rows if row[0] == "DPALS")
        assert row[1] == "not run"
    assert not failed(found)
    assert sum("not run" in line for line in problems(found)) == 2


def test_the_error_of_a_hit_rate_over_users_is_that_of_a_coin(summary):
    line = summary.panels[0].lines[0]
    rate, users = line.measured["hr@10"].mean, line.measured["cases"].mean
    assert users == 150
    assert error_over_users(line, "hr@10") == pytest.approx((rate * (1 - rate) / users) ** 0.5)
    assert error_over_users(line, "ndcg@10") is None


def test_names_at_the_ends_of_lines_never_lie_over_one_another():
    heights = [0.1, 0.11, 0.12, 0.5, 0.97, 0.98, 1.0]
    moved = figures.spread(heights, 0.05)
    assert all(after - before >= 0.05 - 1e-12 for before, after in pairwise(moved))
    assert max(moved) <= 1.0
    assert moved[3] == 0.5  # nobody is near
    assert moved[1] == pytest.approx(0.11)  # a crowd keeps its mean
    assert figures.spread([], 0.05) == []


def test_options_choose_rows_seeds_and_panels():
    study = make_study(FRONTIER, StudyOptions(quick=True, data=DATA), OUT)
    asked = [variant.row for panel in study.panels for variant in panel.variants]
    assert {row.at for row in asked} == {None, *FEW}
    assert not {row.method for row in asked} & set(FRONTIER.quick.without)
    assert any(f"without {', '.join(FRONTIER.quick.without)}" in note for note in study.notes)
    (panel,) = make_study(FRONTIER, StudyOptions(seeds=3, data=DATA, protocol="loo-99"), OUT).panels
    seeds = {variant.row.method: len(variant.trials) for variant in panel.variants}
    assert {seeds[name] for name in ("dp-privrec", "popularity-head", "dp-fedncf", "priv-fedmf-sub")} == {1}  # slow
    assert {seeds[name] for name in ("veil", "dpals", "dp-fedmf", "ease", "sasrec")} == {3}
    for name, trained_for in (("loo-full", "loo-99"), ("ratio-8-2", "ratio-8-2"), ("holdout-users", "holdout-users")):
        (panel,) = make_study(SMALL, StudyOptions(quick=True, protocol=name), OUT).panels
        assert panel.protocol == name
        assert {v.trials[0].request.protocol for v in panel.variants} == {trained_for}


def test_the_command_shows_what_is_finished_and_trains_nothing(tmp_path, monkeypatch):
    few = replace(SMALL, panels=with_methods(SMALL.panels[:2], "ease"))
    monkeypatch.setattr(experiment, "load_experiment", lambda name: few)

    told, shown, _ = typed("reproduce", "frontier", "--quick", "--out", tmp_path)
    assert "not run" in shown("--finished")
    assert not (tmp_path / "runs").exists()
    shown()
    report = told("--finished")
    assert report["command"] == "veilrec reproduce frontier --quick --finished"
    assert report["panels"][1]["rows"][0]["ours"]["hr@10"]["mean"] > 0
    assert {"frontier.json", "frontier.svg", "frontier-more.png"} <= {path.name for path in tmp_path.iterdir()}
