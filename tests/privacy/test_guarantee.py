from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict
from typing import Any, get_args

import pytest

from veilrec.core.errors import BadInput
from veilrec.privacy.guarantee import Adjacency, Basis, Guarantee, Scope, Trust, Unit, no_guarantee

FULL: dict[str, Any] = {
    "basis": "proven",
    "unit": "user",
    "adjacency": "add-remove",
    "epsilon": 2.5,
    "delta": 1e-6,
    "scope": "whole run",
    "trust": "nobody",
}


@pytest.mark.parametrize("missing", [name for name in FULL if name != "basis"])
@pytest.mark.parametrize("basis", ["proven", "as published"])
def test_an_epsilon_needs_all_the_rest(missing: str, basis: str) -> None:
    with pytest.raises(ValueError, match="an epsilon needs its unit, adjacency, delta, scope and trust"):
        Guarantee(**(FULL | {"basis": basis, missing: None}))


@pytest.mark.parametrize("extra", [name for name in FULL if name != "basis"])
def test_no_guarantee_carries_nothing_that_looks_like_one(extra: str) -> None:
    with pytest.raises(ValueError, match="promises nothing"):
        Guarantee(basis="none", **{extra: FULL[extra]})


@pytest.mark.parametrize(
    ("name", "value"),
    [("epsilon", -1.0), ("epsilon", math.inf), ("epsilon", math.nan), ("delta", 1.0), ("delta", -1e-9)],
)
def test_numbers_that_promise_nothing_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        Guarantee(**(FULL | {name: value}))


@pytest.mark.parametrize("name", ["basis", "unit", "adjacency", "scope", "trust"])
def test_words_that_mean_nothing_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match=f"{name} is 'click2': allowed are"):
        Guarantee.from_json(FULL | {name: "click2"})


def test_caveats_are_a_list() -> None:
    with pytest.raises(BadInput, match="caveats are a list"):
        Guarantee.from_json(FULL | {"caveats": "abc"})


def test_every_line_names_unit_adjacency_scope_trust_and_basis() -> None:
    bases = [basis for basis in get_args(Basis) if basis != "none"]
    parts = [get_args(kind) for kind in (Unit, Adjacency, Scope, Trust)]
    for basis, unit, adjacency, scope, trust in itertools.product(bases, *parts):
        line = Guarantee(basis, unit, adjacency, 2.5, 1e-6, scope, trust).line()
        assert line.startswith("(2.5, 1e-06)-DP")
        for part in (f"per {unit}", adjacency, scope, f"trusting: {trust}", basis):
            assert part in line


def test_no_guarantee_says_so_and_keeps_its_caveats() -> None:
    statement = no_guarantee("Rows in the clear.", "A simulated run protects nobody.")
    assert statement.line() == "no privacy guarantee"
    assert statement.to_json()["caveats"] == ["Rows in the clear.", "A simulated run protects nobody."]
    assert statement.to_json()["epsilon"] is None


def test_json_has_every_field() -> None:
    statement = Guarantee(**FULL, caveats=("one",))
    assert json.loads(json.dumps(statement.to_json())) == asdict(statement) | {"caveats": ["one"]}


def test_a_refuted_claim_is_never_printed_as_if_it_held() -> None:
    claim = Guarantee(
        basis="as published",
        unit="click",
        adjacency="replace-one",
        epsilon=10.0,
        delta=0.0,
        scope="per message",
        trust="nobody",
        caveats=("A simulated run protects nobody.",),
        honest_note="No epsilon is finite: the history is sent in the clear.",
    )
    assert claim.line().endswith("as published; that does not hold")
    assert claim.remarks() == (
        "No epsilon is finite: the history is sent in the clear.",
        "A simulated run protects nobody.",
    )


def test_an_honest_number_comes_with_what_it_counts() -> None:
    terms = {"unit": "user", "adjacency": "replace-one", "scope": "per message", "trust": "nobody", "delta": 0.0}
    claim = Guarantee(
        basis="as published", epsilon=10.0, honest_epsilon=80.0, honest_delta=0.0, honest_note="of one message", **terms
    )
    assert claim.remarks() == ("The honest number: of one message.",)
    assert Guarantee(basis="proven", epsilon=1.0, caveats=("One.",), **terms).remarks() == ("One.",)
