"""News methods as a user runs them, on MIND's and Adressa's files: train, evaluate elsewhere, recommend."""

import pytest

from tests.cli.running import SMALL, refused, says, shown, told
from tests.data.adressa_log import write_log
from veilrec.data.datasets import load


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VEILREC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory, own_cache):
    """Two weeks in MIND's format, and a run on the first."""
    place = tmp_path_factory.mktemp("news")
    for name, seed in (("week", 1), ("next", 2)):
        shown("data", "export", f"synthetic-news:users=60,news=240,days=3,seed={seed}", "--out", place / name)
    (place / "week" / "train").rename(place / "week" / "MINDsmall_train")  # the official names
    (place / "week" / "dev").rename(place / "week" / "MINDsmall_dev")
    shown("train", "nrms", "--data", f"mind:{place / 'week'}", "--rounds", "2", "--out", place / "run", *SMALL)
    return place


def test_evaluates_on_another_folder_and_refuses_the_one_that_it_learnt_from(folder):
    elsewhere = ("evaluate", folder / "run", "--data", f"mind:{folder / 'next'}")
    result = told(*elsewhere)
    dev = (folder / "next" / "dev" / "behaviors.tsv").read_text().splitlines()
    assert result["metrics"]["cases"] + result["metrics"]["skipped"] == len(dev)
    assert result["data"] == f"mind:{folder / 'next'}"
    says(shown(*elsewhere), "nrms on mind, mind", "popularity")
    words = refused("evaluate", folder / "run", "--data", f"mind:{folder / 'week' / 'MINDsmall_train'}")
    assert "were in the training of the run" in words


def test_recommends_titles_to_known_and_new_users(folder):
    population = load(f"mind:{folder / 'week'}")
    known = told("recommend", folder / "run", "--user", population.users[3])
    assert len(known["recommendations"]) == 10
    assert {entry["title"] for entry in known["recommendations"]} <= set(population.catalogue.titles)
    line = ("recommend", folder / "run", "--history", ",".join(population.items[item] for item in (9, 4, 7)), "-k", "2")
    text = shown(*line)
    for entry in told(*line)["recommendations"]:
        says(text, entry["item"], entry["title"][:20])
    words = refused("recommend", folder / "run", "--user", "stranger")
    assert "for somebody who was not in the training give --history" in words
    report = told("data", "check", f"mind:{folder / 'week'}")
    assert report["text"]["without_title"] == 0
    assert report["splits"]["train"]["empty_histories"] == 0


def test_central_and_federated_training_on_adressa(tmp_path):
    data, run = f"adressa:{write_log(tmp_path / 'one_week')}", tmp_path / "run"
    result = told("train", "nrms", "--data", data, "--rounds", "12", "--set", "batch=32", *SMALL, "--out", run)
    assert result["protocol"] == "last-day-20"
    assert {"auc", "mrr", "ndcg@5", "ndcg@10", "cases"} <= set(result["metrics"])
    # 150 clicks: chance is 0.5 with a standard error of 0.025, and taste alone is worth more than 0.7
    assert result["metrics"]["auc"] > 0.65
    best = told("recommend", run, "--user", "cx:3", "-k", "4")["recommendations"]
    assert all(entry["title"] for entry in best)
    options = ("--rounds", "2", "--early-stop", "2", "--set", "cohort.size=20", "--calibration", "none")
    result = told("train", "fednewsrec", "--data", data, *options, *SMALL, "--out", tmp_path / "federated")
    assert result["metrics"]["cases"] > 50
    assert result["communication"]["up_bytes"] > 0
