import json
import re
import shutil
from dataclasses import replace
from html import unescape

import pytest

from tests.cli.running import says
from tests.report.pages import Reader, assert_loads_nothing
from veilrec.core.errors import BadInput
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.report import page as report
from veilrec.report.person import Person, PersonalList, TitledItem
from veilrec.report.plots import personalisation_chart

EVIL = "<script>alert(1)</script>"
PROMISE = Guarantee("proven", "user", "add-remove", 8.0, 1e-6, "whole run", "server")
CLAIM = Guarantee("as published", "user", "replace-one", 2.0, 0.0, "per message", "nobody", (), 900.0, 0.0, "of one")


def _person(name):
    item = TitledItem(name, name, name)
    return Person(name, 1, (item,), {name: 1}, (PersonalList(name, no_guarantee(), (item, item), (True, False)),))


def test_names_from_users_files_cannot_become_elements(runs):
    named = [replace(run, dataset=EVIL, data=EVIL, protocol=EVIL, settings=(EVIL,)) for run in runs]
    named = [replace(run, guarantee=replace(run.guarantee, caveats=(EVIL,))) for run in named]
    page = report.render(named, report.Story(EVIL, EVIL, EVIL, {"hr@10": 0.9}, _person(EVIL), (EVIL,)))
    assert "script" not in Reader(page).tags
    assert page.count("&lt;script&gt;") >= 12


def test_the_page_says_what_was_measured_promised_and_done(runs):
    fedmf, _ = runs
    page = report.render(runs, report.Story("A page", command="veilrec demo", best_possible={"hr@10": 0.91}))
    assert_loads_nothing(page)
    says(page, *(f"{run.metrics['hr@10']:.4f}" for run in runs), "0.9100", "no privacy guarantee")
    says(unescape(page), *fedmf.guarantee.caveats)
    says(page, fedmf.command(), "veilrec demo", "numpy", "OMP_NUM_THREADS", "loo-99")
    says(page, "150 users", "prefers-color-scheme: dark")
    assert page.count("<svg") == 1
    cells = dict(re.findall(r'<th scope="row">([\w ]+)<span class="small">[^<]*</span></th><td>([^<]*)</td>', page))
    others = {"random": "needs none", "best possible": "no method"}
    assert cells == {"fedmf": "none", "mf": "none", "popularity": "none", **others}  # no cell about privacy is empty


def test_an_epsilon_stands_beside_the_result_with_all_that_belongs_to_it(runs):
    page = report.render([replace(runs[0], guarantee=PROMISE), runs[1]], report.Story("A page"))
    results = page[page.index("How good") : page.index("How did it learn?")]
    says(results, f"fedmf: {PROMISE.line()}.", "<td>proven</td>", "<td>none</td>")
    seeded = replace(PROMISE, obstacle="whoever knows the seed can draw the noise again")
    page = report.render([replace(runs[0], guarantee=seeded), runs[1]], report.Story("A page"))
    says(
        page,
        "<td>no guarantee as it is</td>",
        f"fedmf: no guarantee as it is; without what stands in its way it would be {PROMISE.line()}.",
    )
    assert "<td>proven</td>" not in page and f"<strong>{PROMISE.line()}" not in page
    assert "The honest number: of one." in report.render([replace(runs[0], guarantee=CLAIM)], report.Story("a claim"))


def test_a_person_gets_lists_whose_fitting_items_are_marked_and_counted(runs):
    page = report.render(runs, report.Story("A page", person=_person("spy")))
    assert page.count('<li class="fits">spy (spy)</li>') == 1
    assert page.count("<li>spy (spy)</li>") == 2  # one in the history, one that does not fit
    assert "1 of 2 in bold" in page


def test_several_data_sets_stand_one_below_the_other_and_share_what_is_common(runs):
    other = [replace(run, dataset="other", protocol="loo-full") for run in runs]
    parts = [report.ReportPart(runs, report.Story("First")), report.ReportPart(other, report.Story("Second"))]
    page = report.render_parts("All", parts, command="veilrec demo")
    assert_loads_nothing(page)
    assert page.index("<h2>First</h2>") < page.index("<h2>Second</h2>")
    assert page.count("<svg") == 2
    for once in ("What crossed the network?", "What is protected?", "How was it made?"):
        assert page.count(once) == 1


def test_a_report_replaces_a_report_and_nothing_else(runs, tmp_path):
    path = tmp_path / "new" / "report.html"
    report.write_report(path, runs, report.Story("First"))
    report.write_report(path, runs, report.Story("Second"))
    assert "Second" in path.read_text()
    assert [child.name for child in path.parent.iterdir()] == ["report.html"]
    path.write_text("my diary")
    for place, words in ((path, "no report of veilrec"), (tmp_path, "is a folder")):
        with pytest.raises(BadInput, match=words):
            report.write_report(place, runs, report.Story("Third"))
    assert path.read_text() == "my diary"


