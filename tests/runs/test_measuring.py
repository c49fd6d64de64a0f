"""A run beside popularity: groups of users, and what a run that loses to it says."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from tests.evaluation.toys import TableModel
from veilrec.cli.output import metrics_table
from veilrec.data.datasets import load
from veilrec.evaluation.evaluator import evaluate, evaluate_cases
from veilrec.evaluation.metrics import MAIN_OF_IMPRESSIONS, MAIN_OF_LISTS
from veilrec.evaluation.protocols import make_split
from veilrec.methods.base import configure
from veilrec.methods.registry import get
from veilrec.runs.evaluation import BASELINES, before_and_after, evaluate_run, measure, warnings_of, with_popularity
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.training import train

RATINGS = "synthetic-ratings:users=80,items=130,mean_history=8,seed=3"


def promise(method):
    config, _ = configure(get(method), preset="tuned", dataset="")
    return get(method).guarantee(config)


@pytest.mark.parametrize("protocol", ["loo-99", "ratio-8-2", "holdout-users"])
def test_groups_together_are_the_whole(protocol):
    split = make_split(load(RATINGS), protocol, seed=1)
    table = np.random.default_rng(1).random((80, 130), np.float32)
    measured = measure(TableModel(table, table), split, 1).to_json()
    assert evaluate(split.test, split.train, TableModel(table, table)).items() <= measured["metrics"].items()
    assert set(measured["baselines"]) == set(BASELINES)
    groups, cases = measured["groups"], measured["metrics"]["cases"]
    assert len(groups) > 1
    assert sum(group["cases"] for group in groups) == cases
    for part, whole in (("metrics", measured["metrics"]), ("popularity", measured["baselines"]["popularity"])):
        for name in MAIN_OF_LISTS:
            assert sum(group["cases"] * group[part][name] for group in groups) / cases == pytest.approx(whole[name])


def test_a_user_with_several_impressions_is_one_user():
    split = make_split(load("synthetic-news:users=60,news=200,days=3,seed=3"), "mind", seed=1)
    table = np.random.default_rng(1).random((len(split.test), 200), np.float32)
    measured = measure(TableModel(table, table), split, 1)
    assert sum(group["users"] for group in measured.groups()) < sum(group["cases"] for group in measured.groups())
    assert all(set(group["metrics"]) == set(MAIN_OF_IMPRESSIONS) for group in measured.groups())


@pytest.mark.parametrize("method", ["fedmf", "random"])
def test_people_of_whom_nothing_is_known_are_met_too(method, tmp_path):
    train(prepare(RunRequest(method, RATINGS, rounds=1, protocol="holdout-users-liked")), tmp_path / "run")
    found = evaluate_run(tmp_path / "run", personalisation=True)
    nothing, *_, half = found["personalisation"]
    assert nothing["mean_items"] == 0.0
    assert half["metrics"] == {name: found["metrics"][name] for name in MAIN_OF_LISTS}
    baselines = {name: {metric: found["baselines"][name][metric] for metric in MAIN_OF_LISTS} for name in BASELINES}
    for point in found["personalisation"]:
        assert point["baselines"] == baselines
        assert method != "random" or point["metrics"] == half["metrics"]


def test_who_does_not_beat_popularity_or_chance_in_what_counts_says_so():
    lists, shown, chance = {"ndcg@10": 0.25, "hr@10": 0.9}, {"auc": 0.6, "ndcg@10": 0.25}, {"ndcg@10": 0.05, "auc": 0.5}
    for metrics, popularity, told in (
        (lists, {"ndcg@10": 0.25, "hr@10": 0.1}, "ndcg@10 0.2500, popularity 0.2500"),
        (lists, {"ndcg@10": 0.3, "hr@10": 0.1}, "ndcg@10 0.2500, popularity 0.3000"),
        (shown, {"auc": 0.7, "ndcg@10": 0.1}, "auc 0.6000, popularity 0.7000"),
        (lists, {"ndcg@10": 0.2, "hr@10": 1.0}, None),
        (shown, {"auc": 0.5, "ndcg@10": 0.9}, None),
    ):
        both, private = {"popularity": popularity, "random": chance}, promise("dp-fedmf")
        warnings = warnings_of("fedmf", promise("fedmf"), metrics, both)
        assert [words.partition(")")[0] for words in warnings] == (
            [f"This run ranks no better than popularity ({told}"] if told else []
        )
        assert with_popularity(promise("fedmf"), metrics, popularity, method="fedmf") == promise("fedmf")
        caveats = with_popularity(private, metrics, popularity, method="dp-fedmf").caveats[len(private.caveats) :]
        assert ["no better than popularity" in words for words in caveats] == ([True] if told else [])
        assert warnings_of("dp-fedmf", private, metrics, both) == []  # its guarantee says it
    for method in ("fedmf", "dp-fedmf", "private-popularity", "popularity"):
        both = {"popularity": {"ndcg@10": 0.1}, "random": {"ndcg@10": 0.25}}
        warnings = " ".join(warnings_of(method, promise(method), lists, both))
        assert "no better than random (ndcg@10 0.2500, random 0.2500)" in warnings
        assert warnings_of("random", promise("random"), lists, both) == []


def test_a_model_of_ratings_is_judged_by_its_errors_and_noise_is_not_blamed_where_popularity_fails_as_well():
    worse, both = {"ndcg@10": 0.1, "rmse": 0.9}, {"popularity": {"ndcg@10": 0.3}, "random": {"ndcg@10": 0.05}}
    (said,) = warnings_of("privrec", promise("privrec"), worse, both)
    assert "judge it by their errors" in said
    assert "use popularity" not in said
    both = {"popularity": {"ndcg@10": 0.15}, "random": {"ndcg@10": 0.2}}
    (said,) = warnings_of("dp-fedmf", promise("dp-fedmf"), {"ndcg@10": 0.1}, both)
    assert "drowned" not in said
    assert "may be little to learn" in said


def test_errors_of_predicted_ratings_stand_below_the_table():
    own = {"ndcg@10": 0.1, "rmse": 0.94426, "mae": 0.7599, "rmse_of_mean": 0.9675, "mae_of_mean": 0.7849}
    console = Console(width=100, record=True, file=StringIO())
    console.print(metrics_table("privrec", {"privrec": own, "popularity": {"ndcg@10": 0.3}}))
    assert "RMSE 0.9443, MAE 0.7599; a user's mean: 0.9675, 0.7849" in console.export_text()


def test_a_run_that_learns_nothing_says_so_in_its_result_but_for_baselines(tmp_path):
    request = RunRequest("fedmf", RATINGS, rounds=1, settings=("local.item_rate=0.0000001", "cohort.size=20"))
    result = train(prepare(request), tmp_path / "run")
    assert "no better than popularity" in result["warnings"][0]
    assert evaluate_run(tmp_path / "run")["warnings"] == result["warnings"]
    for baseline in BASELINES:
        assert train(prepare(RunRequest(baseline, RATINGS)), tmp_path / baseline)["warnings"] == []


def test_what_training_gained_is_the_difference_and_its_error_knows_that_cases_of_one_user_go_together():
    split = make_split(load("synthetic-news:users=60,news=200,seed=2"), "mind", seed=1)
    generator = np.random.default_rng(4)
    tables = generator.random((2, len(split.test.impressions.histories), 200), np.float32)
    start, trained = (TableModel(table, table) for table in tables)
    both = before_and_after(start, trained, split)
    assert both["start"] == {name: evaluate(split.test, split.train, start)[name] for name in MAIN_OF_IMPRESSIONS}
    for name in MAIN_OF_IMPRESSIONS:
        assert both["gain"][name] == pytest.approx(both["trained"][name] - both["start"][name])
    one, other = (evaluate_cases(split.test, split.train, model) for model in (start, trained))
    gains = other.values["auc"] - one.values["auc"]
    sums = [(gains - gains.mean())[one.users == user].sum() for user in np.unique(one.users)]
    assert both["gain_error"]["auc"] == pytest.approx(np.sqrt(np.square(sums).sum()) / len(gains))
    assert set(before_and_after(start, start, split)["gain_error"].values()) == {0.0}
