from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from veilrec.report.html import Markup, join, markup, table, tag

EVIL = '<script>alert("x")</script>&\''


def test_text_is_escaped_everywhere_and_markup_is_not() -> None:
    assert "<script>" not in tag("p", EVIL, title=EVIL)
    assert "<script>" not in table([EVIL], [[EVIL]])
    assert "<script>" not in join([EVIL])
    assert tag("p", tag("b", "1 < 2")) == "<p><b>1 &lt; 2</b></p>"
    assert markup(Markup("<b>")) == "<b>"


def test_attributes_lose_their_underscores() -> None:
    assert tag("i", class_="note", aria_label="x") == '<i class="note" aria-label="x"></i>'


def test_a_table_has_headings_and_right_aligned_numbers() -> None:
    made = table(["method", "hr"], [["mf", 0.5]], numbers=[1])
    assert '<th scope="row">mf</th>' in made
    assert '<td class="number">0.5</td>' in made
    assert '<th scope="col" class="number">hr</th>' in made


@given(st.text())
def test_no_text_opens_or_closes_an_element(text: str) -> None:
    inner = tag("p", text).removeprefix("<p>").removesuffix("</p>")
    assert "<" not in inner
    assert ">" not in inner
    assert '"' not in inner
