"""Aggregation rules against a plain loop over clients and rows, optimisers against Algorithm 2 of Reddi et al."""

import math
from typing import get_args

import numpy as np
import pytest

from tests.wire.raising import raises
from veilrec.core.errors import BadInput
from veilrec.core.fixed_point import FixedPoint
from veilrec.core.plan import Aggregation
from veilrec.core.schema import ClientUpdates, Rows, Schema, Tensor
from veilrec.server.aggregation import Aggregator, Replacing, ServerRate, make_optimiser

SCHEMA = Schema((Tensor("items", (9, 3), True), Tensor("layer", (2, 4), False)))
RULES = get_args(Aggregation)


def aggregator_of(rule, *, clients=1000, saturates=False):
    told = {"weighs_examples": rule == "weighted-mean", "counts_rows": rule in ("row-mean", "row-sqrt")}
    bounds = {"items": 2.0**24, "layer": 2.0**22}
    return Aggregator(FixedPoint.fitting(SCHEMA, bounds, clients=clients, saturates=saturates, **told), rule)


def uploads_of(n, seed=0):
    """Row 8 is touched by nobody, row 0 by everybody; the last client sends no row."""
    generator = np.random.default_rng(seed)
    index = [np.append(generator.permutation(np.arange(1, 8))[: client % 7], 0) for client in range(n - 1)]
    lengths = [len(rows) for rows in index] + [0]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    values = generator.standard_normal((int(offsets[-1]), 3)).astype(np.float32)
    rows = Rows(offsets, np.concatenate(index).astype(np.int32), values)
    dense = generator.standard_normal((n, 2, 4)).astype(np.float32)
    return ClientUpdates(0, n, {"items": rows}, {"layer": dense}, generator.integers(1, 500, n))


def by_loop(updates, rule):
    rows, layers = updates.tables["items"], updates.dense["layer"]
    items, layer, touched = np.zeros((9, 3)), np.zeros((2, 4)), np.zeros(9)
    total = 0.0
    for client in range(updates.count):
        weight = float(updates.examples[client]) if rule == "weighted-mean" else 1.0
        total += weight
        layer += weight * layers[client].astype(np.float64)
        for entry in range(rows.offsets[client], rows.offsets[client + 1]):
            items[rows.index[entry]] += weight * rows.values[entry].astype(np.float64)
            touched[rows.index[entry]] += 1
    for row in range(9):
        if touched[row]:
            items[row] /= {"sum": 1.0, "row-mean": touched[row], "row-sqrt": touched[row] ** 0.5}.get(rule, total)
    layer /= {"sum": 1.0, "row-sqrt": total**0.5}.get(rule, total)
    return {"items": items, "layer": layer}


def one_by_one(updates):
    rows = updates.tables["items"]
    alone = []
    for client in range(updates.count):
        entries = slice(rows.offsets[client], rows.offsets[client + 1])
        own = Rows(np.array([0, entries.stop - entries.start]), rows.index[entries], rows.values[entries])
        dense = {"layer": updates.dense["layer"][client : client + 1]}
        alone.append(ClientUpdates(0, 1, {"items": own}, dense, updates.examples[client : client + 1]))
    return alone


