import csv

import numpy as np
import polars as pl
import pytest

import veilrec
from veilrec.core.errors import BadInput
from veilrec.data.datasets import load
from veilrec.data.population import Strings
from veilrec.evaluation.evaluator import EvaluationResult
from veilrec.runs.export import write_per_user

DATA = "synthetic-ratings:users=60,items=130,mean_history=8,seed=3"
USERS = Strings.of(["anna", 'b,"quoted"', "çelik", "unasked"])
JUDGEMENT = EvaluationResult(
    np.array([0, 1, 3]),
    np.array([2, 0, 1]),
    np.array([7, 0, 300]),
    {"auc": np.array([0.1, 1 / 3, 1.0]), "mrr": np.array([0.5, 0.25, 0.125])},
    skipped=1,
)


def test_a_file_has_a_row_for_every_case(tmp_path):
    write_per_user(tmp_path / "users.csv", JUDGEMENT, USERS)
    with (tmp_path / "users.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["user", "case", "known_items", "auc", "mrr"]
    assert [row[:3] for row in rows] == [["çelik", "0", "7"], ["anna", "1", "0"], ['b,"quoted"', "3", "300"]]
    assert [float(row[3]) for row in rows] == [0.1, 1 / 3, 1.0]  # every digit
    write_per_user(tmp_path / "users.parquet", JUDGEMENT, USERS)
    assert pl.read_parquet(tmp_path / "users.parquet").equals(pl.read_csv(tmp_path / "users.csv"))
    for name in ("users.xlsx", "users", "users.csv.gz", "users.jsonl"):
        with pytest.raises(BadInput, match=r"--per-user .* ends in .*: give a name with \.csv, \.parquet"):
            write_per_user(tmp_path / name, JUDGEMENT, USERS)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return veilrec.train("fedmf", DATA, out=out, seed=1, rounds=2, settings={"cohort.size": 20})


def test_the_means_of_the_file_are_the_metrics_of_the_run(run, tmp_path):
    result = run.evaluate(per_user=tmp_path / "users.parquet")
    assert result["per_user"] == str(tmp_path / "users.parquet")
    frame = pl.read_parquet(tmp_path / "users.parquet")
    assert len(frame) == result["metrics"]["cases"]
    assert set(result["metrics"]) - set(frame.columns) == {
        "cases",
        *(f"{name}@{k}" for name in ("coverage", "gini") for k in (5, 10, 20, 30)),
    }
    for name in set(result["metrics"]) & set(frame.columns):
        assert frame[name].mean() == pytest.approx(result["metrics"][name])
    population = load(DATA)
    pairs = population.interactions.pairs()
    used = {user: len(pairs.row(number)) for number, user in enumerate(population.users)}
    assert all(used[user] == known + 1 for user, known in frame.select("user", "known_items").iter_rows())


def test_all_metrics_are_measured_only_if_asked_for(run):
    short, everything = run.evaluate(), run.evaluate(metrics="all")
    assert short["metrics"] == run.metrics
    assert {"recall@10", "precision@10", "map@10", "mrr@10"} <= set(short["metrics"])
    more = set(everything["metrics"]) - set(short["metrics"])
    assert {name.partition("@")[0] for name in more} == {"coverage", "gini", "novelty", "diversity"}
    assert short["metrics"].items() <= everything["metrics"].items()
    assert set(everything["baselines"]["popularity"]) == set(everything["metrics"])
    # The same few items for everybody are less of the catalogue, and better known.
    popularity, random = everything["baselines"]["popularity"], everything["baselines"]["random"]
    assert random["coverage@10"] > popularity["coverage@10"]
    assert random["novelty@10"] > popularity["novelty@10"]
    assert random["gini@10"] < popularity["gini@10"]
    assert "per_user" not in everything


def test_a_choice_that_is_none_is_refused_and_no_folder_is_made(run, tmp_path):
    with pytest.raises(BadInput, match="unknown choice of metrics 'every': known are all, main"):
        run.evaluate(metrics="every")
    with pytest.raises(BadInput, match=r"there is no folder .*nowhere"):
        run.evaluate(per_user=tmp_path / "nowhere" / "x.csv")
    assert not (tmp_path / "nowhere").exists()
