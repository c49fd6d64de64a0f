"""Every aggregation rule against a plain loop over devices and rows."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest

from veilrec.errors import BadInput
from veilrec.privacy.sensitivity import rounded_sum_l2
from veilrec.server.aggregate import AGGREGATIONS, Aggregation, Aggregator
from veilrec.updates import Rows, Schema, Tensor, Uploads
from veilrec.wire.codec import BadMessage

SCHEMA = Schema((Tensor("items", (9, 3), True), Tensor("layer", (2, 4), False)))
RULES = get_args(Aggregation)


def uploads_of(n: int, seed: int = 0) -> Uploads:
    """Row 8 is touched by nobody, row 0 by everybody; the last device sends no row."""
    generator = np.random.default_rng(seed)
    index = [np.append(generator.permutation(np.arange(1, 8))[: device % 7], 0) for device in range(n - 1)]
    lengths = [len(rows) for rows in index] + [0]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    values = generator.standard_normal((int(offsets[-1]), 3)).astype(np.float32)
    rows = Rows(offsets, np.concatenate(index).astype(np.int32), values)
    dense = generator.standard_normal((n, 2, 4)).astype(np.float32)
    return Uploads(0, n, {"items": rows}, {"layer": dense}, generator.integers(1, 500, n))


def by_loop(uploads: Uploads, rule: Aggregation) -> dict[str, np.ndarray]:
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


def one_by_one(uploads: Uploads) -> list[Uploads]:
    rows = uploads.tables["items"]
    alone = []
    for device in range(uploads.count):
        entries = slice(rows.offsets[device], rows.offsets[device + 1])
        own = Rows(np.array([0, entries.stop - entries.start]), rows.index[entries], rows.values[entries])
        dense = {"layer": uploads.dense["layer"][device : device + 1]}
        alone.append(Uploads(0, 1, {"items": own}, dense, uploads.examples[device : device + 1]))
    return alone


def assert_close(got: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float = 1e-6) -> None:
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert np.abs(got[name] - values).max() <= tolerance * np.abs(values).max()


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_equals_the_plain_loop(rule: Aggregation) -> None:
    uploads = uploads_of(40)
    aggregator = Aggregator(SCHEMA, rule)
    aggregator.add(uploads)
    change = aggregator.change()
    assert_close(change, by_loop(uploads, rule))
    assert np.all(change["items"][8] == 0.0)
    assert {values.dtype for values in change.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("rule", RULES)
def test_neither_order_nor_grouping_matters(rule: Aggregation) -> None:
    uploads = uploads_of(40)
    together = Aggregator(SCHEMA, rule)
    together.add(uploads)
    shuffled = Aggregator(SCHEMA, rule)
    for device in np.random.default_rng(1).permutation(40):
        shuffled.add(one_by_one(uploads)[device])
    assert shuffled.devices == together.devices == 40
    assert_close(shuffled.change(), together.change())


def test_rounding_a_sum_moves_it_by_no_more_than_the_noise_was_chosen_for() -> None:
    n, clip_norm = 3000, 1.0
    generator = np.random.default_rng(2)
    layers = generator.standard_normal((n, 2, 4)) * 10.0 ** generator.integers(-6, 1, (n, 1, 1))
    layers = (layers / np.linalg.norm(layers, axis=(1, 2), keepdims=True).clip(min=clip_norm)).astype(np.float32)
    aggregator = Aggregator(Schema((Tensor("layer", (2, 4), False),)), "sum")
    aggregator.add(Uploads(0, n, {}, {"layer": layers}))
    exact = np.array([math.fsum(column) for column in layers.reshape(n, -1).T.astype(float)])
    allowed = (rounded_sum_l2(clip_norm, n) - clip_norm) / 2.0  # of each of two sums
    assert 0.0 < np.linalg.norm(aggregator.sums["layer"].ravel() - exact) <= allowed
    single = np.linalg.norm(layers.reshape(n, -1).cumsum(axis=0, dtype=np.float32)[-1] - exact)
    assert single > allowed  # single precision would not do


@pytest.mark.parametrize("rule", RULES)
def test_a_round_without_messages_changes_nothing(rule: Aggregation) -> None:
    aggregator = Aggregator(SCHEMA, rule)
    nobody = Rows(np.array([0]), np.empty(0, np.int32), np.empty((0, 3), np.float32))
    aggregator.add(Uploads(0, 0, {"items": nobody}, {"layer": np.empty((0, 2, 4), np.float32)}, np.empty(0, np.int64)))
    for name, values in aggregator.change().items():
        assert values.shape == SCHEMA[name].shape
        assert np.all(values == 0.0)


@pytest.mark.parametrize("rule", RULES)
def test_clear_forgets_the_round(rule: Aggregation) -> None:
    aggregator = Aggregator(SCHEMA, rule)
    aggregator.add(uploads_of(9, seed=5))
    aggregator.clear()
    aggregator.add(uploads_of(12, seed=6))
    assert_close(aggregator.change(), by_loop(uploads_of(12, seed=6), rule))


def test_a_weighted_round_refuses_a_message_without_its_number_of_examples() -> None:
    aggregator = Aggregator(SCHEMA, "weighted-mean")
    told = uploads_of(5)
    with pytest.raises(BadMessage, match="number of examples"):
        aggregator.add(Uploads(0, 5, told.tables, told.dense))
    assert aggregator.devices == 0
    assert all(np.all(values == 0.0) for values in aggregator.change().values())


def test_every_rule_is_described_and_an_unknown_one_is_refused() -> None:
    assert tuple(AGGREGATIONS) == RULES
    with pytest.raises(BadInput, match="did you mean row-mean"):
        Aggregator(SCHEMA, "row-means")  # type: ignore[arg-type]
