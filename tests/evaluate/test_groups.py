from __future__ import annotations

import numpy as np
import pytest

from veilrec.evaluate.evaluator import Judgement, judge
from veilrec.evaluate.groups import by_known_items
from veilrec.evaluate.split import Cases

from .toys import csr, impressions, table_model


def judgement(known: list[int]) -> Judgement:
    numbers = np.arange(len(known))
    return Judgement(numbers, numbers * 10, np.array(known), {"ndcg@10": numbers / 10}, whole={"gini@10": 1.0})


def test_groups_are_cut_where_they_say_and_empty_ones_are_left_out() -> None:
    groups = by_known_items(judgement([101, 5, 0, 6, 20, 1, 21, 50, 5000]))
    assert {name: group.known.tolist() for name, group in groups.items()} == {
        "0": [0],
        "1-5": [5, 1],
        "6-20": [6, 20],
        "21-50": [21, 50],
        "101+": [101, 5000],
    }
    assert list(groups) == ["0", "1-5", "6-20", "21-50", "101+"]


def test_a_group_has_its_own_cases_and_nothing_of_the_whole() -> None:
    group = by_known_items(judgement([3, 60, 4]))["1-5"]
    assert group.cases.tolist() == [0, 2]
    assert group.users.tolist() == [0, 20]
    assert group.means() == {"ndcg@10": pytest.approx(0.1), "cases": 2.0}


def test_known_is_what_the_model_may_use_of_the_user() -> None:
    model = table_model([[1, 2, 3, 4, 5]] * 3)
    train = csr([[0, 1], [], [4]])
    assert judge(Cases(np.array([2, 0]), csr([[0], [3]])), train, model).known.tolist() == [1, 2]
    adapting = Cases(np.array([1]), csr([[0]]), adapt=csr([[2, 3, 4]]))
    assert judge(adapting, train, model).known.tolist() == [3]
    shown = impressions([[0, 1], [2], [3, 0]], [[1, 0], [1], [0, 1]], [[4], [0, 1, 2]], history_of=[1, 0, 0])
    asked = Cases(np.arange(3), csr([[0], [2], [0]]), impressions=shown)
    assert judge(asked, train, model).known.tolist() == [3, 1]
