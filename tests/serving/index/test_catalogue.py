"""Items that come and go: every answer is that of a catalogue which scores everything."""

import threading
from math import inf, nan

import numpy as np
import pytest

from tests.serving.index.plain import PlainCatalogue
from veilrec.core.errors import BadInput
from veilrec.serving.index import catalogue
from veilrec.serving.index.catalogue import Filter, ItemIndex

DIM, INTERESTS = 6, 3
EQUAL = np.full(INTERESTS, 1 / INTERESTS, np.float32)


def both(items=500, seed=0):
    """Whole numbers: every sum is exact whatever its order, and many scores tie."""
    generator = np.random.default_rng(seed)
    vectors = generator.integers(-3, 4, (items, DIM)).astype(np.float32)
    interests = generator.integers(-2, 3, (INTERESTS, DIM)).astype(np.float32)
    category = generator.integers(-1, 5, items).astype(np.int32)
    return ItemIndex.of(vectors, interests, category=category), PlainCatalogue(vectors, interests, category)


def weights_of(generator):
    drawn = generator.dirichlet(np.ones(INTERESTS)).astype(np.float32)
    return np.where(generator.random(INTERESTS) < 0.2, np.float32(0.0), drawn)


def assert_same(one, other, generator, turns=5):
    filters = (None, Filter((1,)), Filter((0, 3)), Filter(region=1), Filter((2, 4), 0), Filter((30_000,)))
    for wanted in filters * turns:
        k, vector = int(generator.integers(1, 40)), generator.integers(-3, 4, DIM).astype(np.float32)
        for ask, about in (("best", weights_of(generator)), ("best_by_vector", vector)):
            numbers, scores = getattr(one, ask)(about, k, wanted=wanted)
            right, right_scores = getattr(other, ask)(about, k, wanted)
            assert numbers.tolist() == right.tolist()
            assert scores.tolist() == right_scores.tolist()
    assert len(one) == len(other.items)


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_changes_answers_like_scoring_everything(seed):
    generator = np.random.default_rng(seed)
    one, other = both([1, 130, 500, 2100, 5000, 300][seed], seed)
    for _ in range(12):
        for _ in range(int(generator.integers(0, 300))):
            about = {
                "category": int(generator.integers(-1, 5)),
                "region": int(generator.integers(-1, 3)),
                "prior": float(generator.integers(-2, 3)),
            }
            vector = generator.integers(-3, 4, DIM).astype(np.float32)
            assert one.put(vector, **about) == other.put(vector, **about)
        for number in generator.permutation(list(other.items))[: int(generator.integers(0, 30))].tolist():
            one.remove(number)
            other.remove(number)
        if generator.random() < 0.4:
            one.merge()
        assert_same(one, other, generator, turns=2)


def test_a_full_segment_is_followed_by_another_and_none_is_lost():
    one, other = both(200)
    generator = np.random.default_rng(1)
    for _ in range(2048 + 4096 + 10):
        vector = generator.integers(-3, 4, DIM).astype(np.float32)
        one.put(vector, category=1)
        other.put(vector, category=1)
    assert len(one._state.parts) == 4
    assert_same(one, other, generator)
    one.merge()
    assert [part.count for part in one._state.parts] == [200 + 2048 + 4096 + 10, 0]
    assert_same(one, other, generator)


def test_a_change_is_seen_by_the_next_query_and_an_older_state_does_not_change():
    one, other = both()
    before, version = one._state, one.version
    number = one.put(np.zeros(DIM, np.float32), prior=100.0)
    assert one.best(EQUAL, 1)[0].tolist() == [number] == [500]
    assert one.version > version
    assert (before.alive, len(one)) == (500, 501)
    one.remove(number)
    one.remove(7)
    assert not {7, number} & set(one.best(EQUAL, 500)[0].tolist())
    assert before.parts[0].alive.all(), "what a query has begun with stays as it was"
    (best,), _ = one.best(EQUAL, 1)
    number = one.put(other.items[int(best)][0], prior=1000.0, instead=int(best))  # in one step
    assert one.best(EQUAL, 1)[0].tolist() == [number]
    assert len(one) == 499
    assert best not in one.best(EQUAL, 500)[0]
    with pytest.raises(BadInput, match="no item number"):
        one.put(other.items[0][0], instead=int(best))
    assert len(one) == 499


def test_numbers_are_never_used_again_and_all_items_may_go():
    one, _ = both(3)
    assert sorted(one.best(EQUAL, 1000)[0].tolist()) == [0, 1, 2]  # more than there is
    for number in range(3):
        one.remove(number)
    for _ in range(2):
        assert one.best(EQUAL, 5)[0].tolist() == []
        assert one.best_by_vector(np.ones(DIM, np.float32), 5)[0].tolist() == []
        one.merge()
    for number in (3, 4):
        assert one.put(np.zeros(DIM, np.float32)) == number
        one.merge()
        assert one.best(EQUAL, 5)[0].tolist() == [number]
        one.remove(number)
        one.merge()
    for number in (2, 4, 5, -1):
        with pytest.raises(BadInput, match=f"no item number {number}"):
            one.remove(number)


def test_a_prior_is_added_to_scores_of_weights_that_sum_to_one():
    one, _ = both(5)
    vector = np.arange(DIM, dtype=np.float32)
    plain, liked = one.put(vector), one.put(vector, prior=2.5)
    for numbers, scores in (one.best(np.array([0.5, 0.25, 0.25], np.float32), 7), one.best_by_vector(vector, 7)):
        found = dict(zip(numbers.tolist(), scores.tolist(), strict=True))
        assert found[liked] - found[plain] == pytest.approx(2.5)


