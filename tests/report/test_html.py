"""Templates: text is escaped everywhere, tables have headings, pages are recognised as ours."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from veilrec.report.html import GENERATOR, _environment, render_template

EVIL = '<script>alert("x")</script>&\''


def table(head: list[object], rows: list[list[object]], numbers: list[int]) -> str:
    return str(_environment().get_template("macros.html.j2").module.table(head, rows, numbers))


def test_a_table_has_headings_right_aligned_numbers_and_small_print() -> None:
    made = table(["method", "hr"], [[("mf", "centralised"), "0.5"]], [1])
    assert '<th scope="row">mf<span class="small">centralised</span></th><td class="number">0.5</td>' in made
    assert '<th scope="col" class="number">hr</th>' in made


@given(st.text())
def test_no_text_opens_or_closes_an_element(text: str) -> None:
    made = table([EVIL + text], [[(text, EVIL), text]], [])
    assert made.count("<") == table(["a"], [[("b", "c"), "d"]], []).count("<")


def test_every_template_compiles_and_names_its_generator() -> None:
    environment = _environment()
    for name in environment.list_templates():
        environment.get_template(name)
    page = render_template("base", title=EVIL)
    assert GENERATOR in page[:600]
    assert "<script" not in page
