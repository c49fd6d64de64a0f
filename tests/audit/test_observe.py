"""Watching changes nothing; a script and a removal change only what they say."""

import json
import math

import numpy as np
import pytest

from veilrec.audit import observe
from veilrec.audit.method import tiny_plan
from veilrec.audit.observe import ALPHA, AuditCheck, norms_of, simulate, watch
from veilrec.core.schema import ClientUpdates, Factors, Rows
from veilrec.methods.base import own_items
from veilrec.methods.registry import get
from veilrec.simulation.simulation import Seeds, Simulation

SECRET = b"a secret of thirty-two bytes...."
WAYS = [Seeds.all_from(4), Seeds.all_from(4, SECRET)]
METHODS = ["dp-fedmf", "dp-fedmf-svd", "priv-fedncf-sub-compress"]


def made(name, *settings):
    plan, problem = tiny_plan(get(name), settings)
    return plan, own_items(None, problem), problem.train


@pytest.mark.parametrize("name", [*METHODS, "dp-fedmf calibration=as-published"])
@pytest.mark.parametrize("seeds", WAYS, ids=["seeded", "secret"])
def test_a_run_under_watch_is_the_run(name, seeds):
    plan, data, histories = made(*name.split())
    alone = Simulation(plan, data, histories, seeds)
    seen = watch(plan, data, histories, seeds, 3)
    for number in range(3):
        alone.step(number)
        assert all(np.array_equal(alone.server.weights[key], value) for key, value in seen.released[number].items())


@pytest.mark.parametrize("name", METHODS)
def test_a_script_gives_the_same_models_on_other_data(name):
    plan, data, histories = made(name)
    seen = watch(plan, data, histories, WAYS[1], 3)
    other = data.take(np.array([3, 3, 5, 0, 1, 2, 2, 7, 8, 9, 9, 11]))
    again = watch(plan, other, histories, WAYS[0], 3, script=seen)
    free = watch(plan, other, histories, WAYS[1], 3)
    for one, same, different in zip(seen.released, again.released, free.released, strict=True):
        assert all(np.array_equal(one[key], same[key]) for key in one)
        assert not all(np.array_equal(one[key], different[key]) for key in one)


@pytest.mark.parametrize("seeds", WAYS, ids=["seeded", "secret"])
def test_a_removed_client_is_missing_and_nobody_else(seeds):
    plan, data, histories = made("dp-fedmf")
    with_all, without = simulate(plan, data, histories, seeds), simulate(plan, data, histories, seeds, removed=4)
    assert len(without.data.rows.row(4)) == 0
    assert np.array_equal(without.data.rows.row(5), data.rows.row(5))
    for number in range(5):
        drawn = with_all.sampler.draw(number)
        assert np.array_equal(without.sampler.draw(number), drawn[drawn != 4])


def test_norms_are_over_all_that_a_client_sends():
    rows = Rows(np.array([0, 1, 1]), np.array([2], np.int32), np.array([[3.0, 0.0]], np.float32))
    entries = Rows(np.array([0, 0, 1]), np.array([0], np.int32), np.array([[2.0]], np.float32))
    dense = np.array([[4.0], [1.0]], np.float32)
    ones = np.ones((2, 1), np.float32)
    factors = Factors(ones[:, :, np.newaxis] * 2.0, ones, ones[:, np.newaxis])
    sent = ClientUpdates(0, 2, {"table": rows}, {"layer": dense}, entries={"part": entries}, factors={"low": factors})
    assert norms_of(sent) == pytest.approx([np.sqrt(9 + 16 + 4), np.sqrt(4 + 1 + 4)])


DRAW = np.random.default_rng(8)
NOISE = DRAW.normal(0.0, 2.0, 20_000)


def test_noise_has_its_spread_and_its_shape():
    assert observe.spread_at_least("noise", NOISE, 2.0, "").holds
    assert observe.spread_at_least("noise", NOISE, 1.5, "").holds
    assert not observe.spread_at_least("noise", NOISE, 2.2, "").holds
    assert not observe.spread_at_least("noise", np.zeros(0), 2.0, "").holds
    assert not observe.spread_at_least("noise", NOISE, math.inf, "").holds
    # At a false-alarm rate of 1 in 10, 1,000 sound noises: between 60 and 140, but for one chance in 20,000.
    alarms = sum(not observe.spread_at_least("", row, 1.0, "", alpha=0.1).holds for row in DRAW.normal(size=(1000, 40)))
    assert 60 <= alarms <= 140
    assert observe.is_gaussian("", NOISE, "").holds
    assert not observe.is_gaussian("", DRAW.laplace(size=20_000), "").holds
    assert not observe.is_gaussian("", np.zeros(100), "").holds
    assert observe.spread_is_one("", DRAW.laplace(scale=2**-0.5, size=5000), "").holds
    assert not observe.spread_is_one("", DRAW.laplace(scale=0.5, size=5000), "").holds
    assert not observe.spread_is_one("", np.zeros(500), "").holds


