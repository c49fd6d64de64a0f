"""Several seeds as one line, and what a reader sees of it."""

import json
from dataclasses import replace
from statistics import fmean, stdev

import pytest

from tests.cli.running import says
from tests.report.reproduce.toys import DATA, FEDMF, quiet, with_rows
from veilrec.client.queries import Serving
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.report.reproduce import summary as shown
from veilrec.report.reproduce.experiment import ExperimentRow
from veilrec.report.reproduce.results import RunOutcome, amounts, execute, summarise
from veilrec.report.reproduce.study import Probe, RowVariant, StudyOptions, make_study
from veilrec.runs.comparison import Spread


def result_of(metrics, **other):
    return {"metrics": metrics, "baselines": {}, "rounds": 3, "communication": {}, **other}


def test_seeds_are_put_together(tmp_path):
    row = replace(FEDMF, settings=("cohort.size=20", "rounds=2"))
    study = make_study(with_rows(row), StudyOptions(seeds=2, data=DATA), tmp_path)
    outcomes = execute(study.trials(), say=quiet)
    (line,) = summarise(study, outcomes).panels[0].lines
    each = [outcomes[t.folder].result["metrics"]["hr@10"] for t in study.trials()]
    assert line.measured["hr@10"].values == tuple(each)
    assert (line.measured["hr@10"].mean, line.measured["hr@10"].sd) == pytest.approx((fmean(each), stdev(each)))
    assert line.rounds == 2
    assert [at for at, _ in line.curve["hr@10"]] == [1, 2]
    assert line.curve["hr@10"][-1][1].values == tuple(each)


def test_a_line_holds_what_was_measured_and_promised(toy_summary):
    lines = {(line.variant.row.label, line.variant.calibration): line for line in toy_summary.panels[0].lines}
    *run, gone = lines.values()
    assert [line.guarantee.basis for line in run] == ["none", "as published", "proven"]
    assert (gone.problem, gone.measured) == ("not available: this version has no method no-such-method", {})
    assert set(toy_summary.panels[0].baselines) == {"popularity", "random"}
    (note,) = [note for note in toy_summary.notes if "popularity" in note]
    assert note.startswith("Table 0: no better than popularity (nDCG@10 0.")
    assert "DP-FedMF (tuned, proven)" in note


def test_a_seed_that_failed_is_left_out_and_said(toy_study, toy_summary):
    study = make_study(toy_study.experiment, StudyOptions(seeds=2, data=DATA), toy_study.trials()[0].folder.parent)
    variant = study.panels[0].variants[0]
    good, bad = (trial.folder for trial in variant.trials)
    sent = {"up_bytes": 4, "paper_params": 2_000_000}
    result = result_of({"hr@10": 0.5, "ndcg@10": 0.3}, guarantee={"basis": "none"}, communication=sent)
    outcomes = {t.folder: RunOutcome(None, problem="failed: x") for t in study.trials()} | {good: RunOutcome(result)}
    line = summarise(study, outcomes).panels[0].lines[0]
    assert bad != good
    assert line.problem == "failed: x (1 of 2 seeds are shown)"
    assert line.measured["paper_params"].mean == 2.0
    assert amounts(result)["up_bytes"] == 4


PUBLISHED = Guarantee("as published", "user", "replace-one", 2.0, 0.0, "per message", "nobody")


def test_results_stand_beside_the_papers(toy_summary):
    table = shown.grids(toy_summary)[0]
    data = "(MovieLens 1M in the paper, synthetic-ratings here)"
    assert table.title == f"QUICK, not for quoting: Table 0 {data}, 3 rounds"
    # The paper's parameters are of 400 rounds: not beside those of 3.
    columns = ["HR@10, paper", "HR@10, ours", "nDCG@10", "M parameters", "bytes up"]
    assert list(table.head) == ["method", "how", *columns]
    by_name = {(row[0], row[1]): row for row in table.rows}
    fedmf = by_name["FedMF", "tuned"]
    assert fedmf[2] == "0.650"
    assert float(fedmf[3]) == pytest.approx(toy_summary.panels[0].lines[0].measured["hr@10"].mean, abs=1e-4)
    assert by_name["popularity", "baseline"][2] == ""
    assert ("NoSuch", "tuned") not in by_name
    gone = "not available: this version has no method no-such-method"
    assert shown.problems(toy_summary) == [f"Table 0, NoSuch (tuned): {gone}"]


