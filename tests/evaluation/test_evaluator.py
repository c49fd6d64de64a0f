import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evaluation.toys import TableModel, csr, impressions, random_population, rows_of, table_model
from veilrec.client.rankers import OwnHistoryRanker
from veilrec.core.csr import Csr
from veilrec.core.errors import VeilrecError
from veilrec.data.population import ItemTable, Strings
from veilrec.evaluation import evaluator
from veilrec.evaluation.evaluator import EvaluationResult, by_known_items, evaluate, evaluate_cases
from veilrec.evaluation.lists import ListItems, describe_items
from veilrec.evaluation.metrics import MAIN_OF_IMPRESSIONS, MAIN_OF_LISTS
from veilrec.evaluation.protocols import make_split
from veilrec.evaluation.split import Cases

NO_TRAIN = csr([[], []])
PROTOCOLS = pytest.mark.parametrize("protocol", ["loo-99", "loo-full", "ratio-8-2", "holdout-users"])
KINDS = Strings.of("abc"[number % 3] for number in range(130))


def cases(rows, **more):
    return Cases(np.arange(len(rows)), csr(rows), **more)


def split_of(protocol, users=40):
    return make_split(random_population(users, 130, 3, 20, seed=1), protocol, seed=1)


def scores_with_ties(seed, users=40):
    return np.random.default_rng(seed).integers(-6, 7, (users, 130)).astype(np.float32)


def test_sampled_candidates_by_hand():
    asked = Cases(np.array([1, 0]), csr([[0], [3]]), candidates=np.array([[0, 1, 2], [3, 2, 1]], np.int32))
    # Places 2 and 1.5; item 3 of user 1 and item 0 of user 0 are not asked for.
    result = evaluate_cases(asked, NO_TRAIN, table_model([[9.0, 0.2, 0.5, 0.5], [0.5, 0.7, 0.1, 9.0]]))
    assert (result.users.tolist(), result.cases.tolist()) == ([1, 0], [0, 1])
    assert result.values["ndcg@10"].tolist() == pytest.approx([1 / np.log2(3), 1 / np.log2(2.5)])
    metrics = result.means()
    assert (metrics["hr@5"], metrics["cases"]) == (1.0, 2)
    assert (result.skipped, metrics.get("skipped")) == (None, None)


def test_all_items_but_those_of_training_and_held_out_users_one_by_one_by_hand():
    model = table_model([[0.0] * 6, [9.0, 4.0, 3.0, 5.0, 1.0, 0.0]])
    for aside, expected in ((None, (1 / np.log2(3) + 1 / 2) / (1 + 1 / np.log2(3))), (csr([[3]]), 1.0)):
        asked = Cases(np.array([1]), csr([[1, 2]]), set_aside=aside)
        assert evaluate(asked, csr([[], [0]]), model)["ndcg@5"] == pytest.approx(expected)
    model = TableModel(np.zeros((9, 6), np.float32), np.array([[9, 4, 3, 5, 1, 0]], np.float32))
    # 0 is known; once 3 is set aside, nothing is left before either
    for aside, expected in ((None, 1 / np.log2(3)), (csr([[3]]), 1.0)):
        asked = Cases(np.array([7]), csr([[1, 2]]), adapt=csr([[0]]), set_aside=aside)
        metrics = evaluate(asked, csr([[]] * 9), model)
        assert model.folded is asked.adapt
        assert (metrics["ndcg@5"], metrics["hr@5"]) == (pytest.approx(expected), 1.0)


SHOWN = impressions(
    shown=[[0, 1, 2, 3], [4], [3, 0], [1, 2]],
    clicked=[[1, 0, 1, 0], [1], [0, 1], [0, 0]],
    histories=[[4], [0, 1]],
    history_of=[1, 0, 0, 1],
)
OF_SHOWN = cases([[0, 2], [4], [0], []], impressions=SHOWN)
SHOWN_TABLE = [[1, 2, 3, 4, 5], [8, 7, 6, 5, 4]]