def test_rows_are_vectors_and_values_of_what_is_alive():
    one, other = both()
    number = one.put(np.full(DIM, 2.0, np.float32), prior=1.0)
    one.remove(3)
    for _ in range(2):
        inside, values = one.rows([7, number, 2])
        assert inside.tolist() == [other.items[7][0].tolist(), [2.0] * DIM, other.items[2][0].tolist()]
        assert values[0].tolist() == other.items[7][1].tolist()
        assert values[1].tolist() == (2.0 * other.interests.sum(axis=1) + 1.0).tolist()
        with pytest.raises(BadInput, match="no item number 3"):
            one.rows([3])
        one.merge()


def test_without_interests_only_vectors_are_answered():
    one = ItemIndex.of(np.zeros((9, DIM), np.float32), None, category=np.zeros(9, np.int32))
    number = one.put(np.full(DIM, 9.0, np.float32), category=2)
    for _ in range(2):
        assert one.best_by_vector(np.ones(DIM, np.float32), 1, wanted=Filter((2,)))[0].tolist() == [number]
        one.merge()
    assert one.rows([number])[1].shape == (1, 0)
    for ask in (lambda: one.best(EQUAL, 5), lambda: one.reachable(5)):
        with pytest.raises(BadInput, match="no interests"):
            ask()


def test_what_is_refused():
    one, _ = both()
    weights, vector = np.ones(INTERESTS, np.float32), np.ones(DIM, np.float32)
    odds = [[-0.1, 0.5, 0.6], [nan, 0.5, 0.5], [inf, 0.0, 0.0], [0.5, 0.5], [0.2] * 4, [[0.2] * 3], [1e38, 1e38, 0]]
    for odd in odds:
        with pytest.raises(BadInput, match="weights"):
            one.best(np.array(odd, np.float32), 5)
    refused = [
        (lambda: one.best(weights, 0), "k is 0"),
        (lambda: one.best_by_vector(vector, -1), "k is -1"),
        (lambda: one.reachable(0), "k is 0"),
        (lambda: one.best_by_vector(vector[:3], 5), "6 numbers"),
        (lambda: one.best_by_vector(vector * nan, 5), "not finite"),
        (lambda: one.best_by_vector(vector * 3e38, 5), "too long"),
        (lambda: one.put(vector[:3]), "6 numbers"),
        (lambda: one.put(vector * inf), "not finite"),
        (lambda: one.put(vector * 3e38), "not finite"),
        (lambda: one.put(vector, prior=nan), "finite prior"),
        (lambda: one.put(vector, category=40_000), "category is 40000"),
        (lambda: one.put(vector, region=-2), "region is -2"),
        (lambda: Filter((-1,)), "category"),
        (lambda: Filter(region=99_999), "region is 99999"),
        (lambda: ItemIndex.of(np.ones((3, 2), np.float32), None, category=np.zeros(2, np.int32)), "a code per item"),
        (lambda: ItemIndex.of(np.full((3, 2), nan, np.float32), np.ones((2, 2), np.float32)), "not finite"),
    ]
    version = one.version
    for ask, words in refused:
        with pytest.raises(BadInput, match=words):
            ask()
    assert (len(one), one.version) == (500, version)


def test_changes_during_a_merge_are_kept(monkeypatch):
    one, other = both(300)
    generator = np.random.default_rng(4)
    late = {}

    def merged(parts, vectors):
        done = real(parts, vectors)
        vector = np.full(DIM, 3.0, np.float32)
        late["number"] = one.put(vector, category=1)
        other.put(vector, category=1)
        for number in (5, 300):
            one.remove(number)
            other.remove(number)
        return done

    real = catalogue.merge_segments
    vector = np.ones(DIM, np.float32)
    assert one.put(vector) == other.put(vector) == 300
    monkeypatch.setattr(catalogue, "merge_segments", merged)
    one.merge()
    assert_same(one, other, generator)
    monkeypatch.undo()
    one.merge()
    assert_same(one, other, generator)
    one.remove(late["number"])


def test_queries_never_see_half_of_a_change():
    """One item is always the best, and is replaced, merged and replaced again while others ask for it."""
    one, _ = both(3000)
    weights, crown = EQUAL, one.put(np.zeros(DIM, np.float32), prior=1e6)
    done, seen, wrong = threading.Event(), [0], []

    def ask():
        latest = 0
        while not done.is_set():
            numbers, scores = one.best(weights, 2)
            top = numbers[scores > 5e5]
            if len(numbers) != 2 or len(top) != 1 or top[0] < latest or not 5e5 < scores[0] < 2e6:
                wrong.append((numbers, scores))
            latest = int(numbers[0])
            seen[0] += 1

    def tidy():
        while not done.is_set():
            one.merge()

    threads = [threading.Thread(target=ask) for _ in range(3)] + [threading.Thread(target=tidy)]
    for thread in threads:
        thread.start()
    for _ in range(400):
        crown = one.put(np.zeros(DIM, np.float32), prior=1e6, instead=crown)
    while seen[0] < 200:
        pass
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == [] and len(one) == 3001
    assert one.best(weights, 1)[0].tolist() == [crown]


def test_reachable_is_what_some_weights_reach():
    one, other = both(2000)
    for number in one.best(np.ones(INTERESTS, np.float32), 20)[0].tolist():
        one.remove(number)
        other.remove(number)
    one.put(np.full(DIM, 3.0, np.float32))
    other.put(np.full(DIM, 3.0, np.float32))
    found = set(one.reachable(10).tolist())
    generator = np.random.default_rng(0)
    for _ in range(300):
        weights = weights_of(generator)
        if weights.any():  # on the simplex but for its sum, which does not change the order
            assert set(other.best(weights, 10)[0].tolist()) <= found
    assert found <= set(other.items)
