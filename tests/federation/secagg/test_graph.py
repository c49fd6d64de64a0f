from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import hypergeom

from veilrec.core.errors import BadInput
from veilrec.federation.secagg.terms import Chances, choose, neighbours


@pytest.mark.parametrize(("devices", "corrupt", "lost"), [(20, 0.2, 0.3), (100, 0.05, 0.45), (500, 0.2, 0.3)])
def test_the_chances_are_what_was_asked_for(devices, corrupt, lost):
    woven, asked = choose(devices, corrupt=corrupt, lost=lost), Chances()
    bad, gone = int(corrupt * devices), int(lost * devices)
    k, t = woven.degree, woven.threshold
    assert devices * hypergeom.sf(t - 1, devices - 1, bad, k) <= asked.leak
    assert devices * hypergeom.cdf(t - 1, devices - 1, devices - 1 - gone, k) <= asked.failure
    assert devices * (devices - 1) / 2 * hypergeom.pmf(k, devices, bad + gone, k) <= asked.leak
    assert 2 * woven.quorum(devices) > devices + bad
    assert woven.quorum(devices) <= devices - gone


@pytest.mark.parametrize(
    ("devices", "corrupt", "degree", "threshold"), [(500, 0.05, 48, 19), (500, 0.2, 102, 52), (10_000, 0.05, 66, 26)]
)
def test_known_neighbourhoods(devices, corrupt, degree, threshold):
    woven = choose(devices, corrupt=corrupt, lost=0.3)
    assert (woven.degree, woven.threshold) == (degree, threshold)


@pytest.mark.parametrize(
    ("fewest", "most", "corrupt", "lost"), [(70, 100, 0.2, 0.3), (350, 500, 0.2, 0.3), (450, 500, 0.05, 0.4)]
)
def test_the_chances_hold_for_every_number_of_devices_that_a_round_may_begin_with(fewest, most, corrupt, lost):
    woven, asked = choose(fewest, most=most, corrupt=corrupt, lost=lost), Chances()
    k, t, bad = woven.degree, woven.threshold, woven.corrupt
    assert (woven.devices, woven.most, bad) == (fewest, most, round(corrupt * most))
    for members in range(fewest, most + 1):
        gone = int(lost * members)
        assert members * hypergeom.sf(t - 1, members - 1, bad, k) <= asked.leak
        assert members * (members - 1) / 2 * hypergeom.pmf(k, members, bad + gone, k) <= asked.leak
        assert members * hypergeom.cdf(t - 1, members - 1, members - 1 - gone, k) <= asked.failure
        assert 2 * woven.quorum(members) > members + bad
        assert woven.quorum(members) <= members - gone


@pytest.mark.parametrize("most", [3, 4, 7, 20, 26])
def test_in_small_rounds_everybody_is_next_to_everybody_however_many_come(most):
    fewest = max(3, most - int(0.3 * most))
    woven = choose(fewest, most=most, corrupt=0.2, lost=0.3)
    for members in range(fewest, most + 1):
        assert all(
            len(others) == members - 1 for others in neighbours(b"s", list(range(members)), woven.degree).values()
        )
        assert woven.corrupt < woven.threshold < woven.quorum(members)


def test_one_neighbour_fewer_would_not_do():
    woven, asked = choose(100, corrupt=0.2, lost=0.3), Chances()
    k = woven.degree - 2
    enough = [t for t in range(1, k + 1) if 100 * hypergeom.sf(t - 1, 99, 20, k) <= asked.leak]
    torn = 4950 * hypergeom.pmf(k, 100, 50, k) > asked.leak
    assert torn or not enough or 100 * hypergeom.cdf(enough[0] - 1, 99, 69, k) > asked.failure


def test_what_cannot_be_is_refused():
    with pytest.raises(BadInput, match="have to stay to the end"):
        choose(100, corrupt=0.05, lost=0.5)
    with pytest.raises(BadInput, match="give 3 or more"):
        choose(2, corrupt=0.0, lost=0.0)


def test_where_chance_does_not_help_everybody_is_next_to_everybody():
    woven = choose(5, corrupt=0.2, lost=0.2)
    assert (woven.degree, woven.threshold, woven.quorum(5)) == (4, 2, 4)


@pytest.mark.parametrize(("members", "degree"), [(range(30), 6), (range(5, 11), 8), ([3, 8, 100, 4], 2)])
def test_everybody_has_the_same_number_of_neighbours_and_is_theirs(members, degree):
    around = neighbours(b"session", list(members), degree)
    assert set(around) == set(members)
    for one, others in around.items():
        assert len(set(others)) == min(degree, len(around) - 1)
        assert one not in others
        assert all(one in around[other] for other in others)


def test_the_order_is_another_one_in_every_session():
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