def test_impressions_by_hand():
    model = table_model(SHOWN_TABLE)
    result = evaluate_cases(OF_SHOWN, NO_TRAIN, model)
    # First: clicks at places 1 and 3 of 4. Third: at 2 of 2. The second and the fourth lack a label.
    assert result.cases.tolist() == result.users.tolist() == [0, 2]
    assert result.values["auc"].tolist() == [0.75, 0.0]
    metrics = result.means()
    assert metrics["mrr"] == pytest.approx(((1 + 1 / 3) / 2 + 1 / 2) / 2)
    assert (metrics["cases"], metrics["skipped"]) == (2, 2)
    assert model.folded is SHOWN.histories
    # a model may score impressions itself: this one better, the later they are in the flat list
    model.score_impressions = lambda shown: np.arange(len(shown.shown.items), dtype=np.float32)
    assert evaluate(OF_SHOWN, NO_TRAIN, model)["auc"] == pytest.approx((0.25 + 1) / 2)


SCORES = st.integers(0, 2**31).map(lambda seed: scores_with_ties(seed, 30))
MONOTONE = st.sampled_from([lambda x: 3 * x + 7, lambda x: x**3, np.exp, np.arctan])


@PROTOCOLS
@given(scores=SCORES, transform=MONOTONE)
@settings(max_examples=20)
def test_monotone_transforms_of_scores_change_nothing(protocol, scores, transform):
    split, changed = split_of(protocol, 30), transform(scores)
    assert evaluate(split.test, split.train, TableModel(scores, scores)) == evaluate(
        split.test, split.train, TableModel(changed, changed)
    )


@given(scores=SCORES, seed=st.integers(0, 999))
@settings(max_examples=20)
def test_the_order_of_candidates_and_the_numbering_of_items_change_nothing(scores, seed):
    split = split_of("loo-99", 30)
    shuffled = split.test.candidates.copy()
    np.random.default_rng(seed).permuted(shuffled[:, 1:], axis=1, out=shuffled[:, 1:])
    other = Cases(split.test.users, split.test.positives, candidates=shuffled)
    model = TableModel(scores)
    assert evaluate(split.test, split.train, model) == evaluate(other, split.train, model)
    split = split_of("ratio-8-2", 30)
    new_number = np.random.default_rng(seed).permutation(130).astype(np.int32)
    renumbered = np.empty_like(scores)
    renumbered[:, new_number] = scores
    positives = Csr(split.test.positives.offsets, new_number[split.test.positives.items])
    train = Csr(split.train.offsets, new_number[split.train.items])
    assert evaluate(split.test, split.train, TableModel(scores)) == evaluate(
        Cases(split.test.users, positives), train, TableModel(renumbered)
    )


@PROTOCOLS
def test_the_same_score_for_everything_hits_nothing(protocol):
    split, same = split_of(protocol), np.ones((40, 130), np.float32)
    metrics = evaluate(split.test, split.train, TableModel(same, same))
    assert metrics["hr@30"] == metrics["ndcg@30"] == 0.0
    assert evaluate(OF_SHOWN, NO_TRAIN, table_model([[1] * 5] * 2))["auc"] == 0.5


def test_random_scores_stay_at_chance():
    # hr@k of 4,000 users is binomial with k in 100; beyond 5 standard deviations once in 1.7 million runs.
    people = random_population(4_000, 150, 2, 20, seed=1)
    split = make_split(people, "loo-99", seed=1)
    table = np.random.default_rng(2).random((4_000, 150), np.float32)
    metrics = evaluate(split.test, split.train, TableModel(table))
    for k in (5, 10, 20, 30):
        assert abs(metrics[f"hr@{k}"] - k / 100) < 5 * np.sqrt(k / 100 * (1 - k / 100) / 4_000)


ASKED = [
    cases([[0], [1]], candidates=np.array([[0, 5], [1, 5]], np.int32)),
    cases([[0], [1]]),
    cases([[0], [1]], adapt=csr([[2], [3]])),
    cases([[0], [5]], impressions=impressions([[0, 5], [5, 0]], [[1, 0], [1, 0]], [[1], [2]])),
]


