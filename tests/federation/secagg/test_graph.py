from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import hypergeom

from veilrec.core.errors import BadInput
from veilrec.federation.secagg.terms import FAILURE, LEAK, choose, neighbours


def test_known_neighbourhoods_and_what_cannot_be():
    for devices, corrupt, degree, threshold in ((500, 0.05, 48, 19), (500, 0.2, 102, 52), (10_000, 0.05, 66, 26)):
        woven = choose(devices, corrupt=corrupt, lost=0.3)
        assert (woven.degree, woven.threshold) == (degree, threshold)
    woven = choose(5, corrupt=0.2, lost=0.2)  # chance does not help: everybody is next to everybody
    assert (woven.degree, woven.threshold, woven.quorum(5)) == (4, 2, 4)
    with pytest.raises(BadInput, match="have to stay to the end"):
        choose(100, corrupt=0.05, lost=0.5)
    with pytest.raises(BadInput, match="give 3 or more"):
        choose(2, corrupt=0.0, lost=0.0)


@pytest.mark.parametrize(
    ("fewest", "most", "corrupt", "lost"),
    [(20, 20, 0.2, 0.3), (100, 100, 0.05, 0.45), (70, 100, 0.2, 0.3), (450, 500, 0.05, 0.4)],
)
def test_the_chances_hold_for_every_number_of_devices_that_a_round_may_begin_with(fewest, most, corrupt, lost):
    woven = choose(fewest, most=most, corrupt=corrupt, lost=lost)
    k, t, bad = woven.degree, woven.threshold, woven.corrupt
    assert (woven.devices, woven.most, bad) == (fewest, most, round(corrupt * most))
    for members in range(fewest, most + 1):
        gone = int(lost * members)
        assert members * hypergeom.sf(t - 1, members - 1, bad, k) <= LEAK
        assert members * (members - 1) / 2 * hypergeom.pmf(k, members, bad + gone, k) <= LEAK
        assert members * hypergeom.cdf(t - 1, members - 1, members - 1 - gone, k) <= FAILURE
        assert 2 * woven.quorum(members) > members + bad
        assert woven.quorum(members) <= members - gone


def test_in_small_rounds_everybody_is_next_to_everybody_however_many_come():
    for most in (3, 4, 7, 20, 26):
        fewest = max(3, most - int(0.3 * most))
        woven = choose(fewest, most=most, corrupt=0.2, lost=0.3)
        for members in range(fewest, most + 1):
            around = neighbours(b"s", list(range(members)), woven.degree)
            assert {len(others) for others in around.values()} == {members - 1}
            assert woven.corrupt < woven.threshold < woven.quorum(members)


def test_one_neighbour_fewer_would_not_do():
    woven = choose(100, corrupt=0.2, lost=0.3)
    k = woven.degree - 2
    enough = [t for t in range(1, k + 1) if 100 * hypergeom.sf(t - 1, 99, 20, k) <= LEAK]
    torn = 4950 * hypergeom.pmf(k, 100, 50, k) > LEAK
    assert torn or not enough or 100 * hypergeom.cdf(enough[0] - 1, 99, 69, k) > FAILURE


def test_everybody_has_the_same_number_of_neighbours_and_is_theirs():
    for members, degree in ((range(30), 6), (range(5, 11), 8), ([3, 8, 100, 4], 2)):
        around = neighbours(b"session", list(members), degree)
        assert set(around) == set(members)
        for one, others in around.items():
            assert len(set(others)) == min(degree, len(around) - 1)
            assert one not in others
            assert all(one in around[other] for other in others)
    first, second = (neighbours(session, list(range(50)), 4) for session in (b"one", b"two"))
    assert first != second
    assert first == neighbours(b"one", list(range(49, -1, -1)), 4)


def test_rings_fall_apart_no_more_often_than_the_bound_says():
    """30 devices, 6 neighbours, 15 missing: the bound allows 0.37, and 2,000 rings fall apart in fewer than that.

    False alarms: if the true rate were at the bound, one in 2; it is far below, 0.06 or so: fewer than 1e-100.
    """
    draws, torn = np.random.default_rng(0), 0
    for trial in range(2000):
        around = neighbours(trial.to_bytes(4, "little"), list(range(30)), 6)
        left = set(draws.permutation(30)[:15].tolist())
        reached, border = set(), [min(left)]
        while border:
            one = border.pop()
            reached.add(one)
            border += [other for other in around[one] if other in left and other not in reached]
        torn += reached != left
    bound = 435 * hypergeom.pmf(6, 30, 15, 6)
    assert 0 < torn / 2000 <= min(bound, 1.0)
