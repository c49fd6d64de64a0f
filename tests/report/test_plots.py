from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from veilrec.privacy.audit.auditor import judge, select
from veilrec.report.plots import BEST_POSSIBLE, COLOURS, Chart, Curve, charts, draw_audit, inline, picture, save_audit
from veilrec.report.run_summary import RunSummary

CURVE = Curve("fedmf", [1, 2, 3], [0.1, 0.3, 0.4])
CHART = Chart("rounds", "HR@10 over rounds", "Round", "HR@10", [CURVE], {"popularity": 0.2})


def _words(svg: str) -> str:
    return "".join(ET.fromstring(svg).itertext())  # noqa: S314  (we have just made it)


def test_a_picture_is_xml_with_its_words_as_text_and_always_the_same() -> None:
    svg = picture(CHART)
    words = _words(svg)
    for expected in ("HR@10 over rounds", "Round", "fedmf", "popularity"):
        assert expected in words
    assert picture(CHART) == svg


def test_an_inline_picture_takes_the_pages_text_colour_and_no_white_ground() -> None:
    svg = inline(CHART)
    assert "currentColor" in svg
    assert "#ffffff" not in svg
    assert "<?xml" not in svg
    assert "HR@10 over rounds" in _words(svg)


def test_two_charts_in_a_page_share_no_id_and_every_reference_is_there() -> None:
    page = inline(CHART) + inline(replace(CHART, name="bytes"))
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    references = re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', page)
    assert references
    assert set(references) <= set(ids)


def test_a_label_from_a_users_file_stays_text() -> None:
    svg = inline(replace(CHART, curves=[Curve("<script>x</script>", [1, 2], [0.1, 0.2])]))
    assert "<script" not in svg


def test_a_method_has_the_colour_that_it_is_given() -> None:
    svg = inline(replace(CHART, curves=[Curve("mf", [1, 2], [0.1, 0.2])], levels={}, colours={"mf": 3}))
    assert COLOURS[3].lower() in svg.lower()


def test_a_mathematical_looking_label_is_not_typeset() -> None:
    assert "$x$ and $y$" in _words(picture(replace(CHART, title="$x$ and $y$")))


def test_nothing_is_loaded_from_elsewhere() -> None:
    addresses = set(re.findall(r'https?://[^"\s]+', inline(CHART)))
    assert all(
        a.startswith(("http://www.w3.org/", "http://purl.org/", "http://creativecommons.org/")) for a in addresses
    )


def test_the_charts_show_rounds_bytes_and_loss_between_what_is_compared(runs: list[RunSummary]) -> None:
    rounds, sent, loss = charts(runs, "hr@10", {"hr@10": 0.9})
    assert [curve.label for curve in rounds.curves] == ["fedmf"]
    assert rounds.curves[0].x == [2, 4]
    assert rounds.levels == {
        "mf (centralised)": runs[1].metrics["hr@10"],
        "popularity": runs[0].baselines["popularity"]["hr@10"],
        "random": runs[0].baselines["random"]["hr@10"],
        BEST_POSSIBLE: 0.9,
    }
    total = runs[0].down_bytes + runs[0].up_bytes
    assert sent.curves[0].x[-1] == pytest.approx(total / 1e6)
    assert "MB" in sent.x_label
    assert {curve.label for curve in loss.curves} == {"fedmf", "mf"}


def test_every_label_has_one_colour_of_its_own(runs: list[RunSummary]) -> None:
    colours = charts(runs, "hr@10", {})[0].colours
    assert colours["mf"] == colours["mf (centralised)"]
    distinct = {colours[name] for name in ("fedmf", "mf", "popularity", "random", BEST_POSSIBLE)}
    assert len(distinct) == 5


def test_without_a_federated_run_there_is_only_the_loss(runs: list[RunSummary]) -> None:
    assert [chart.name for chart in charts(runs[1:], "hr@10", {})] == ["loss"]


def verdicts():
    cases = (*select("k-ary-response"), *select("top-k-update"), *select("reused-noise"))
    return [judge(case, effort=1, seed=0) for case in cases]


def test_every_claim_has_a_row_with_its_unit_adjacency_and_delta():
    (axes,) = draw_audit(verdicts()).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [
        "k-ary-response categories 5 (history, replace-one, 0)",
        "top-k-update dimension 8 (user, replace-one, 0)",
        "reused-noise (user, replace-one, 1e-06)",
    ]


def test_a_row_that_trusts_somebody_says_so():
    figure = draw_audit([judge(case, effort=1, seed=0) for case in select("adaptive-sum")])
    (axes,) = figure.axes
    assert "trusting nobody unless a row says otherwise" in figure.get_suptitle()
    (label,) = axes.get_yticklabels()
    assert "(user, replace-one, per round, trusting: server, " in label.get_text()


def test_the_same_verdicts_give_the_same_file(tmp_path):
    rows = verdicts()
    for name in ("a.svg", "b.svg"):
        save_audit(rows, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_bound_of_nothing_is_drawn_at_the_edge(tmp_path):
    (row, *_) = verdicts()
    nothing = type(row)(**{**vars(row), "lower_bound": 0.0})
    save_audit([nothing], tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