def test_scores_that_are_no_number_or_of_the_wrong_shape_are_refused_and_infinite_ones_rank_first_or_last():
    def broken(value):
        table = np.arange(260, dtype=np.float32).reshape(2, 130)
        table[0, 5] = value
        return TableModel(table, table)

    for asked in ASKED:
        with pytest.raises(VeilrecError, match="the model is broken: some of its scores are not a number"):
            evaluate(asked, NO_TRAIN, broken(np.nan))
        for infinite, finite in ((np.inf, 1e9), (-np.inf, -1e9)):
            assert evaluate(asked, NO_TRAIN, broken(infinite)) == evaluate(asked, NO_TRAIN, broken(finite))
    model = TableModel(np.zeros((2, 130), np.float32))
    model.score_all = lambda users: model.table[users, :-1]  # forgets the last item
    with pytest.raises(VeilrecError, match=r"gave scores of shape \(2, 129\) where \(2, 130\) was asked for"):
        evaluate(ASKED[1], NO_TRAIN, model)


@PROTOCOLS
def test_a_case_is_judged_the_same_alone(protocol):
    split, table = split_of(protocol), scores_with_ties(1)
    together = evaluate_cases(split.test, split.train, TableModel(table, table))
    for case in (0, len(split.test) - 1):
        row = np.array([case])
        alone = Cases(
            split.test.users[row],
            split.test.positives.take(row),
            candidates=None if split.test.candidates is None else split.test.candidates[row],
            adapt=None if split.test.adapt is None else split.test.adapt.take(row),
        )
        values = evaluate_cases(alone, split.train, TableModel(table, table[row])).values
        assert {name: value[0] for name, value in values.items()} == {
            name: value[case] for name, value in together.values.items()
        }


def everything_of(split, table):
    items = describe_items(split.train, 130, ItemTable(KINDS, KINDS))
    return evaluate_cases(split.test, split.train, TableModel(table, table), items)


@PROTOCOLS
def test_everything_agrees_with_the_short_evaluation(protocol):
    split, table = split_of(protocol), scores_with_ties(1)
    result = everything_of(split, table)
    everything, short = result.means(), evaluate(split.test, split.train, TableModel(table, table))
    assert set(short) == {*MAIN_OF_LISTS, "cases"}
    assert {name: everything[name] for name in short} == short
    families = ("hr", "ndcg", "recall", "precision", "mrr", "map", "novelty", "diversity", "coverage", "gini")
    assert set(everything) == {f"{family}@{k}" for family in families for k in (5, 10, 20, 30)} | {"cases"}
    assert all(values.shape == (len(split.test),) for values in result.values.values())


@PROTOCOLS
def test_lists_are_those_of_all_items_that_are_not_known_of_the_user(protocol):
    table = np.random.default_rng(1).permuted(np.tile(np.arange(130, dtype=np.float32), (40, 1)), axis=1)
    split = split_of(protocol)
    result, asked, train = everything_of(split, table), split.test, split.train
    counts = np.bincount(train.items, minlength=130)
    trained = sum(len(row) > 0 for row in rows_of(train))
    novelty, recommended = [], set()
    for case, user in enumerate(asked.users):
        known = train.row(user) if asked.adapt is None else asked.adapt.row(case)
        scores = table[user if asked.adapt is None else case].copy()
        scores[known] = -1
        best = np.argsort(-scores)[:10]
        recommended |= set(best.tolist())
        novelty.append(np.mean([-np.log2(max(counts[item], 1) / trained) for item in best]))
    assert result.values["novelty@10"].tolist() == pytest.approx(novelty)
    assert result.whole["coverage@10"] == pytest.approx(len(recommended) / 130)


def test_validation_items_are_in_no_list():
    asked = Cases(np.array([1]), csr([[1]]), candidates=np.array([[1, 2]], np.int32), set_aside=csr([[3]]))
    model = table_model([[0.0] * 6, [9.0, 4.0, 3.0, 5.0, 1.0, 0.0]])
    values = evaluate_cases(asked, csr([[], [0]]), model, ListItems(np.arange(6.0) ** 2, None)).values
    assert values["novelty@5"].tolist() == [np.mean([1, 4, 16, 25])]


