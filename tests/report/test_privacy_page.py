"""The privacy statement as a page: whole, escaped, without a network, and its data-flow diagram complete."""

import itertools
import re
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.running import says
from tests.report.pages import Reader, assert_loads_nothing
from veilrec.core.errors import BadInput
from veilrec.privacy.events import GaussianEvent, repeated
from veilrec.privacy.guarantee import Disclosure, Guarantee, Scope, Trust, Unit, no_guarantee
from veilrec.privacy.statement import Statement
from veilrec.report.html import GENERATOR, Where, _environment, flow_of, render_page, render_template, write_page

PROVEN = Guarantee("proven", "user", "add-remove", 8.0, 1e-6, "whole run", "server")
KNOWN = replace(PROVEN, event=repeated(GaussianEvent(1 / 2.06512), 10), caveats=("Mind this.",))
CLAIM = Guarantee("as published", "user", "add-remove", 8.0, 0.0, "per message", "nobody")
PUBLISHED = replace(CLAIM, honest_epsilon=4525.0, honest_delta=0.0, honest_note="rows add up")
REFUTED = replace(PROVEN, basis="as published", trust="nobody", honest_note="told exactly")
NONE = no_guarantee("Nothing <here>.")
EVERY = (KNOWN, PUBLISHED, REFUTED, NONE)
EVIL = '<script>alert("x")</script>&\'"'

TOLD = Disclosure(("items",), ("The change of items.",), (), ("Every message.",), ("items",), "It was simulated.")


def words_of(statement, where="clients"):
    return " ".join(Reader(render_page(statement, where=where)).words.split())


def table(head, rows, numbers):
    return str(_environment().get_template("macros.html.j2").module.table(head, rows, numbers))


def test_a_table_has_headings_right_aligned_numbers_and_small_print():
    made = table(["method", "hr"], [[("mf", "centralised"), "0.5"]], [1])
    assert '<th scope="row">mf<span class="small">centralised</span></th><td class="number">0.5</td>' in made
    assert '<th scope="col" class="number">hr</th>' in made


@given(st.text())
def test_no_text_opens_or_closes_an_element(text):
    made = table([EVIL + text], [[(text, EVIL), text]], [])
    assert made.count("<") == table(["a"], [[("b", "c"), "d"]], []).count("<")


def test_every_template_compiles_and_names_its_generator():
    environment = _environment()
    for name in environment.list_templates():
        environment.get_template(name)
    page = render_template("base", title=EVIL)
    assert GENERATOR in page[:600]
    assert "<script" not in page


def test_every_page_is_whole_and_loads_nothing_and_no_epsilon_stands_without_its_terms():
    for guarantee, where in itertools.product(EVERY, get_args(Where)):
        page = render_page(Statement(guarantee, method="m", dataset="d"), where=where)
        reader = assert_loads_nothing(page)
        assert {"ol", "h1", "title", "main", "figcaption"} <= reader.tags
        assert "style" not in {name for name, _ in reader.attributes}
        assert not re.search(r"https?://", page)
        says(page, "width=device-width", "@media print")
        assert "prefers-color-scheme" not in page  # dark on white, always
        words = " ".join(reader.words.split())
        found = [one.start() for one in re.finditer(r"[Ee]psilon \d|\(\d[^)]*\)-DP", words)]
        assert bool(found) == (guarantee.basis != "none")
        for start in found:
            says(words[start : start + 200], guarantee.unit, guarantee.adjacency, guarantee.scope, guarantee.trust)


def test_everything_of_the_statement_is_on_the_page_plain_words_first():
    told = {"method": "dp-fedmf", "dataset": "ml-1m", "noise": ("gaussian noise",), "publication": ("Nothing.",)}
    statement = Statement(replace(KNOWN, disclosure=TOLD), **told)
    words, parts = words_of(statement), statement.to_json()
    for name in ("meaning", "noise", "assumptions", "not_protected", "caveats", "publication", "leaves", "server_sees"):
        says(words, *(line[1:] for line in parts[name]))
    assert words.index(parts["plain"]) < words.index(KNOWN.line())
    assert "finds 21.3 at most" in parts["plain"]
    assert "psilon" not in parts["plain"]  # no formula
    says(words, "(unit)", "(adjacency)", "(scope)", "(trust)", "(basis)")


def test_a_run_without_privacy_says_so_plainly():
    reader = Reader(render_page(Statement(NONE, method="fedmf"), where="clients"))
    assert "Nothing is promised" in reader.words
    assert "psilon" not in reader.words
    assert ("class", "warning") in reader.attributes
    assert "no formal guarantee, so there is nothing to verify" in reader.words


def test_what_others_wrote_is_escaped():
    guarantee = replace(PROVEN, caveats=(EVIL,))
    statement = Statement(guarantee, method=EVIL, dataset=EVIL, noise=(EVIL,), publication=(EVIL,))
    page = render_page(statement, where="clients")
    assert "<script" not in page
    assert Reader(page).words.count("<script>alert") >= 5


def test_seeded_noise_is_warned_of():
    told = (Statement(replace(KNOWN, disclosure=TOLD, obstacle=why)) for why in ("", "whoever has the seed"))
    sound, seeded = (render_page(statement, where="clients") for statement in told)
    assert '<p class="formula">' in sound
    assert "stands in its way" not in sound
    assert '<p class="warning">There is no guarantee as it is' in seeded
    assert "on real clients. This run was simulated" in seeded


def test_every_flow_is_on_its_page_from_a_person_to_the_model():
    terms = itertools.product(get_args(Unit), get_args(Trust), get_args(Scope))
    cases = [(replace(PROVEN, unit=u, trust=t, scope=s), "clients") for u, t, s in terms]
    for guarantee, where in [*cases, *itertools.product(EVERY, get_args(Where))]:
        flow, words = flow_of(guarantee, where), words_of(Statement(guarantee), where)
        assert flow.actors[0].name.startswith("A person")
        assert flow.actors[-1].name == "Whoever gets the model"
        assert len(flow.messages) == len(flow.actors) - 1
        says(words, *flow.messages, *(line for actor in flow.actors for line in (actor.name, *actor.lines)))


def test_who_sees_what_depends_on_whom_one_trusts():
    def words(trust):
        return flow_of(replace(PROVEN, trust=trust), "clients").words()

    assert "has to be trusted" in words("server")
    assert "adds noise" in words("nobody").split("The operator")[0]
    client, operator = words("server sees only noisy sums").split("The operator")
    assert "Adds its share of the noise" in client
    assert "only the sum over many clients, with noise" in operator
    client, operator = words("server sees only sums").split("The operator")
    assert "noise" not in client
    says(operator, "the exact sum", "Adds noise to it")
    for where, expected in (
        ("clients", "in plaintext"),
        ("one place", "everybody's data in one place"),
        ("nowhere", "nobody's data is used"),
    ):
        assert expected in flow_of(no_guarantee(), where).words()


def test_a_file_of_somebody_else_is_left_alone(tmp_path):
    statement = Statement(KNOWN)
    (tmp_path / "mine.html").write_text("mine")
    for path, words in (
        (tmp_path / "mine.html", "is no report of veilrec"),
        (tmp_path, "is a folder"),
        (tmp_path / "mine.html" / "inside.html", "cannot be written"),
    ):
        with pytest.raises(BadInput, match=words):
            write_page(statement, path, where="clients")
    assert (tmp_path / "mine.html").read_text() == "mine"
    for _ in range(2):  # its own it replaces
        write_page(statement, tmp_path / "new" / "page.html", where="clients")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["page.html"]
