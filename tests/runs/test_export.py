"""Files with recommendations for everybody, and with the metrics of every user."""

import csv
import json

import numpy as np
import polars as pl
import pytest

import veilrec
from veilrec.core import resources
from veilrec.core.errors import BadInput
from veilrec.data.datasets import load
from veilrec.data.population import Strings
from veilrec.evaluation.evaluator import EvaluationResult
from veilrec.runs import export, saved
from veilrec.runs.export import write_everybody, write_per_user
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.saved import SavedModel, open_model
from veilrec.runs.training import train


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """People who ask for quotation marks, one of whom has a single item and so never took part."""
    folder = tmp_path_factory.mktemp("everybody")
    rows = [f'"u,{user}",i{(user + k) % 9}' for user in range(12) for k in range(4)]
    (folder / "log.csv").write_text("\n".join(["user,item", *rows, "alone,i3"]))
    request = RunRequest("fedmf", f"csv:{folder / 'log.csv'}", protocol="holdout-users", rounds=2)
    train(prepare(request), folder / "run")
    return open_model(folder / "run")


def test_all_formats_say_the_same_and_what_each_user_gets(model, tmp_path):
    for suffix in ("csv", "jsonl", "parquet"):
        assert write_everybody(model, tmp_path / "new" / f"best.{suffix}", 3) == 13 * 3
    with (tmp_path / "new" / "best.csv").open(newline="") as source:
        rows = [row | {"rank": int(row["rank"]), "score": float(row["score"])} for row in csv.DictReader(source)]
    assert rows == [json.loads(line) for line in (tmp_path / "new" / "best.jsonl").read_text().splitlines()]
    frame = pl.read_parquet(tmp_path / "new" / "best.parquet")
    assert frame.columns == list(rows[0]) == ["user", "rank", "item", "score"]
    assert frame.to_dicts() == rows
    for user in ("u,0", "u,7", "alone"):
        mine = [(row["rank"], row["item"]) for row in rows if row["user"] == user]
        assert mine == [(rank, best.item) for rank, best in enumerate(model.recommend_user(user, 3), 1)]


def test_some_users_at_a_time_come_to_the_same(model, tmp_path, monkeypatch):
    write_everybody(model, tmp_path / "whole.csv", 4)
    monkeypatch.setattr(saved, "_SCORES_AT_ONCE", 20)  # two users
    monkeypatch.setattr(export, "_ROWS_AT_ONCE", 5)
    write_everybody(model, tmp_path / "parts.csv", 4)
    write_everybody(model, tmp_path / "parts.parquet", 4)
    whole, parts = (pl.read_csv(tmp_path / f"{name}.csv") for name in ("whole", "parts"))
    assert whole.drop("score").equals(parts.drop("score"))
    assert pl.read_parquet(tmp_path / "parts.parquet")["item"].to_list() == whole["item"].to_list()


def test_a_file_is_whole_or_as_it_was(model, tmp_path, monkeypatch):
    def breaks(self, k):
        yield from [next(real(self, k))]
        raise KeyboardInterrupt

    target, real = tmp_path / "best.csv", SavedModel.recommend_everybody
    target.write_text("before")
    monkeypatch.setattr(SavedModel, "recommend_everybody", breaks)
    with pytest.raises(KeyboardInterrupt):
        write_everybody(model, target, 3)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("best.csv", "before")]


def test_a_file_that_cannot_be_written_is_refused(model, tmp_path, monkeypatch):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(resources, "find_spec", lambda module: None)
    for name, words in (
        ("best.txt", "ends in .txt: give a name with .csv, .parquet, .jsonl"),
        ("best", "ends in nothing"),
        ("folder.csv", "is a folder"),
        ("file/best.csv", "cannot be written"),
        ("best.parquet", r"best.parquet needs polars, which is not installed: pip install"),
    ):
        with pytest.raises(BadInput, match=words):
            write_everybody(model, tmp_path / name, 3)


DATA = "synthetic-ratings:users=60,items=130,mean_history=8,seed=3"
USERS = Strings.of(["anna", 'b,"quoted"', "çelik", "unasked"])
OF_CASES = {"auc": np.array([0.1, 1 / 3, 1.0]), "mrr": np.array([0.5, 0.25, 0.125])}
JUDGEMENT = EvaluationResult(np.array([0, 1, 3]), np.array([2, 0, 1]), np.array([7, 0, 300]), OF_CASES, skipped=1)


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
    for name in set(result["metrics"]) & set(frame.columns):
        assert frame[name].mean() == pytest.approx(result["metrics"][name])
    population = load(DATA)
    pairs = population.interactions.pairs()
    used = {user: len(pairs.row(number)) for number, user in enumerate(population.users)}
    assert all(used[user] == known + 1 for user, known in frame.select("user", "known_items").iter_rows())


def test_all_metrics_are_measured_only_if_asked_for(run, tmp_path):
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
    with pytest.raises(BadInput, match="unknown choice of metrics 'every': known are all, main"):
        run.evaluate(metrics="every")
    with pytest.raises(BadInput, match=r"there is no folder .*nowhere"):
        run.evaluate(per_user=tmp_path / "nowhere" / "x.csv")
    assert not (tmp_path / "nowhere").exists()
