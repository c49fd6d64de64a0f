from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from veilrec.audit.auditor import judge, select
from veilrec.report.page import RunSummary
from veilrec.report.plots import (
    BEST_POSSIBLE,
    COLOURS,
    Chart,
    Curve,
    _draw,
    colour_numbers,
    draw_audit,
    inline,
    over_bytes,
    picture,
    save_audit,
)

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
    svg = inline(replace(CHART, curves=[Curve("mf", [1, 2], [0.1, 0.2])], levels={}, numbers={"mf": 3}))
    assert COLOURS[3].lower() in svg.lower()


def test_a_mathematical_looking_label_is_not_typeset() -> None:
    assert "$x$ and $y$" in _words(picture(replace(CHART, title="$x$ and $y$")))


def test_nothing_is_loaded_from_elsewhere() -> None:
    addresses = set(re.findall(r'https?://[^"\s]+', inline(CHART)))
    assert all(
        a.startswith(("http://www.w3.org/", "http://purl.org/", "http://creativecommons.org/")) for a in addresses
    )


def test_the_chart_shows_what_was_sent_between_what_is_compared(runs: list[RunSummary]) -> None:
    chart = over_bytes(runs, "hr@10", {"hr@10": 0.9})
    assert chart is not None
    assert [curve.label for curve in chart.curves] == ["fedmf"]
    assert chart.curves[0].y == [point.metrics["hr@10"] for point in runs[0].points]
    assert chart.levels == {
        "mf (centralised)": runs[1].metrics["hr@10"],
        "popularity": runs[0].baselines["popularity"]["hr@10"],
        "random": runs[0].baselines["random"]["hr@10"],
        BEST_POSSIBLE: 0.9,
    }
    total = runs[0].down_bytes + runs[0].up_bytes
    assert chart.curves[0].x[-1] == pytest.approx(total / 1e6)
    assert "MB" in chart.x_label


def test_charts_of_two_data_sets_have_names_of_their_own(runs: list[RunSummary]) -> None:
    one, other = (over_bytes([replace(run, dataset=name) for run in runs], "hr@10", {}) for name in ("a", 'B "x"/<y>'))
    assert one is not None
    assert other is not None
    assert (one.name, other.name) == ("a-bytes", "b-x-y-bytes")


def _drawn(chart: Chart | None) -> dict[str, str]:
    """Label -> colour."""
    assert chart is not None
    (axes,) = _draw(chart).axes
    return {str(line.get_label()): str(line.get_color()) for line in axes.get_lines()}


def test_a_method_has_one_colour_in_all_charts_of_a_page(runs: list[RunSummary]) -> None:
    fedmf, mf = runs
    other = [replace(fedmf, label="fednewsrec"), replace(mf, label="fm"), mf]
    numbers = colour_numbers([*runs, *other])
    best = {"hr@10": 0.9}
    first, second = (_drawn(over_bytes(part, "hr@10", best, numbers)) for part in (runs, other))
    assert set(first) == {"fedmf", "mf (centralised)", "popularity", "random", BEST_POSSIBLE}
    shared = set(first) & set(second)
    assert shared == set(first) - {"fedmf"}
    assert all(first[label] == second[label] for label in shared)
    both = first | second
    assert len(set(both.values())) == len(both) == 7


def test_without_a_federated_run_there_is_nothing_to_draw(runs: list[RunSummary]) -> None:
    assert over_bytes(runs[1:], "hr@10", {}) is None


def test_letters_are_large_enough_where_a_phone_shows_the_picture_390_pixels_wide() -> None:
    """The page leaves 360 of them to the picture; every letter must still be 9 pixels high."""
    root = ET.fromstring(picture(CHART))  # noqa: S314  (we have just made it)
    width = float(root.attrib["viewBox"].split()[2])
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", picture(CHART))]
    assert sizes
    assert min(sizes) * 360 / width > 9


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
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels
    assert all("per round, trusting: server, " in label for label in labels)
    assert any("(user, replace-one, per round, trusting: server, " in label for label in labels)


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
