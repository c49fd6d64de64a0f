"""What lists are like, beside slow code that says the same in the words of the definitions."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.evaluation.toys import csr, rows_of
from veilrec.core.csr import Csr
from veilrec.data.population import ItemTable, Strings
from veilrec.evaluation.lists import ListEvaluator, ListItems, describe_items, gini, top_of_all, top_of_lists

CUTOFFS = (2, 4)
N_ITEMS = 9
SCORES = arrays(np.float32, (5, N_ITEMS), elements=st.integers(-3, 3).map(float))  # few values: many ties
LEFT_OUT = st.lists(st.sets(st.integers(0, N_ITEMS - 1), max_size=N_ITEMS), min_size=5, max_size=5)
KINDS = st.lists(st.sets(st.integers(0, 4), max_size=3).map(sorted), min_size=N_ITEMS, max_size=N_ITEMS)


def padded(rows, k):
    return [(row + [-1] * k)[:k] for row in rows]


def in_order(scores, among):
    return sorted(among, key=lambda item: (-scores[item], item))


@given(SCORES, LEFT_OUT, st.integers(1, 12))
def test_the_best_of_all_are_those_of_a_sort(scores, left_out, k):
    expected = [
        in_order(row, [i for i in range(N_ITEMS) if i not in out]) for row, out in zip(scores, left_out, strict=True)
    ]
    found = top_of_all(scores, csr([list(out) for out in left_out]), k)
    assert found.tolist() == padded(expected, k)


@given(SCORES, st.permutations(range(N_ITEMS)), st.integers(1, 12))
def test_the_best_of_a_list_do_not_depend_on_its_order(scores, order, k):
    lists = [order[:4], order[4:], [], order, order[:1]]
    flat = np.concatenate([scores[r, items] for r, items in enumerate(lists)])
    expected = [in_order(scores[r], items) for r, items in enumerate(lists)]
    assert top_of_lists(flat, csr(lists), k).tolist() == padded(expected, k)


def slow_values(lists, items):
    kinds = None if items.kinds is None else [set(row) for row in rows_of(items.kinds)]
    found = {}
    for k in CUTOFFS:
        cut = [row[:k] for row in lists]
        found[f"novelty@{k}"] = [float(np.mean([items.information[i] for i in row])) for row in cut]
        if kinds is not None:
            found[f"diversity@{k}"] = [mean_distance([kinds[i] for i in row]) for row in cut]
    return found


def mean_distance(kinds):
    pairs = list(combinations(kinds, 2))
    if not pairs:
        return 0.0
    return sum(1 - len(a & b) / len(a | b) if a | b else 0.0 for a, b in pairs) / len(pairs)


def slow_whole(lists, reachable):
    found = {}
    for k in CUTOFFS:
        recommended = [item for row in lists for item in row[:k]]
        counts = [recommended.count(item) for item in reachable]
        found[f"coverage@{k}"] = len(set(recommended)) / len(reachable)
        differences = np.mean([abs(a - b) for a in counts for b in counts])
        found[f"gini@{k}"] = float(differences / 2 / np.mean(counts))
    return found


LISTS = st.lists(st.lists(st.integers(0, N_ITEMS - 1), min_size=1, max_size=4, unique=True), min_size=1, max_size=6)


@given(LISTS, st.none() | KINDS, st.integers(1, 6))
def test_lists_are_judged_as_slow_code_does_in_parts_of_any_size(lists, kinds, size):
    items = ListItems(np.arange(1.0, N_ITEMS + 1) ** 0.5, None if kinds is None else csr(kinds))
    validator = ListEvaluator(items, CUTOFFS, len(lists))
    for start in range(0, len(lists), size):
        validator.add(start, np.array(padded(lists[start : start + size], validator.k), np.int32))
    expected = slow_values(lists, items)
    assert {name: values.tolist() for name, values in validator.values().items()} == {
        name: pytest.approx(values) for name, values in expected.items()
    }
    assert validator.whole() == pytest.approx(slow_whole(lists, list(range(N_ITEMS))))
    seen = sorted({item for row in lists for item in row} | {0})
    reachable = np.isin(np.arange(N_ITEMS), seen)
    assert validator.whole(reachable) == pytest.approx(slow_whole(lists, seen))


def test_gini_and_the_information_of_items_by_hand():
    assert (gini(np.array([3, 3, 3])), gini(np.array([0, 0, 0, 8]))) == (0.0, pytest.approx(1 - 1 / 4))
    assert (gini(np.array([1, 3])), gini(np.array([7]))) == (pytest.approx(0.25), 0.0)
    # Four users have training items; one has none and does not count. Nobody used item 3: as if one had.
    train = csr([[0, 1], [0], [0, 1], [0, 2], []])
    assert describe_items(train, 4, None).information.tolist() == [0.0, 1.0, 2.0, 2.0]
    assert describe_items(train, 4, None).kinds is None
    assert describe_items(csr([[], []]), 2, None).information.tolist() == [0.0, 0.0]


def kinds_of(titles, categories):
    catalogue = ItemTable(Strings.of(titles), Strings.of(categories))
    kinds = describe_items(Csr(np.zeros(1, np.int64), np.zeros(0, np.int32)), len(titles), catalogue).kinds
    return None if kinds is None else rows_of(kinds)


def test_kinds_are_categories_or_else_the_words_of_titles_or_nothing():
    assert kinds_of(["a", "b", "c"], ["Drama|Comedy", "", "comedy | Crime|comedy"]) == [[1, 3], [], [1, 2]]
    assert kinds_of(["Rain, rain by noon", "", "By night"], ["", "", ""]) == [[1, 3, 4], [], [1, 2]]
    assert kinds_of(["", ""], ["", ""]) is None
