"""The table of methods and trust models: no cell is empty, docs show it as it is, and federations are as it says."""

import re
import sys
from pathlib import Path

import pytest

from veilrec.audit.trust import STRONGEST_LAST, of_method, read_trust_models, table
from veilrec.cli.methods import _print_trust
from veilrec.core.errors import BadInput
from veilrec.federation.making import FederationOptions, trusting
from veilrec.federation.trust import TrustWishes
from veilrec.methods.registry import METHODS

DOCS = Path(__file__).parents[2] / "docs"
MODELS = {"server": "server", "sums": "server sees only sums", "noisy-sums": "server sees only noisy sums"}
RATINGS, NEWS = "synthetic-ratings:users=30,items=200,seed=1", "synthetic-news:users=30,news=200,days=3,seed=1"
SOME = "cohort.size=5"


def test_the_page_shows_the_table_of_the_code():
    page = (DOCS / "federation-secagg.md").read_text(encoding="utf-8")
    assert "\n".join(table(read_trust_models())) in page, "write the output of `veilrec methods --trust` there"


def test_every_cell_says_what_proves_it_or_why_it_is_none():
    headings = re.findall(r"^#+ (.+)$", (DOCS / "privacy.md").read_text(encoding="utf-8"), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    found = read_trust_models()
    assert list(found) == list(METHODS)
    for name, by_data in found.items():
        for row in by_data.values():
            assert tuple(row) == STRONGEST_LAST
            for cell in row.values():
                assert cell["has"] == bool(cell["mechanisms"]) == (not cell["reason"]), name
                assert len(cell["sections"]) == len(cell["mechanisms"])
                assert set(cell["sections"]) <= anchors


@pytest.mark.parametrize(
    ("name", "data", "settings"),
    [
        ("fedmf", RATINGS, (SOME,)),
        ("dp-privrec", RATINGS, (SOME,)),
        ("private-gram", RATINGS, ()),
        ("dp-fedrec", NEWS, (SOME, "text.sentences=titles")),
    ],
)
def test_federations_have_the_trust_models_that_the_table_says(name, data, settings, tmp_path):
    row, models = of_method(name)[""], list(MODELS)
    for option, model in MODELS.items():
        cell, found = row[model], None
        asked = (*settings, *cell["settings"])
        wishes = FederationOptions(method=name, data=data, clients=20, rounds=1, settings=asked, public_catalogue=True)
        try:
            made, _ = trusting(tmp_path / option, wishes, TrustWishes(trust=option))
        except BadInput:
            assert name == "fedmf" and option == "noisy-sums"
        else:
            promise = made.federation.guarantee
            found = promise["trust"] if promise["basis"] == "proven" else None
        assert (found == model) == cell["has"], (option, found)
    wishes = FederationOptions(method=name, data=data, clients=20, rounds=1, settings=settings, public_catalogue=True)
    made, costs = trusting(tmp_path / "strongest", wishes, TrustWishes())
    strongest = [option for option in models if row[MODELS[option]]["has"]]
    assert costs.trust == (strongest[-1] if strongest else "sums")
    assert any("not --trust noisy-sums" in note for note in made.notes) == (name == "fedmf")


def test_a_terminal_gets_the_table_without_markdown(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    _print_trust({"fedmf", "dp-fedmf"}, json_output=False)
    said = capsys.readouterr().out
    assert not {"](", "`"} & {said[at : at + size] for size in (1, 2) for at in range(len(said))}
    assert all(len(line) <= 100 for line in said.splitlines() if line.startswith("│"))
    assert "yes: cohort-sum" in said
