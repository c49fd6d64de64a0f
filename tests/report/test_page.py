from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from veilrec.core.errors import BadInput
from veilrec.privacy.guarantee import Guarantee, no_guarantee
from veilrec.report.page import ReportPart, RunSummary, Story, render, render_parts, write_report
from veilrec.report.person import OVERLAP_NOTE, CategoryFit, Person, PersonalList, TitledItem

EVIL = "<script>alert(1)</script>"


class _Elements(HTMLParser):
    """Every element of a page, and whether each is closed where it should be."""

    VOID = frozenset({"meta"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "xlink:href", "data"}]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _everything_evil(runs: list[RunSummary]) -> str:
    named = [replace(run, dataset=EVIL, data=EVIL, protocol=EVIL, settings=(EVIL,)) for run in runs]
    named = [replace(run, guarantee=replace(run.guarantee, caveats=(EVIL,))) for run in named]
    return render(named, Story(EVIL, EVIL, EVIL, {"hr@10": 0.9}, _person(EVIL), (EVIL,)))


def _person(name: str) -> Person:
    item = TitledItem(name, name, name)
    lists = (PersonalList(name, no_guarantee(), (item, item), (True, False), CategoryFit(1, 1, 0.5, 0.25)),)
    return Person(name, 1, (item,), {name: 1}, CategoryFit(0.5, 0.5, 0.3, 0.2), lists)


def test_names_from_users_files_cannot_become_elements(runs: list[RunSummary]) -> None:
    page = _everything_evil(runs)
    assert "script" not in _Elements(page).names
    assert page.count("&lt;script&gt;") >= 12


def test_the_page_is_well_formed_and_loads_nothing(runs: list[RunSummary]) -> None:
    elements = _Elements(render(runs, Story("A page")))
    assert elements.open == []
    assert all(link.startswith("#") for link in elements.links)
    assert not {"script", "link", "img", "iframe"} & set(elements.names)


def test_the_page_says_what_was_measured_promised_and_done(runs: list[RunSummary]) -> None:
    page = render(runs, Story("A page", command="veilrec demo", best_possible={"hr@10": 0.91}))
    fedmf, mf = runs
    for expected in (
        f"{fedmf.metrics['hr@10']:.4f}",
        f"{mf.metrics['hr@10']:.4f}",
        "popularity",
        "random",
        "0.9100",
        "no privacy guarantee",
        *fedmf.guarantee.caveats,
        fedmf.command(),
        "veilrec demo",
        "numpy",
        "OMP_NUM_THREADS",
        "loo-99",
        "150 users",
    ):
        assert expected in page
    assert page.count("<svg") == 1
    assert "prefers-color-scheme: dark" in page


def test_an_epsilon_stands_beside_the_result_with_all_that_belongs_to_it(runs: list[RunSummary]) -> None:
    promise = Guarantee(
        basis="proven", unit="user", adjacency="add-remove", epsilon=8.0, delta=1e-6, scope="whole run", trust="server"
    )
    page = render([replace(runs[0], guarantee=promise), runs[1]], Story("A page"))
    results = page[page.index("How good") : page.index("How did it learn?")]
    assert f"fedmf: {promise.line()}." in results
    assert "<td>proven</td>" in results
    assert "<td>none</td>" in results


def test_a_person_gets_lists_whose_fitting_items_are_marked_and_counted(runs: list[RunSummary]) -> None:
    page = render(runs, Story("A page", person=_person("spy")))
    assert page.count('<li class="fits">spy (spy)</li>') == 1
    assert page.count("<li>spy (spy)</li>") == 2  # one in the history, one that does not fit
    assert "1 of 2 of spy, 1 of 2 in bold; overlap 50%" in page
    numbers = re.findall(r'<td class="number">([^<]*)</td>', page[page.index("list of 10 by") :])
    assert numbers[:8] == ["1", "1", "50%", "25%", "0.5", "0.5", "30%", "20%"]
    assert OVERLAP_NOTE in page


def test_no_cell_about_privacy_is_empty(runs: list[RunSummary]) -> None:
    page = render(runs, Story("A page", best_possible={"hr@10": 0.9}))
    cells = dict(re.findall(r'<th scope="row">([\w ]+)<span class="small">[^<]*</span></th><td>([^<]*)</td>', page))
    assert cells == {
        "fedmf": "none",
        "mf": "none",
        "popularity": "none",
        "random": "needs none",
        "best possible": "no method",
    }


def test_several_data_sets_stand_one_below_the_other_and_share_what_is_common(runs: list[RunSummary]) -> None:
    other = [replace(run, dataset="other", protocol="loo-full") for run in runs]
    page = render_parts(
        "All", [ReportPart(runs, Story("First")), ReportPart(other, Story("Second"))], command="veilrec demo"
    )
    assert _Elements(page).open == []
    assert page.index("<h2>First</h2>") < page.index("<h2>Second</h2>")
    assert page.count("<svg") == 2
    for once in ("What crossed the network?", "What is protected?", "How was it made?"):
        assert page.count(once) == 1
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_ids_are_unique_in_the_whole_page(runs: list[RunSummary]) -> None:
    ids = re.findall(r'\bid="([^"]+)"', render(runs, Story("A page")))
    assert len(ids) == len(set(ids))


def test_a_report_replaces_a_report_and_nothing_else(runs: list[RunSummary], tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    write_report(path, runs, Story("First"))
    write_report(path, runs, Story("Second"))
    assert "Second" in path.read_text()
    assert [child.name for child in path.parent.iterdir()] == ["report.html"]
    path.write_text("my diary")
    with pytest.raises(BadInput, match="no report of veilrec"):
        write_report(path, runs, Story("Third"))
    assert path.read_text() == "my diary"
    with pytest.raises(BadInput, match="is a folder"):
        write_report(tmp_path, runs, Story("Fourth"))


def test_two_runs_of_one_method_are_told_apart(runs: list[RunSummary]) -> None:
    other = replace(runs[0], folder="other", metrics=runs[0].metrics | {"hr@10": 0.1234}, seed=9)
    page = render([runs[0], other], Story("two seeds"))
    assert "fedmf in fedmf" in page
    assert "fedmf in other" in page
    assert "0.1234" in page


@pytest.mark.parametrize("change", [{"protocol": "loo-full"}, {"dataset": "other"}, {"users": 7}])
def test_runs_that_cannot_be_compared_are_refused(runs: list[RunSummary], change: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="the same data and protocol"):
        render([runs[0], replace(runs[1], **change)], Story("apples and pears"))


def test_a_published_claim_comes_with_what_the_honest_number_counts(runs: list[RunSummary]) -> None:
    claim = Guarantee(
        basis="as published",
        unit="user",
        adjacency="replace-one",
        epsilon=2.0,
        delta=0.0,
        scope="per message",
        trust="nobody",
        honest_epsilon=900.0,
        honest_delta=0.0,
        honest_note="of one message",
    )
    page = render([replace(runs[0], guarantee=claim)], Story("a claim"))
    assert "The honest number: of one message." in page


def test_no_runs_no_report() -> None:
    with pytest.raises(BadInput, match="at least one run"):
        render([], Story("Empty"))
    with pytest.raises(BadInput, match="at least one run"):
        render_parts("Empty", [])
