"""Two runs, one after the other: their sum is stated, or nothing is."""

import itertools
import math
from dataclasses import replace
from typing import get_args

import pytest

from veilrec.core.errors import BadInput
from veilrec.privacy.guarantee import Adjacency, Basis, Guarantee, Scope, Trust, Unit, after, no_guarantee

FULL = {"basis": "proven", "unit": "user", "adjacency": "add-remove", "epsilon": 2.5, "delta": 1e-6}
FULL |= {"scope": "whole run", "trust": "nobody"}


def test_every_line_names_unit_adjacency_scope_trust_and_basis():
    bases = [basis for basis in get_args(Basis) if basis != "none"]
    parts = [get_args(kind) for kind in (Unit, Adjacency, Scope, Trust)]
    for basis, unit, adjacency, scope, trust in itertools.product(bases, *parts):
        line = Guarantee(basis, unit, adjacency, 2.5, 1e-6, scope, trust).line()
        assert line.startswith("(2.5, 1e-06)-DP")
        for part in (f"per {unit}", adjacency, scope, f"trusting: {trust}", basis):
            assert part in line


def test_a_refuted_claim_is_never_printed_as_if_it_held():
    note, caveat = "No epsilon is finite: the history is sent in plaintext.", "A simulated run protects nobody."
    claim = Guarantee(**(FULL | {"basis": "as published"}), caveats=(caveat,), honest_note=note)
    assert claim.line().endswith("as published; that does not hold")
    assert claim.remarks() == (note, caveat)


def test_an_honest_number_comes_with_what_it_counts():
    terms = {"unit": "user", "adjacency": "replace-one", "scope": "per message", "trust": "nobody", "delta": 0.0}
    claim = Guarantee(
        basis="as published", epsilon=10.0, honest_epsilon=80.0, honest_delta=0.0, honest_note="of one message", **terms
    )
    assert claim.remarks() == ("The honest number: of one message.",)
    assert Guarantee(basis="proven", epsilon=1.0, caveats=("One.",), **terms).remarks() == ("One.",)


PROVEN = Guarantee("proven", "user", "add-remove", 2.0, 1e-6, "whole run", "server sees only sums", ("A caveat.",))
PUBLISHED = Guarantee("as published", "user", "replace-one", 1.0, 0.0, "per message", "nobody")


def test_epsilons_and_deltas_add_up_with_both_lines_beside_them():
    earlier = replace(PROVEN, epsilon=3.0, delta=1e-5, trust="server")
    both = after(PROVEN, earlier, run="first")
    assert both.line() == "(5, 1.1e-05)-DP per user (add-remove), whole run, trusting: server, proven"
    assert PROVEN.line() in both.caveats[0]
    assert f"The earlier run first that it started from: {earlier.line()}" in both.caveats[0]
    assert "basic composition" in both.caveats[0]
    assert both.caveats[1:] == PROVEN.caveats
    three = after(replace(PROVEN, epsilon=1.0), both, run="second")
    assert three.epsilon == 6.0
    assert "(5, 1.1e-05)-DP per user (add-remove), whole run, trusting: server, proven" in three.caveats[0]


@pytest.mark.parametrize("swapped", [False, True])
def test_replacing_somebody_is_removing_and_adding_somebody(swapped):
    parts = [PROVEN, replace(PROVEN, adjacency="replace-one", epsilon=3.0, delta=1e-5)]
    both = after(*(parts[::-1] if swapped else parts), run="first")
    assert both.adjacency == "replace-one"
    assert both.epsilon == 2 * 2.0 + 3.0
    assert both.delta == pytest.approx((1 + math.exp(2.0)) * 1e-6 + 1e-5)


def test_where_no_sum_holds_nothing_is_promised():
    for earlier in [
        no_guarantee(),
        PUBLISHED,
        replace(PROVEN, unit="click"),
        replace(PROVEN, scope="per round"),
        replace(PROVEN, adjacency="replace-one", epsilon=1.0, delta=0.9999999),
    ]:
        both = after(PROVEN, earlier, run="first")
        assert both.basis == "none", earlier
        assert both.epsilon is None
        assert PROVEN.line() in both.caveats[0]
        assert earlier.line() in both.caveats[0]
        assert both.caveats[1:] == PROVEN.caveats
    assert after(no_guarantee(), PROVEN, run="first").caveats == (f"It started from the run first: {PROVEN.line()}.",)
    published = after(PUBLISHED, PROVEN, run="first")
    assert (published.basis, published.epsilon) == ("as published", 1.0)
    assert "comes on top" in published.caveats[0]
    assert PROVEN.line() in published.caveats[0]


def test_what_is_no_guarantee_is_refused():
    for missing in FULL.keys() - {"basis"}:
        for basis in ("proven", "as published"):
            with pytest.raises(ValueError, match="an epsilon needs its unit, adjacency, delta, scope and trust"):
                Guarantee(**(FULL | {"basis": basis, missing: None}))
        with pytest.raises(ValueError, match="promises nothing"):
            Guarantee(basis="none", **{missing: FULL[missing]})
    for name, values in {"epsilon": (-1.0, math.inf, math.nan), "delta": (1.0, -1e-9)}.items():
        for value in values:
            with pytest.raises(ValueError, match=name):
                Guarantee(**(FULL | {name: value}))
    for name in ("basis", "unit", "adjacency", "scope", "trust"):
        with pytest.raises(BadInput, match=f"{name} is 'click2': allowed are"):
            Guarantee.from_json(FULL | {name: "click2"})
    with pytest.raises(BadInput, match="caveats are a list"):
        Guarantee.from_json(FULL | {"caveats": "abc"})
