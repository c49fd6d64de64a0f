from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

from veilrec.report.plots import COLOURS, Chart, Curve, inline, picture

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
