"""News methods as a user runs them: files in MIND's format, train, evaluate elsewhere, recommend."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from veilrec.cli.main import app
from veilrec.core.errors import BadInput
from veilrec.data.datasets import load


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VEILREC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def veilrec(*arguments: str) -> Result:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
    if done.exception is not None and not isinstance(done.exception, BadInput | SystemExit):
        raise done.exception
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, own_cache: object) -> Path:
    """Two weeks in MIND's format, and a run on the first."""
    place = tmp_path_factory.mktemp("news")
    for name, seed in (("week", 1), ("next", 2)):
        made = f"synthetic-news:users=60,news=240,days=3,seed={seed}"
        assert veilrec("data", "export", made, "--out", str(place / name)).exit_code == 0
    (place / "week" / "train").rename(place / "week" / "MINDsmall_train")  # the official names
    (place / "week" / "dev").rename(place / "week" / "MINDsmall_dev")
    small = [
        part for size in ("word_dim=8", "heads=2", "head_dim=4", "attention=4") for part in ("--set", f"size.{size}")
    ]
    done = veilrec(
        "train", "nrms", "--data", f"mind:{place / 'week'}", "--rounds", "2", "--out", str(place / "run"), *small
    )
    assert done.exit_code == 0, done.output
    return place


def test_evaluates_on_another_folder(folder: Path) -> None:
    done = veilrec("evaluate", str(folder / "run"), "--data", f"mind:{folder / 'next'}", "--json")
    result = json.loads(done.stdout)
    dev = (folder / "next" / "dev" / "behaviors.tsv").read_text().splitlines()
    assert result["metrics"]["cases"] + result["metrics"]["skipped"] == len(dev)
    assert result["data"] == f"mind:{folder / 'next'}"
    table = veilrec("evaluate", str(folder / "run"), "--data", f"mind:{folder / 'next'}").stdout
    assert "nrms on mind, mind" in table
    assert "popularity" in table


def test_refuses_the_folder_that_it_learnt_from(folder: Path) -> None:
    done = veilrec("evaluate", str(folder / "run"), "--data", f"mind:{folder / 'week' / 'MINDsmall_train'}")
    assert isinstance(done.exception, BadInput)
    assert "were in the training of the run" in str(done.exception)


def test_recommends_titles_to_known_and_new_users(folder: Path) -> None:
    population = load(f"mind:{folder / 'week'}")
    assert population.catalogue is not None
    titles = set(population.catalogue.titles)
    known = json.loads(veilrec("recommend", str(folder / "run"), "--user", population.users[3], "--json").stdout)
    assert len(known["recommendations"]) == 10
    assert {entry["title"] for entry in known["recommendations"]} <= titles
    history = ",".join(population.items[item] for item in (9, 4, 7))
    shown = veilrec("recommend", str(folder / "run"), "--history", history, "-k", "2")
    assert shown.exit_code == 0
    found = json.loads(veilrec("recommend", str(folder / "run"), "--history", history, "-k", "2", "--json").stdout)
    for entry in found["recommendations"]:
        assert entry["item"] in shown.stdout
        assert entry["title"][:20] in shown.stdout


def test_a_user_that_nobody_knows_is_told_what_to_give(folder: Path) -> None:
    done = veilrec("recommend", str(folder / "run"), "--user", "stranger")
    assert isinstance(done.exception, BadInput)
    assert "for somebody who was not in the training give --history" in str(done.exception)


def test_data_check_has_the_text_in_json(folder: Path) -> None:
    report = json.loads(veilrec("data", "check", f"mind:{folder / 'week'}", "--json").stdout)
    assert report["text"]["without_title"] == 0
    assert report["splits"]["train"]["empty_histories"] == 0