def test_cells_have_one_unit_and_an_epsilon_never_stands_alone(toy_summary):
    for metric, values, text in (
        ("up_bytes", (2.70e9, 2.72e9), "2.71 ± 0.01 GB"),
        ("up_bytes", (0.0,), "0"),
        ("hr@10", (0.5, 0.5), "0.5000 ± 0.0000"),
    ):
        assert shown._number(metric, Spread(values)) == text
    words = shown.claimed(PUBLISHED)
    assert words == "(2, 0) per user, replace-one, per message, trusting: nobody; as published"
    assert shown.claimed(no_guarantee()) == shown.holds(no_guarantee()) == "nothing"
    assert shown.holds(PUBLISHED) == "no finite epsilon is known"
    assert shown.holds(replace(PUBLISHED, honest_note="the support is told")) == "the support is told"
    honest = replace(PUBLISHED, honest_epsilon=6172.0, honest_delta=0.0, honest_note="of all rows")
    assert shown.holds(honest) == "(6172, 0) for the same; of all rows"
    assert shown.holds(replace(PUBLISHED, basis="proven")) == "as claimed"
    panel = toy_summary.panels[0]  # where nothing is claimed there is no table of claims
    titles = [grid.title for grid in shown.grids(replace(toy_summary, panels=(replace(panel, lines=panel.lines[:1]),)))]
    assert not any("claimed" in title for title in titles)


def test_json_is_complete_and_plain(toy_summary):
    report = json.loads(json.dumps(shown.to_json(toy_summary, "veilrec reproduce toy --quick"), allow_nan=False))
    assert (report["quick"], report["seeds"]) == (True, [0])
    (panel,) = report["panels"]
    first = panel["rows"][0]
    assert first["theirs"]["hr@10"] == {"value": 0.65, "spread": None}
    assert first["ours"]["hr@10"]["sd"] is None
    assert first["guarantee"]["basis"] == "none"
    assert panel["rows"][3]["ours"] == {}
    assert {"veilrec", "Python", "Libraries"} == set(report["versions"])


def test_markdown_tells_how_it_was_made_and_names_no_folder(toy_summary, toy_study):
    text = shown.to_markdown(toy_summary, "veilrec reproduce toy --quick", "images/toy.svg")
    assert text.startswith("### toy: A toy\n\n`veilrec reproduce toy --quick`\n\n**A quick version")
    says(text, "Protocol loo-99, seeds 0. veilrec ", "| FedMF | tuned | 0.650 | ", "![A toy](images/toy.svg)")
    assert "- A note." in text
    assert str(toy_study.trials()[0].folder.parent) not in text
    assert text == shown.to_markdown(toy_summary, "veilrec reproduce toy --quick", "images/toy.svg")


def test_a_served_model_states_the_promise_of_its_training_and_that_of_a_query(toy_study):
    """Two epsilons of different scope never stand in one line."""
    trial = toy_study.trials()[0]
    serving = Serving(mode="vector", epsilon=10.0)
    row = ExperimentRow("Asked", "fedmf", presets=("tuned",), serving=serving)
    variant = RowVariant(row, "tuned", None, (trial,), probes=(Probe(trial, serving),))
    of_training = replace(PUBLISHED, basis="proven", epsilon=8.0, delta=1e-6, scope="whole run")
    of_query = replace(PUBLISHED, unit="history", epsilon=10.0)
    result = result_of({"hr@10": 0.5, "ndcg@10": 0.3, "skew": 0.25}, guarantee=of_query.to_json())
    result["model_guarantee"] = of_training.to_json()
    panel = replace(toy_study.panels[0], variants=(variant,))
    summary = summarise(replace(toy_study, panels=(panel,)), {variant.probes[0].place: RunOutcome(result)})
    (line,) = summary.panels[0].lines
    assert line.measured["skew"].mean == 0.25
    claims = next(grid for grid in shown.grids(summary) if "what is claimed" in grid.title)
    assert [list(row) for row in claims.rows] == [
        ["Asked", "training", shown.claimed(of_training), "as claimed"],
        ["Asked", "a query", shown.claimed(line.guarantee), "no finite epsilon is known"],
    ]
    rows = [("a", "training", "x", "y"), ("b", "training", "x", "y"), ("c", "training", "x", "z")]
    assert shown._once(rows) == [["a; and 1 more row", "training", "x", "y"], ["c", "training", "x", "z"]]
    (told,) = shown.to_json(summary, "c")["panels"][0]["rows"]
    assert (told["guarantee"]["epsilon"], told["training_guarantee"]["epsilon"]) == (10.0, 8.0)


def test_a_row_that_diverges_as_it_was_known_to_is_shown_and_is_no_failure(toy_study):
    problem = "failed: training has diverged: the loss of round 3 is nan"
    rows = [ExperimentRow(f"S {bound}", "fedmf", presets=("tuned",), diverges=True) for bound in (20, 40)]
    study = make_study(with_rows(*rows), StudyOptions(quick=True), toy_study.trials()[0].folder.parent.parent)
    summary = summarise(study, {trial.folder: RunOutcome(None, problem=problem) for trial in study.trials()})
    table = shown.grids(summary)[0]
    assert [row[0] for row in table.rows] == ["S 20", "S 40"]
    assert all(set(row[2:]) == {"diverged"} for row in table.rows)
    assert shown.problems(summary) == [f"Table 0, S 20 (tuned); and 1 more row: {problem}"]
    assert not shown.failed(summary)
    other = RunOutcome(None, problem="failed: no memory")
    another = summarise(study, {trial.folder: other for trial in study.trials()})
    assert shown.failed(another) and len(shown.problems(another)) == 2
