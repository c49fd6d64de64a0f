"""Every aggregation rule against a plain loop over devices and rows."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest

from veilrec.core.errors import BadInput
from veilrec.core.fixed_point import FixedPoint
from veilrec.core.plan import Aggregation
from veilrec.core.schema import ClientUpdates, Rows, Schema, Tensor
from veilrec.server.aggregation import Aggregator

SCHEMA = Schema((Tensor("items", (9, 3), True), Tensor("layer", (2, 4), False)))
RULES = get_args(Aggregation)


def aggregator_of(rule: Aggregation, *, devices: int = 1000, saturates: bool = False) -> Aggregator:
    lattice = FixedPoint.fitting(
        SCHEMA,
        {"items": 2.0**24, "layer": 2.0**22},
        devices=devices,
        weighs_examples=rule == "weighted-mean",
        counts_rows=rule in ("row-mean", "row-sqrt"),
        saturates=saturates,
    )
    return Aggregator(lattice, rule)


def uploads_of(n: int, seed: int = 0) -> ClientUpdates:
    """Row 8 is touched by nobody, row 0 by everybody; the last device sends no row."""
    generator = np.random.default_rng(seed)
    index = [np.append(generator.permutation(np.arange(1, 8))[: device % 7], 0) for device in range(n - 1)]
    lengths = [len(rows) for rows in index] + [0]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    values = generator.standard_normal((int(offsets[-1]), 3)).astype(np.float32)
    rows = Rows(offsets, np.concatenate(index).astype(np.int32), values)
    dense = generator.standard_normal((n, 2, 4)).astype(np.float32)
    return ClientUpdates(0, n, {"items": rows}, {"layer": dense}, generator.integers(1, 500, n))


def by_loop(uploads: ClientUpdates, rule: Aggregation) -> dict[str, np.ndarray]:
    rows, layers = uploads.tables["items"], uploads.dense["layer"]
    items, layer, touched = np.zeros((9, 3)), np.zeros((2, 4)), np.zeros(9)
    total = 0.0
    for device in range(uploads.count):
        weight = float(uploads.examples[device]) if rule == "weighted-mean" else 1.0
        total += weight
        layer += weight * layers[device].astype(np.float64)
        for entry in range(rows.offsets[device], rows.offsets[device + 1]):
            items[rows.index[entry]] += weight * rows.values[entry].astype(np.float64)
            touched[rows.index[entry]] += 1
    for row in range(9):
        if touched[row]:
            items[row] /= {"sum": 1.0, "row-mean": touched[row], "row-sqrt": touched[row] ** 0.5}.get(rule, total)
    layer /= {"sum": 1.0, "row-sqrt": total**0.5}.get(rule, total)
    return {"items": items, "layer": layer}


def one_by_one(uploads: ClientUpdates) -> list[ClientUpdates]:
    rows = uploads.tables["items"]
    alone = []
    for device in range(uploads.count):
        entries = slice(rows.offsets[device], rows.offsets[device + 1])
        own = Rows(np.array([0, entries.stop - entries.start]), rows.index[entries], rows.values[entries])
        dense = {"layer": uploads.dense["layer"][device : device + 1]}
        alone.append(ClientUpdates(0, 1, {"items": own}, dense, uploads.examples[device : device + 1]))
    return alone


def assert_close(got: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float = 1e-6) -> None:
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert np.abs(got[name] - values).max() <= tolerance * np.abs(values).max()


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_equals_the_plain_loop(rule: Aggregation) -> None:
    uploads = uploads_of(40)
    aggregator = aggregator_of(rule)
    aggregator.add(uploads)
    change = aggregator.change()
    assert_close(change, by_loop(uploads, rule))
    assert np.all(change["items"][8] == 0.0)
    assert {values.dtype for values in change.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("rule", RULES)
def test_neither_order_nor_grouping_matters(rule: Aggregation) -> None:
    uploads = uploads_of(40)
    together = aggregator_of(rule)
    together.add(uploads)
    shuffled = aggregator_of(rule)
    for device in np.random.default_rng(1).permutation(40):
        shuffled.add(one_by_one(uploads)[device])
    halves = aggregator_of(rule)
    for half in (slice(0, 13), slice(13, 40)):
        part = aggregator_of(rule)
        for one in one_by_one(uploads)[half]:
            part.add(one)
        halves.add_integers(part.vector, devices=part.devices)
    assert shuffled.devices == together.devices == halves.devices == 40
    for other in (shuffled, halves):
        assert np.array_equal(other.vector, together.vector)
        assert all(np.array_equal(other.change()[name], values) for name, values in together.change().items())


def test_a_sum_is_exact_whatever_it_is_made_of() -> None:
    n = 3000
    generator = np.random.default_rng(2)
    layers = (generator.standard_normal((n, 2, 4)) * 10.0 ** generator.integers(-6, 1, (n, 1, 1))).astype(np.float32)
    aggregator = aggregator_of("sum", devices=n)
    aggregator.add(ClientUpdates(0, n, {}, {"layer": layers}))
    step = aggregator.lattice.steps["layer"]
    cut = [[int(value / step) for value in column] for column in layers.reshape(n, -1).T.astype(float)]
    assert aggregator.sums["layer"].ravel().tolist() == [float(sum(column)) * step for column in cut]
    exact = np.array([math.fsum(column) for column in layers.reshape(n, -1).T.astype(float)])
    assert np.abs(aggregator.sums["layer"].ravel() - exact).max() <= n * step


@pytest.mark.parametrize("rule", RULES)
def test_clear_forgets_the_round_and_one_without_messages_changes_nothing(rule: Aggregation) -> None:
    aggregator = aggregator_of(rule)
    aggregator.add(uploads_of(9, seed=5))
    aggregator.clear(aggregator.lattice)
    nobody = Rows(np.array([0]), np.empty(0, np.int32), np.empty((0, 3), np.float32))
    dense = {"layer": np.empty((0, 2, 4), np.float32)}
    aggregator.add(ClientUpdates(0, 0, {"items": nobody}, dense, np.empty(0, np.int64)))
    for name, values in aggregator.change().items():
        assert values.shape == SCHEMA[name].shape
        assert np.all(values == 0.0)
    aggregator.clear(aggregator.lattice)
    aggregator.add(uploads_of(12, seed=6))
    assert_close(aggregator.change(), by_loop(uploads_of(12, seed=6), rule))


def test_an_unknown_rule_and_weighted_messages_without_examples_are_refused() -> None:
    with pytest.raises(BadInput, match="did you mean row-mean"):
        aggregator_of("row-means")  # type: ignore[arg-type]
    aggregator, told = aggregator_of("weighted-mean"), uploads_of(5)
    with pytest.raises(BadInput, match="number of examples"):
        aggregator.add(ClientUpdates(0, 5, told.tables, told.dense))
    assert aggregator.devices == 0
    assert not aggregator.vector.any()
