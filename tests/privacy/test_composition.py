"""Two runs, one after the other: their sum is stated, or nothing is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from veilrec.privacy.guarantee import Guarantee, after, no_guarantee

PROVEN = Guarantee("proven", "user", "add-remove", 2.0, 1e-6, "whole run", "server sees only sums", ("A caveat.",))
PUBLISHED = Guarantee("as published", "user", "replace-one", 1.0, 0.0, "per message", "nobody")


def test_epsilons_and_deltas_add_up_with_both_lines_beside_them() -> None:
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
def test_replacing_somebody_is_removing_and_adding_somebody(swapped: bool) -> None:
    parts = [PROVEN, replace(PROVEN, adjacency="replace-one", epsilon=3.0, delta=1e-5)]
    both = after(*(parts[::-1] if swapped else parts), run="first")
    assert both.adjacency == "replace-one"
    assert both.epsilon == 2 * 2.0 + 3.0
    assert both.delta == pytest.approx((1 + math.exp(2.0)) * 1e-6 + 1e-5)


@pytest.mark.parametrize(
    "earlier",
    [
        no_guarantee(),
        PUBLISHED,
        replace(PROVEN, unit="click"),
        replace(PROVEN, scope="per round"),
        replace(PROVEN, adjacency="replace-one", epsilon=1.0, delta=0.9999999),
    ],
)
def test_where_no_sum_holds_nothing_is_promised(earlier: Guarantee) -> None:
    both = after(PROVEN, earlier, run="first")
    assert both.basis == "none"
    assert both.epsilon is None
    assert PROVEN.line() in both.caveats[0]
    assert earlier.line() in both.caveats[0]
    assert both.caveats[1:] == PROVEN.caveats


def test_what_promised_less_says_where_it_started() -> None:
    assert after(no_guarantee(), PROVEN, run="first").caveats == (f"It started from the run first: {PROVEN.line()}.",)
    published = after(PUBLISHED, PROVEN, run="first")
    assert (published.basis, published.epsilon) == ("as published", 1.0)
    assert "comes on top" in published.caveats[0]
    assert PROVEN.line() in published.caveats[0]
