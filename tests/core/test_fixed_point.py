"""The whole numbers that messages are added up in: where they lie, that they are exact, and that no sum overflows."""

from fractions import Fraction

import numpy as np
import pytest

from veilrec.core.errors import BadInput, Diverged
from veilrec.core.fixed_point import MAX_EXAMPLES, FixedPoint
from veilrec.core.schema import ClientUpdates, Factors, RoundSpec, Rows, Schema, Tensor, from_vectors, to_vectors
from veilrec.privacy.accounting.accountant import Rounds
from veilrec.privacy.mechanisms.sums import CohortSum
from veilrec.server.aggregation import Aggregator

SCHEMA = Schema((Tensor("items", (3, 2), True), Tensor("layer", (2,), False)))

_FACTORS = ((3, (3, 1)), (1, (1,)), (2, (1, 2)))  # numbers, and their shape


def some(values, examples=None):
    """Clients that each send the rows 2 and 0, in this order, and the layer."""
    n = len(values)
    numbers = np.array(values, np.float32)
    rows = Rows(np.arange(n + 1) * 2, np.tile(np.array([2, 0], np.int32), n), numbers[:, :4].reshape(-1, 2))
    told = None if examples is None else np.array(examples)
    return ClientUpdates(0, n, {"items": rows}, {"layer": numbers[:, 4:]}, told)


def fitting(**options):
    return FixedPoint.fitting(SCHEMA, {"items": 1.0, "layer": 1.0}, **options)


