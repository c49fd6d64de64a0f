"""The search against the definition in numpy: the same items, the same bits, whatever the values and weights."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilrec.serving.index import blocks, segments
from veilrec.serving.index.blocks import (
    GROUP,
    MAX_SETS,
    WIDTH,
    Blocks,
    best_of,
    kd_order,
    maxima_of,
    scores_of,
    sets_of,
)
from veilrec.serving.index.catalogue import Filter, ItemIndex


def catalogue_of(values, category=None):
    """The values are the vectors: every interest looks at one of their numbers."""
    return ItemIndex.of(values, np.eye(values.shape[1], dtype=np.float32), category=category)


def assert_exact(catalogue, values, weights, k, allowed=None, wanted=None):
    numbers, scores = catalogue.best(weights, k, wanted=wanted)
    right = scores_of(values, weights)
    rows = best_of(right, k, allowed)
    assert numbers.tolist() == rows.tolist()
    assert scores.tolist() == right[rows].tolist()


def drawn(kind, items, interests, generator):
    if kind == "normal":
        return generator.normal(size=(items, interests)).astype(np.float32)
    if kind == "clusters":
        centres = generator.normal(size=(9, interests)) * 3
        return (centres[generator.integers(0, 9, items)] + generator.normal(size=(items, interests))).astype(np.float32)
    if kind == "few values":
        return generator.integers(-2, 3, (items, interests)).astype(np.float32)
    if kind == "anti":
        return generator.dirichlet(np.ones(interests), items).astype(np.float32)
    if kind == "wild":  # of all sizes: sums cancel, and rounding decides
        size = 10.0 ** generator.uniform(-8, 8, (items, interests))
        return (size * generator.choice([-1.0, 1.0], (items, interests))).astype(np.float32)
    if kind == "tiny":
        return (generator.normal(size=(items, interests)) * 1e-41).astype(np.float32)
    return np.repeat(generator.normal(size=(1, interests)), items, axis=0).astype(np.float32)  # all equal


KINDS = ("normal", "clusters", "few values", "anti", "wild", "tiny", "equal")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("interests", [1, 2, 5, 8, 9, 20])
def test_every_answer_is_that_of_numpy(kind, interests):
    generator = np.random.default_rng(KINDS.index(kind) * 100 + interests)
    for items in (1, 127, 128, 129, 5000):
        values = drawn(kind, items, interests, generator)
        catalogue = catalogue_of(values)
        for turn in range(20):
            weights = generator.dirichlet(np.full(interests, 10.0 ** generator.uniform(-1, 1)))
            if turn % 5 == 1:
                weights = np.round(weights * 4) / 4  # zeros and equals
            if turn % 5 == 2:
                weights *= 10.0 ** generator.uniform(-30, 6)  # of any sum
            assert_exact(catalogue, values, weights.astype(np.float32), int(generator.choice([1, 10, 100])))
        assert_exact(catalogue, values, np.zeros(interests, np.float32), 10)
        for corner in np.eye(interests, dtype=np.float32):
            assert_exact(catalogue, values, corner, 10)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_small_catalogue(data):
    interests = data.draw(st.integers(1, 5))
    number = st.floats(-1e6, 1e6, width=32)
    rows = data.draw(st.lists(st.lists(number, min_size=interests, max_size=interests), min_size=1, max_size=40))
    copies = data.draw(st.integers(1, 20))
    weight = st.floats(0, 1e6, width=32)
    weights = np.array(data.draw(st.lists(weight, min_size=interests, max_size=interests)), np.float32)
    values = np.array(rows * copies, np.float32)
    assert_exact(catalogue_of(values), values, weights, data.draw(st.integers(1, 50)))


def test_a_bound_is_rounded_but_never_loses_an_equal_item():
    """Blocks of one and the same item: as computed, the bound of a block is often below the score of all in it."""
    generator = np.random.default_rng(5)
    for _ in range(60):
        interests = int(generator.integers(3, 8))
        values = np.repeat(generator.normal(size=(1, interests)), WIDTH * GROUP * 3, axis=0).astype(np.float32)
        weights = generator.dirichlet(np.ones(interests)).astype(np.float32)
        numbers, _ = catalogue_of(values).best(weights, 10)
        assert numbers.tolist() == list(range(10))


@pytest.mark.parametrize("share", [0.5, 0.02, 0.001])
def test_filters_of_any_share(share):
    generator = np.random.default_rng(7)
    values = drawn("clusters", 20_000, 5, generator)
    codes = np.where(generator.random(len(values)) < share, 70, generator.integers(0, 60, len(values)))
    catalogue = catalogue_of(values, codes.astype(np.int32))
    for wanted in (Filter((70,)), Filter((70, 6)), Filter((6,)), Filter((70, 300))):
        allowed = np.isin(codes, wanted.categories)
        for _ in range(10):
            weights = generator.dirichlet(np.ones(5)).astype(np.float32)
            assert_exact(catalogue, values, weights, 10, allowed, wanted)
        gone = int(catalogue.best(weights, 1, wanted=wanted)[0][0])  # from the lists of few items, too
        catalogue.remove(gone)
        codes[gone] = 299


def test_sums_of_sets_are_the_largest_of_each_block():
    generator = np.random.default_rng(8)
    made = Blocks.of(drawn("normal", 128 * 20, 4, generator))
    maxima, group_maxima = maxima_of(made.values)
    for number, members in enumerate(sets_of(4).astype(bool)):
        assert members.tolist() == [bool((number + 1) >> bit & 1) for bit in range(4)]
        sums = made.values.astype(np.float64)[:, members].sum(axis=1).max(axis=1)
        assert maxima[:, number].ravel()[:20] == pytest.approx(sums)
        assert group_maxima[number].tolist() == maxima[:, number].max(axis=1).tolist()
    assert np.isneginf(maxima[1, :, 4:]).all()
    assert len(sets_of(MAX_SETS)) == 255
    assert sets_of(MAX_SETS + 1).tolist() == np.eye(MAX_SETS + 1).tolist()


def test_most_of_a_catalogue_is_bounded_away():
    """Not time but work: the blocks whose bound is above the tenth score are few."""
    generator = np.random.default_rng(9)
    values = drawn("normal", 200_000, 5, generator)
    best = np.sort(scores_of(values, np.full(5, 0.2, np.float32)))[-10]
    bounds = 0.2 * Blocks.of(values).maxima[:, -1].ravel()  # of equal weights: the set of all interests
    assert (bounds >= best).mean() < 0.02


def test_an_order_has_every_item_once_and_like_items_together():
    generator = np.random.default_rng(10)
    for items in (0, 1, 100, 128, 2049, 10_000):
        values = drawn("normal", items, 3, generator)
        order = kd_order(values, WIDTH, GROUP)
        assert sorted(order.tolist()) == list(range(items))
    first = values[order[:WIDTH]]
    assert (first.max(axis=0) - first.min(axis=0)).max() < (values.max(axis=0) - values.min(axis=0)).max() / 2


def test_without_numba_the_answers_are_the_same(monkeypatch):
    generator = np.random.default_rng(11)
    values = drawn("clusters", 3000, 4, generator)
    category = generator.integers(0, 5, 3000).astype(np.int32)
    catalogue = catalogue_of(values, category)
    for kernel in ("_chain", "_margin", "insert"):
        monkeypatch.setattr(blocks, kernel, getattr(blocks, kernel)._function)
    monkeypatch.setattr(segments, "search", blocks.search._function)
    monkeypatch.setattr(segments, "search_places", blocks.search_places._function)
    for _ in range(5):
        weights = generator.dirichlet(np.ones(4)).astype(np.float32)
        assert_exact(catalogue, values, weights, 10)
        assert_exact(catalogue, values, weights, 10, category == 3, Filter((3,)))
