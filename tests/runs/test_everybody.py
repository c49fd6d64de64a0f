"""Recommendations for everybody in one file."""

import csv
import json

import polars as pl
import pytest

from veilrec.core import resources
from veilrec.core.errors import BadInput
from veilrec.runs import export, saved
from veilrec.runs.export import write_everybody
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
