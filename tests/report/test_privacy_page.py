"""The privacy statement as a page: whole, escaped, without a network, and its data-flow diagram complete."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import pytest

from veilrec.core.errors import BadInput
from veilrec.privacy.events import GaussianEvent, repeated
from veilrec.privacy.guarantee import Guarantee, Scope, Trust, Unit, no_guarantee
from veilrec.privacy.statement import Statement
from veilrec.report.html import Where, flow_of, render_page, write_page

PROVEN: dict[str, Any] = {
    "basis": "proven",
    "unit": "user",
    "adjacency": "add-remove",
    "epsilon": 8.0,
    "delta": 1e-6,
    "scope": "whole run",
    "trust": "server",
}
KNOWN = Guarantee(**PROVEN, event=repeated(GaussianEvent(1 / 2.06512), 10), caveats=("Mind this.",))
PUBLISHED = Guarantee(
    **(PROVEN | {"basis": "as published", "scope": "per message", "trust": "nobody", "delta": 0.0}),
    honest_epsilon=4525.0,
    honest_delta=0.0,
    honest_note="rows add up",
)
REFUTED = Guarantee(**(PROVEN | {"basis": "as published", "trust": "nobody"}), honest_note="told exactly")
EVERY = {"proven": KNOWN, "as published": PUBLISHED, "refuted": REFUTED, "none": no_guarantee("Nothing <here>.")}
EMPTY = {"meta", "link", "br", "img"}


class Reader(HTMLParser):
    """Text, attributes, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in EMPTY and not (self.get_starttag_text() or "").endswith("/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words += " " + data


def read(statement: Statement, where: Where = "devices") -> Reader:
    reader = Reader(render_page(statement, where=where))
    assert reader.open == []
    return reader


@pytest.mark.parametrize("guarantee", EVERY.values(), ids=EVERY)
@pytest.mark.parametrize("where", get_args(Where))
def test_the_page_is_whole_and_loads_nothing(guarantee: Guarantee, where: Where) -> None:
    text = render_page(Statement(guarantee, method="m", dataset="d", simulated=True), where=where)
    reader = Reader(text)
    assert reader.open == []
    assert {"ol", "h1", "title", "main", "figcaption"} <= reader.tags
    assert not {"script", "link", "img", "iframe", "object", "form"} & reader.tags
    names = {name for name, _ in reader.attributes}
    assert not {"src", "href", "style", "onload", "onclick"} & names
    assert not re.search(r"https?://", text)
    assert not re.search(r"@import|url\((?!#)", text)
    assert "width=device-width" in text
    assert "@media print" in text
    assert "prefers-color-scheme" not in text  # dark on white, always


def test_everything_of_the_statement_is_on_the_page_plain_words_first() -> None:
    statement = Statement(
        KNOWN, method="dp-fedmf", dataset="ml-1m", noise=("gaussian noise",), publication=("Nothing.",), simulated=True
    )
    words = " ".join(read(statement).words.split())
    parts = statement.to_json()
    for name in ("meaning", "noise", "assumptions", "not_protected", "caveats", "publication"):
        for line in parts[name]:
            assert line[1:] in words, line
    assert words.index(parts["plain"]) < words.index(KNOWN.line())
    assert "finds 21.3 at most" in parts["plain"]
    assert "psilon" not in parts["plain"]  # no formula
    for field in ("(unit)", "(adjacency)", "(scope)", "(trust)", "(basis)"):
        assert field in words


@pytest.mark.parametrize("guarantee", [g for g in EVERY.values() if g.basis != "none"])
def test_an_epsilon_never_stands_without_its_terms(guarantee: Guarantee) -> None:
    words = " ".join(read(Statement(guarantee)).words.split())
    found = list(re.finditer(r"[Ee]psilon \d|\(\d[^)]*\)-DP", words))
    assert found
    for one in found:
        following = words[one.start() : one.start() + 200]
        for term in (guarantee.unit, guarantee.adjacency, guarantee.scope, guarantee.trust):
            assert str(term) in following


def test_a_run_without_privacy_says_so_plainly() -> None:
    reader = read(Statement(EVERY["none"], method="fedmf"))
    assert "Nothing is promised" in reader.words
    assert "psilon" not in reader.words
    assert ("class", "warning") in reader.attributes
    assert "no formal guarantee, so there is nothing to verify" in reader.words


def test_what_others_wrote_is_escaped() -> None:
    bad = '<script>alert("x")</script>&\'"'
    guarantee = Guarantee(**PROVEN, caveats=(bad,))
    text = render_page(Statement(guarantee, method=bad, dataset=bad, noise=(bad,), publication=(bad,)), where="devices")
    assert "<script" not in text
    assert Reader(text).words.count("<script>alert") >= 5


WEAK_AND_STRONG = [Guarantee(**PROVEN), Guarantee(**(PROVEN | {"epsilon": 0.5}))]


def test_a_weak_promise_is_called_one() -> None:
    weak, strong = (Statement(guarantee).plain() for guarantee in WEAK_AND_STRONG)
    assert weak.startswith("This is a weak promise: somebody who")
    assert strong.startswith("Nobody who sees the results alone can do much better than guess whether")
    assert "may find all of them" in Statement(PUBLISHED).plain()
    assert "does not hold" in Statement(REFUTED).plain()


def test_a_page_about_seeded_noise_warns() -> None:
    sound, seeded = (
        render_page(Statement(KNOWN, simulated=True, drawn_again=why), where="devices")
        for why in ("", "whoever has the seed")
    )
    assert '<p class="formula">' in sound
    assert "with secure noise" not in sound
    assert '<p class="warning">There is no guarantee as it lies here' in seeded
    assert "on real devices with secure noise" in seeded


CASES = [
    *(
        (Guarantee(**(PROVEN | {"unit": u, "trust": t, "scope": s})), "devices")
        for u, t, s in itertools.product(get_args(Unit), get_args(Trust), get_args(Scope))
    ),
    *((guarantee, where) for guarantee in EVERY.values() for where in get_args(Where)),
]


def test_every_flow_is_on_its_page_from_a_person_to_the_model() -> None:
    for guarantee, where in CASES:
        flow = flow_of(guarantee, where)
        words = read(Statement(guarantee), where).words
        assert flow.actors[0].name.startswith("A person")
        assert flow.actors[-1].name == "Whoever gets the model"
        assert len(flow.messages) == len(flow.actors) - 1
        for line in (*flow.messages, *(line for actor in flow.actors for line in (actor.name, *actor.lines))):
            assert line in words


def test_who_sees_what_depends_on_whom_one_trusts() -> None:
    def words(trust: str) -> str:
        return flow_of(Guarantee(**(PROVEN | {"trust": trust})), "devices").words()

    assert "has to be trusted" in words("server")
    assert "adds noise" in words("nobody").split("The operator")[0]
    device, operator = words("server sees only noisy sums").split("The operator")
    assert "Adds its share of the noise" in device
    assert "only the sum over many clients, with noise" in operator
    device, operator = words("server sees only sums").split("The operator")
    assert "noise" not in device
    assert "the exact sum" in operator
    assert "Adds noise to it" in operator
    assert "in plaintext" in flow_of(no_guarantee(), "devices").words()
    assert "everybody's data in one place" in flow_of(no_guarantee(), "one place").words()
    assert "nobody's data is used" in flow_of(no_guarantee(), "nowhere").words()


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    statement = Statement(KNOWN)
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(BadInput, match="is no report of veilrec"):
        write_page(statement, tmp_path / "mine.html", where="devices")
    assert (tmp_path / "mine.html").read_text() == "mine"
    with pytest.raises(BadInput, match="is a folder"):
        write_page(statement, tmp_path, where="devices")
    with pytest.raises(BadInput, match="cannot be written"):
        write_page(statement, tmp_path / "mine.html" / "inside.html", where="devices")
    for _ in range(2):  # its own it replaces
        write_page(statement, tmp_path / "new" / "page.html", where="devices")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["page.html"]