def assert_close(got, expected, tolerance=1e-6):
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert np.abs(got[name] - values).max() <= tolerance * np.abs(values).max()


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_equals_the_plain_loop(rule):
    updates = uploads_of(40)
    aggregator = aggregator_of(rule)
    aggregator.add(updates)
    change = aggregator.change()
    assert_close(change, by_loop(updates, rule))
    assert np.all(change["items"][8] == 0.0)
    assert {values.dtype for values in change.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("rule", RULES)
def test_neither_order_nor_grouping_matters(rule):
    updates = uploads_of(40)
    together = aggregator_of(rule)
    together.add(updates)
    shuffled = aggregator_of(rule)
    for client in np.random.default_rng(1).permutation(40):
        shuffled.add(one_by_one(updates)[client])
    halves = aggregator_of(rule)
    for half in (slice(0, 13), slice(13, 40)):
        part = aggregator_of(rule)
        for one in one_by_one(updates)[half]:
            part.add(one)
        halves.add_integers(part.vector, clients=part.clients)
    assert shuffled.clients == together.clients == halves.clients == 40
    for other in (shuffled, halves):
        assert np.array_equal(other.vector, together.vector)
        assert all(np.array_equal(other.change()[name], values) for name, values in together.change().items())


def test_a_sum_is_exact_whatever_it_is_made_of():
    n = 3000
    generator = np.random.default_rng(2)
    layers = (generator.standard_normal((n, 2, 4)) * 10.0 ** generator.integers(-6, 1, (n, 1, 1))).astype(np.float32)
    aggregator = aggregator_of("sum", clients=n)
    aggregator.add(ClientUpdates(0, n, {}, {"layer": layers}))
    step = aggregator.fixed_point.steps["layer"]
    cut = [[int(value / step) for value in column] for column in layers.reshape(n, -1).T.astype(float)]
    assert aggregator.sums["layer"].ravel().tolist() == [float(sum(column)) * step for column in cut]
    exact = np.array([math.fsum(column) for column in layers.reshape(n, -1).T.astype(float)])
    assert np.abs(aggregator.sums["layer"].ravel() - exact).max() <= n * step


@pytest.mark.parametrize("rule", RULES)
def test_clear_forgets_the_round_and_one_without_messages_changes_nothing(rule):
    aggregator = aggregator_of(rule)
    aggregator.add(uploads_of(9, seed=5))
    aggregator.clear(aggregator.fixed_point)
    nobody = Rows(np.array([0]), np.empty(0, np.int32), np.empty((0, 3), np.float32))
    dense = {"layer": np.empty((0, 2, 4), np.float32)}
    aggregator.add(ClientUpdates(0, 0, {"items": nobody}, dense, np.empty(0, np.int64)))
    for name, values in aggregator.change().items():
        assert values.shape == SCHEMA[name].shape
        assert np.all(values == 0.0)
    aggregator.clear(aggregator.fixed_point)
    aggregator.add(uploads_of(12, seed=6))
    assert_close(aggregator.change(), by_loop(uploads_of(12, seed=6), rule))


def test_an_unknown_rule_and_weighted_messages_without_examples_are_refused():
    raises(BadInput, "did you mean row-mean", aggregator_of, "row-means")
    aggregator, told = aggregator_of("weighted-mean"), uploads_of(5)
    raises(BadInput, "number of examples", aggregator.add, ClientUpdates(0, 5, told.tables, told.dense))
    assert aggregator.clients == 0
    assert not aggregator.vector.any()


SETTINGS = [
    ServerRate(),
    ServerRate(rate=0.5),
    ServerRate(rate=0.5, momentum=0.9),
    ServerRate("adam", rate=0.1, momentum=0.9, second_momentum=0.99, caution=1e-3),
    ServerRate("adam", rate=0.1, momentum=0.0, second_momentum=0.9, caution=0.1),
    ServerRate("yogi", rate=0.1, momentum=0.9, second_momentum=0.99, caution=1e-3),
]


def changes(rounds):
    """Large and small ones, so that the second moment of Yogi goes up and down; row 2 is never touched."""
    generator = np.random.default_rng(3)
    result = []
    for number in range(rounds):
        scale = 10.0 ** (-number % 4)
        values = {"a": scale * generator.standard_normal((4, 3)), "b": generator.standard_normal(5)}
        values["a"][2] = 0.0
        result.append({name: value.astype(np.float32) for name, value in values.items()})
    return result


def start():
    generator = np.random.default_rng(4)
    return {"a": generator.standard_normal((4, 3)).astype(np.float32), "b": np.zeros(5, np.float32)}


def entry_by_entry(x, deltas, s):
    m, v = 0.0, s.caution**2
    for delta in deltas:
        if s.optimiser == "sgd":
            m = s.momentum * m + delta
            x += s.rate * m
            continue
        m = s.momentum * m + (1 - s.momentum) * delta
        if s.optimiser == "adam":
            v = s.second_momentum * v + (1 - s.second_momentum) * delta**2
        else:
            sign = (v > delta**2) - (v < delta**2)
            v = v - (1 - s.second_momentum) * delta**2 * sign
        x += s.rate * m / (math.sqrt(v) + s.caution)
    return x


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: f"{s.optimiser}-{s.rate}-{s.momentum}")
def test_each_optimiser_follows_the_paper(settings):
    weights, rounds = start(), changes(12)
    optimiser = make_optimiser(settings)
    for change in rounds:
        optimiser.step(weights, change)
    for name, first in start().items():
        for where in np.ndindex(first.shape):
            expected = entry_by_entry(float(first[where]), [float(c[name][where]) for c in rounds], settings)
            assert weights[name][where] == pytest.approx(expected, rel=2e-5, abs=2e-6)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: f"{s.optimiser}-{s.rate}-{s.momentum}")
def test_going_on_from_a_saved_state_is_exact(settings):
    rounds = changes(10)
    whole, halves = start(), start()
    straight, first_half = make_optimiser(settings), make_optimiser(settings)
    for change in rounds:
        straight.step(whole, change)
    for change in rounds[:5]:
        first_half.step(halves, change)
    saved = {name: value.copy() for name, value in first_half.state().items()}
    second_half = make_optimiser(settings)
    second_half.step(start(), rounds[9])  # loading must forget this
    second_half.load_state(saved)
    for change in rounds[5:]:
        second_half.step(halves, change)
    for name, value in whole.items():
        assert np.array_equal(value, halves[name])
    for name, value in straight.state().items():
        assert np.array_equal(value, second_half.state()[name])
    second_half.load_state({})
    assert second_half.state() == {}  # as at the start


def test_settings_that_cannot_work_are_refused():
    for name, values in {
        "rate": (0.0, math.nan, math.inf, 2e12),
        "caution": (0.0, 1e13),
        "momentum": (1.0, -0.1),
        "second_momentum": (1.0,),
    }.items():
        for value in values:
            raises(BadInput, f"server.{name} is {value}".replace("+", r"\+"), ServerRate, **{name: value})
    raises(BadInput, "did you mean adam", make_optimiser, ServerRate("adamw"))


def test_replacing_leaves_the_last_change_alone():
    weights, optimiser = start(), make_optimiser(Replacing())
    for change in changes(3):
        optimiser.step(weights, change)
    assert all(np.array_equal(weights[name], values) for name, values in changes(3)[-1].items())
    assert optimiser.state() == {}
    optimiser.load_state({})