def test_a_vector_holds_all_numbers_of_the_view_then_row_counts_then_examples():
    fixed_point = FixedPoint.fitting(
        SCHEMA, {"items": 8.0, "layer": 1.0}, clients=4, ring=32, weighs_examples=True, counts_rows=True
    )
    assert fixed_point.most == 2**28
    assert fixed_point.steps == {"items": 2.0**-25, "layer": 2.0**-28}
    item, layer = 2**25, 2**28
    found = fixed_point.integers(some([[1, 2, 3, 4, 0.5, -0.25]], [2]))
    numbers = [6 * item, 8 * item, 0, 0, 2 * item, 4 * item, layer, -layer // 2]
    assert found.tolist() == [[*numbers, 1, 0, 1, 2]]
    assert fixed_point.size == found.shape[1]


def test_numbers_are_cut_towards_zero_exactly():
    fixed_point = fitting(clients=3, ring=32)
    generator = np.random.default_rng(0)
    values = (generator.standard_normal((50, 6)) * 10.0 ** generator.integers(-12, 0, (50, 6))).clip(-1, 1)
    updates = some(values.tolist())
    step = Fraction(1, fixed_point.most)
    for got, number in zip(fixed_point.integers(updates).ravel(), to_vectors(updates, SCHEMA).ravel(), strict=True):
        exact = Fraction(float(number)) / step
        assert got == (exact.__floor__() if exact >= 0 else exact.__ceil__())


@pytest.mark.parametrize("ring", [32, 64])
@pytest.mark.parametrize("clients", [1, 2, 3, 1000])
def test_no_sum_overflows_however_large_its_numbers(ring, clients):
    fixed_point = FixedPoint.fitting(
        SCHEMA, {"items": 0.7, "layer": 3.0}, clients=clients, ring=ring, weighs_examples=True, saturates=True
    )
    aggregator = Aggregator(fixed_point, "weighted-mean")
    worst = some([[-3e38] * 4 + [3e38] * 2] * clients, [MAX_EXAMPLES] * clients)
    aggregator.add(worst)
    exact = [sum(int(k) for k in column) for column in fixed_point.integers(worst).T]  # of Python: without an end
    assert aggregator.vector.tolist() == exact
    assert max(map(abs, exact)) == clients * max(fixed_point.most, MAX_EXAMPLES) <= 2 ** (ring - 2)


def test_sums_of_more_clients_than_they_are_made_for_or_out_of_reach_are_refused():
    for clients, options in ((2**23, {}), (2**11, {"weighs_examples": True})):
        with pytest.raises(BadInput, match="does not fit into 32 bits"):
            fitting(clients=clients, ring=32, **options)
    aggregator = Aggregator(fitting(clients=3), "sum")
    aggregator.add(some([[0.0] * 6] * 2))
    with pytest.raises(BadInput, match="made for 3 at most"):
        aggregator.add(some([[0.0] * 6] * 2))
    with pytest.raises(BadInput, match="made for 3 at most"):
        aggregator.add_integers(np.zeros(8, np.int64), clients=2)
    assert aggregator.clients == 2
    fixed_point = fitting(clients=8, weighs_examples=True, counts_rows=True)
    fine = np.zeros(fixed_point.size, np.int64)
    for place, value in ((0, 2 * fixed_point.most + 1), (8, 3), (8, -1), (11, -1), (11, 2 * MAX_EXAMPLES + 1)):
        wrong = fine.copy()
        wrong[place] = value
        with pytest.raises(BadInput, match="cannot have added up to"):
            Aggregator(fixed_point, "weighted-mean").add_integers(wrong, clients=2)
    with pytest.raises(BadInput, match="it has 12"):
        Aggregator(fixed_point, "weighted-mean").add_integers(fine[1:], clients=2)


def test_what_lies_beyond_the_reach_is_refused_or_cut_off():
    far, none = some([[0, 0, 0, 1.5, 0, 0]]), some([[0, 0, 0, np.nan, 0, 0]])
    plain, cut = (fitting(clients=1, saturates=saturates) for saturates in (False, True))
    for fixed_point, updates in ((plain, far), (plain, none), (cut, none)):
        for refuse in (fixed_point.integers, fixed_point.check):
            with pytest.raises(Diverged, match="items"):
                refuse(updates)
        with pytest.raises(Diverged, match="items"):
            Aggregator(fixed_point, "sum").add(updates)
    aggregator = Aggregator(cut, "sum")
    aggregator.add(far)
    assert aggregator.sums["items"][0].tolist() == [0.0, 1.0]
    assert np.array_equal(cut.integers(far)[0], aggregator.vector)
    cut.check(far)


def test_what_was_sent_is_refused_just_where_the_whole_vector_is():
    fixed_point = FixedPoint.fitting(SCHEMA, {"items": 2.0, "layer": 1.0}, clients=4, weighs_examples=True)
    generator = np.random.default_rng(2)
    ends = 2.0 ** generator.integers(-1, 2, (200, 6)) * generator.choice([-1.0, 1.0], (200, 6))
    refused = 0
    for values in ends * generator.choice([1.0, 1.0000001], (200, 6)):
        tables, examples = some([values.tolist()], [1]), np.array([2])
        one = Rows(np.array([0, 1]), np.array([1], np.int32), values[:1, np.newaxis].astype(np.float32))
        factors = Factors(*(values[np.newaxis, :n].astype(np.float32).reshape(1, *s) for n, s in _FACTORS))
        packed = ClientUpdates(0, 1, examples=examples, entries={"layer": one}, factors={"items": factors})
        for updates in (tables, packed):
            try:
                fixed_point.integers(updates)
            except Diverged as beyond:
                refused += 1
                with pytest.raises(Diverged, match=str(beyond)[:30]):
                    fixed_point.check(updates)
            else:
                fixed_point.check(updates)
    assert 100 < refused < 380  # of 400


def test_entries_and_factors_add_the_same_integers_as_a_client_masks():
    generator = np.random.default_rng(1)
    entries = Rows(np.array([0, 1, 3]), np.array([1, 0, 1], np.int32), generator.random((3, 1), np.float32))
    left, right = generator.random((2, 3, 1), np.float32), generator.random((2, 1, 2), np.float32)
    factors = {"items": Factors(left, np.ones((2, 1), np.float32), right)}
    fixed_point = fitting(clients=2, counts_rows=True)
    for updates in (
        ClientUpdates(0, 2, entries={"layer": entries}, factors=factors),
        ClientUpdates(0, 2, entries={"items": entries}),  # of a table, of which no row counts
    ):
        aggregator = Aggregator(fixed_point, "row-mean")
        aggregator.add(updates)
        assert aggregator.vector.any()
        assert np.array_equal(fixed_point.integers(updates).sum(axis=0), aggregator.vector)


@pytest.mark.parametrize("ring", [32, 64])
def test_a_clipped_update_is_within_its_bound_on_the_lattice(ring):
    schema = Schema((Tensor("rows", (40, 25), by_row=True), Tensor("layer", (200,), by_row=False)))
    people = Rounds(rounds=1, sampling="poisson", population=500, cohort=50)
    mechanism = CohortSum(schema=schema, clip_norm=0.3, noise_multiplier=1.0, taking_part=people, delta=1e-6)
    fixed_point = mechanism.fixed_point(RoundSpec(0), clients=500, ring=ring)
    updates = (
        np.random.default_rng(3).standard_normal((20, mechanism.dimension)) * np.logspace(-6, 6, 20)[:, np.newaxis]
    )
    bounded = mechanism.bound(from_vectors(updates, schema), RoundSpec(0))
    for units in fixed_point.integers(bounded):
        square = sum(
            Fraction(fixed_point.steps[name]) ** 2 * sum(int(k) ** 2 for k in units[place])
            for name, place in fixed_point.places.items()
        )
        assert square <= Fraction(0.3) ** 2