def test_lists_of_impressions_are_of_what_was_shown_and_judged():
    model = table_model(SHOWN_TABLE)
    items = ListItems(np.array([1.0, 2, 3, 4, 5]), csr([[0], [0], [0], [1], [2]]))
    result = evaluate_cases(OF_SHOWN, NO_TRAIN, model, items)
    values, whole = result.values, result.whole
    assert (values["novelty@5"].tolist(), values["diversity@10"].tolist()) == ([2.5, 2.5], [0.5, 1.0])
    # Item 4 stands only in an impression that cannot be judged; 0 and 3 are shown twice, 1 and 2 once.
    assert (whole["coverage@5"], whole["gini@5"]) == (1.0, pytest.approx(1 / 6))
    assert (values["recall@5"].tolist(), values["mrr@5"].tolist()) == ([1, 1], [1, 0.5])
    assert values["mrr"].tolist() == pytest.approx([(1 + 1 / 3) / 2, 0.5])
    short = evaluate(OF_SHOWN, NO_TRAIN, model)
    assert set(short) == {*MAIN_OF_IMPRESSIONS, "cases", "skipped"}
    assert {name: result.means()[name] for name in short} == short


@PROTOCOLS
def test_the_size_of_the_parts_changes_nothing(protocol, monkeypatch):
    split, table = split_of(protocol), scores_with_ties(2)
    items, shown = ListItems(np.array([1.0, 2, 3, 4, 5]), None), table_model(SHOWN_TABLE)
    wholes = everything_of(split, table).means(), evaluate_cases(OF_SHOWN, NO_TRAIN, shown, items).means()
    monkeypatch.setattr(evaluator, "SCORES_AT_ONCE", 300)
    assert everything_of(split, table).means() == wholes[0]
    monkeypatch.setattr(evaluator, "SCORES_AT_ONCE", 1)
    assert evaluate_cases(OF_SHOWN, NO_TRAIN, shown, items).means() == wholes[1]


def result_of(known):
    numbers = np.arange(len(known))
    return EvaluationResult(numbers, numbers * 10, np.array(known), {"ndcg@10": numbers / 10}, whole={"gini@10": 1.0})


def test_groups_are_cut_where_they_say_and_have_their_own_cases_alone():
    groups = by_known_items(result_of([101, 5, 0, 6, 20, 1, 21, 50, 5000]))
    found = [(name, group.known.tolist()) for name, group in groups.items()]  # 51-100 is empty
    assert found == [("0", [0]), ("1-5", [5, 1]), ("6-20", [6, 20]), ("21-50", [21, 50]), ("101+", [101, 5000])]
    group = by_known_items(result_of([3, 60, 4]))["1-5"]
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


def test_a_row_of_a_log_is_ranked_among_items_that_its_user_never_used_and_counts_as_often_as_it_is_there():
    # User 0 used item 0 in both halves, twice in the test, and items 1 and 2 in one half each; 3 to 129 never.
    scores = np.zeros((1, 130), np.float32)
    scores[0, [0, 1, 2, 3, 4]] = [3.0, 9.0, 1.5, 2.0, 4.0]
    asked = Cases(np.array([0]), csr([[0, 2]]), adapt=csr([[0, 1, 0]]), repeats=np.array([2, 1]))
    result = evaluate_cases(asked, NO_TRAIN, TableModel(scores, scores))
    gains = [1 / np.log2(3), 1 / np.log2(3), 1 / np.log2(4)]  # places 2, 2 and 3
    assert result.values["ndcg@10"].tolist() == pytest.approx([np.mean(gains)])
    assert result.values["hr@5"].tolist() == [1.0]
    assert result.known.tolist() == [3]


def test_own_history_comes_first_and_then_what_is_popular():
    uses = np.array([5, 1, 9, 0, 3], np.float32)
    model = OwnHistoryRanker().model({"uses": uses}, {}, csr([[0], []])).fold_in(csr([[3, 1, 1], []]))
    order = np.argsort(-model.score_all(np.array([0, 1])), axis=1).tolist()
    assert order == [[1, 3, 2, 0, 4], [2, 0, 4, 1, 3]]
    some = model.score_some(np.array([1, 0, 0]), np.array([[2, 0], [1, 3], [4, 4]]))
    assert np.array_equal(some[1], model.score_all(np.array([0]))[0, [1, 3]])