def test_two_runs_of_one_method_are_told_apart(runs):
    other = replace(runs[0], folder="other", metrics=runs[0].metrics | {"hr@10": 0.1234}, seed=9)
    says(report.render([runs[0], other], report.Story("two seeds")), "fedmf in fedmf", "fedmf in other", "0.1234")


def test_runs_that_cannot_be_compared_are_refused(runs):
    for change in ({"protocol": "loo-full"}, {"dataset": "other"}, {"users": 7}):
        with pytest.raises(BadInput, match="the same data and protocol"):
            report.render([runs[0], replace(runs[1], **change)], report.Story("apples and pears"))
    with pytest.raises(BadInput, match="at least one run"):
        report.render_parts("Empty", [])


def test_a_run_is_read_with_its_curve_and_its_traffic(runs, run_folders):
    run = runs[0]
    result = json.loads((run_folders["fedmf"] / "result.json").read_text())
    assert (run.method, run.kind, run.rounds, run.split) == ("fedmf", "federated", 4, "test")
    assert [point.round for point in run.points] == [2, 4]
    assert run.metrics == result["metrics"]
    assert run.points[-1].up_bytes == run.up_bytes == result["communication"]["up_bytes"] > 0
    assert run.bytes_per_participation() == (run.down_bytes / 80, run.up_bytes / 80)  # 4 rounds of 20 clients
    assert run.guarantee.line() == "no privacy guarantee"
    assert "--set cohort.size=20" in run.command()
    assert "--noise" not in run.command()
    assert "--noise secure" in replace(run, noise="secure").command()
    assert runs[1].kind == "centralised"
    assert report.main_metric({"auc": 0.5, "ndcg@10": 0.1, "cases": 3.0}) == "auc"
    assert report.main_metric({"ndcg@10": 0.1, "hr@10": 0.3}) == "hr@10"
    assert report.main_metric({"cases": 1.0, "recall@7": 0.1}) == "recall@7"


def test_a_damaged_run_is_named(run_folders, tmp_path):
    result = json.loads((run_folders["fedmf"] / "result.json").read_text())
    cases = [("result.json", text, "is damaged") for text in ("{", "[]", '{"method": "fedmf"}')]
    cases += [
        ("config.yaml", None, "no run of veilrec"),
        ("result.json", None, "not finished"),
        ("metrics.jsonl", None, "missing"),
        ("metrics.jsonl", '{"round": 1}\n', "line 1"),
    ]
    odd = [{"metrics": "x"}, {"metrics": {}}, {"metrics": {"hr@10": "x"}}, {"baselines": None}, {"seconds": None}]
    cases += [("result.json", json.dumps(result | change), "not a whole run") for change in odd]
    for number, (file, content, words) in enumerate(cases):
        folder = tmp_path / str(number)
        shutil.copytree(run_folders["fedmf"], folder)
        (folder / file).unlink()
        if content is not None:
            (folder / file).write_text(content)
        with pytest.raises(BadInput, match=words):
            report.read_run(folder)


def personalised(method, values, **other):
    """What an evaluation for new users found."""
    levels = {"popularity": {"hr@10": 0.2, "ndcg@10": 0.1}, "random": {"hr@10": 0.01, "ndcg@10": 0.005}}
    measured = zip(("0", "5", "half"), [{"hr@10": one, "ndcg@10": one / 2} for one in values], strict=True)
    points = [{"given": given, "metrics": metrics, "baselines": levels} for given, metrics in measured]
    about = {"dataset": "ml-1m", "protocol": "holdout-users", "seed": 0}
    return {"method": method, "personalisation": points, **about, **other}


def test_personalisation_is_a_curve_a_run_over_what_was_given_and_baselines_are_levels():
    fedmf = personalised("fedmf", (0.1, 0.3, 0.4))
    chart = personalisation_chart([fedmf, personalised("ease", (0.0, 0.2, 0.5)), personalised("ease", (0, 0, 0))])
    assert [(curve.label, list(curve.x), list(curve.y)) for curve in chart.curves] == [
        ("fedmf", [0, 1, 2], [0.1, 0.3, 0.4]),
        ("ease", [0, 1, 2], [0.0, 0.2, 0.5]),
        ("ease (2)", [0, 1, 2], [0, 0, 0]),
    ]
    assert chart.ticks == ["0", "5", "half"]
    assert chart.levels == {"popularity": 0.2, "random": 0.01}
    assert personalisation_chart([fedmf], "ndcg@10").levels["popularity"] == 0.1
    for other in ({"seed": 1}, {"dataset": "frappe"}, {"protocol": "holdout-users-liked"}):
        with pytest.raises(BadInput, match=f"ease has {next(iter(other))} .*: one plot compares runs of the same"):
            personalisation_chart([fedmf, personalised("ease", (0.1, 0.3, 0.4), **other)])
    with pytest.raises(BadInput, match="at least one run"):
        personalisation_chart([])