def test_places_without_noise_and_noise_that_repeats_are_found():
    first, second = NOISE[:1000].copy(), NOISE[1000:2000].copy()
    assert observe.bare(first, second, 2.0) == 0
    first[:3], second[:2] = 0.0, 0.0  # one of the three had noise in the second draw
    assert observe.bare(first, second, 2.0) == 2
    one, other, short = NOISE[:500], NOISE[500:1000], NOISE[1000:1002]
    assert observe.repeats([("a", one), ("b", other), ("c", short)], 2.0) == []
    assert observe.repeats([("a", one), ("b", -one)], 2.0) == ["a and b"]
    assert observe.repeats([("a", one), ("b", one + 0.5 * other)], 2.0) == ["a and b"]
    assert observe.repeats([("a", one), ("b", one[:2])], 2.0) == ["a and b"]


def test_rates_and_sizes_of_cohorts():
    assert observe.rate_at_most("", 260, 1000, 0.25, "").holds
    assert not observe.rate_at_most("", 350, 1000, 0.25, "").holds
    assert observe.rate_at_least("", 240, 1000, 0.25, "").holds
    assert not observe.rate_at_least("", 160, 1000, 0.25, "").holds
    hits = DRAW.binomial(400, 0.25, 60)
    assert observe.none_sampled_too_often("", hits, 400, 0.25).holds
    hits[7] = 400
    assert not observe.none_sampled_too_often("", hits, 400, 0.25).holds
    assert observe.none_sampled_too_often("", hits, 400, 1.0).holds
    coins = DRAW.binomial(60, 0.25, 400)
    assert observe.sizes_vary("", coins, 60 * 0.25 * 0.75).holds
    assert not observe.sizes_vary("", np.full(400, 15), 60 * 0.25 * 0.75).holds


def test_a_finding_is_json_whatever_was_measured():
    for limit in [observe.at_most, observe.at_least]:
        assert not limit("", math.nan, 1.0).holds
    found = AuditCheck("noise", np.float64(0.5), "at least", math.inf, False, "items", ALPHA)
    written = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert (written["measured"], written["expected"], written["holds"]) == (0.5, "inf", False)
    assert (written["relation"], written["where"], written["false_alarm_rate"]) == ("at least", "items", ALPHA)
    assert "where" not in observe.is_equal("unit", "user", "user").to_json()


def test_what_chance_allows_is_where_a_finding_turns():
    spread = observe.spread_at_least("", NOISE, 2.0, "")
    (lowest,) = spread.allowed
    assert 1.9 < lowest < spread.measured
    for factor, holds in ((1.0001, True), (0.9999, False)):
        moved = NOISE * factor * lowest / float(np.sqrt(np.mean(NOISE**2)))
        assert observe.spread_at_least("", moved, 2.0, "").holds == holds
    for check, step in ((observe.rate_at_most, 1), (observe.rate_at_least, -1)):
        limit = round(check("", 250, 1000, 0.25, "").allowed[0] * 1000)
        assert check("", limit, 1000, 0.25, "").holds
        assert not check("", limit + step, 1000, 0.25, "").holds
    assert observe.rate_at_most("", 7, 7, 1.0, "").allowed == (1.0,)
    assert observe.rate_at_least("", 0, 7, 0.0, "").allowed == (0.0,)
    hits = np.full(60, 100)
    most = round(observe.none_sampled_too_often("", hits, 400, 0.25).allowed[0] * 400)
    for extra, holds in ((0, True), (1, False)):
        hits[7] = most + extra
        assert observe.none_sampled_too_often("", hits, 400, 0.25).holds == holds
    coins = DRAW.binomial(60, 0.25, 400)
    for limit in observe.sizes_vary("", coins, 11.25).allowed:
        for factor in (0.9999, 1.0001):
            spread_out = (coins - coins.mean()) * math.sqrt(factor * limit / float(np.var(coins)))
            assert observe.sizes_vary("", spread_out, 11.25).holds == ((factor > 1.0) == (limit < 11.25))
    assert observe.at_least("", 2.0, 1.0).allowed == ()
    assert "allowed" not in observe.at_least("", 2.0, 1.0).to_json()
