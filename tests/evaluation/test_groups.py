import numpy as np
import pytest

from tests.evaluation.toys import csr, impressions, table_model
from veilrec.evaluation.evaluator import EvaluationResult, by_activity, by_known_items, evaluate_cases
from veilrec.evaluation.split import Cases


def result(known):
    numbers = np.arange(len(known))
    return EvaluationResult(numbers, numbers * 10, np.array(known), {"ndcg@10": numbers / 10}, whole={"gini@10": 1.0})


def test_groups_are_cut_where_they_say_and_have_their_own_cases_alone():
    groups = by_known_items(result([101, 5, 0, 6, 20, 1, 21, 50, 5000]))
    found = [(name, group.known.tolist()) for name, group in groups.items()]  # 51-100 is empty
    assert found == [("0", [0]), ("1-5", [5, 1]), ("6-20", [6, 20]), ("21-50", [21, 50]), ("101+", [101, 5000])]
    group = by_known_items(result([3, 60, 4]))["1-5"]
    assert (group.cases.tolist(), group.users.tolist()) == ([0, 2], [0, 20])
    assert group.means() == {"ndcg@10": pytest.approx(0.1), "cases": 2.0}  # nothing of the whole


def test_known_is_what_the_model_may_use_of_the_user():
    model = table_model([[1, 2, 3, 4, 5]] * 3)
    train = csr([[0, 1], [], [4]])
    assert evaluate_cases(Cases(np.array([2, 0]), csr([[0], [3]])), train, model).known.tolist() == [1, 2]
    adapting = Cases(np.array([1]), csr([[0]]), adapt=csr([[2, 3, 4]]))
    assert evaluate_cases(adapting, train, model).known.tolist() == [3]
    shown = impressions([[0, 1], [2], [3, 0]], [[1, 0], [1], [0, 1]], [[4], [0, 1, 2]], history_of=[1, 0, 0])
    asked = Cases(np.arange(3), csr([[0], [2], [0]]), impressions=shown)
    assert evaluate_cases(asked, train, model).known.tolist() == [3, 1]


def hits(known, values):
    numbers = np.arange(len(known))
    return EvaluationResult(numbers, numbers, np.array(known), {"hr@10": np.array(values, np.float64)})


def test_the_least_active_fifth_stands_beside_the_rest():
    # Of ten users the two with 1 and 2 items are the fifth; they hit 0 and .5, the others .75 on the mean.
    found = by_activity(hits([9, 1, 8, 7, 2, 6, 5, 5, 4, 3], [1, 0, 1, 1, 0.5, 0, 1, 1, 0, 1]))
    assert (found.least_active, found.rest, found.spread) == (0.25, 0.75, 0.5)
    assert (found.users, found.known_items) == (2, 2)
    # sample variances: 1/8 of two users, 3/14 of eight
    assert found.error == pytest.approx(np.sqrt(1 / 8 / 2 + 3 / 14 / 8))


def test_users_at_the_border_count_in_part_whatever_their_number():
    # One of ten users has 1 item; the second one of the fifth is a third of each of three with 2 items.
    known, values = [1, 2, 2, 2, 5, 5, 5, 5, 5, 5], [0, 1, 0, 0, 1, 1, 1, 1, 1, 1]
    found = by_activity(hits(known, values))
    assert found.least_active == pytest.approx((0 + 1 / 3) / 2)
    assert found.rest == pytest.approx((6 + 2 / 3) / 8)
    order = np.array([9, 3, 1, 0, 2, 4, 5, 8, 7, 6])
    other = by_activity(hits(np.array(known)[order].tolist(), np.array(values)[order].tolist()))
    assert (other.least_active, other.rest) == pytest.approx((found.least_active, found.rest))


def test_a_fifth_is_a_fifth_and_where_all_are_equally_active_there_is_no_spread():
    for users in (5, 15, 35, 55, 1000):
        found = by_activity(hits(list(range(users)), [0.0] * users))
        assert (found.users, found.known_items) == (users // 5, users // 5 - 1)
    for users in (1, 2, 3, 7):
        found = by_activity(hits([4] * users, [1.0] + [0.0] * (users - 1)))
        assert found.spread == pytest.approx(0.0)
        assert (found.error is None) == (users < 6)
    assert by_activity(result([3, 60, 4])) is None  # impressions have no hits
