"""`veilrec recommend` of a run of veil says what its list was made of, and is right about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from veilrec.cli.main import app
from veilrec.runs.request import RunRequest, prepare
from veilrec.runs.saved import open_model
from veilrec.runs.training import train

FILMS = "synthetic-ratings:users=60,items=50,mean_history=8,seed=3"
NEWS = "synthetic-news:users=60,news=200,days=3,seed=3"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    train(prepare(RunRequest("veil", FILMS, seed=1, protocol="loo-full", rounds=6)), folder / "films")
    train(prepare(RunRequest("veil", NEWS, seed=1, rounds=2, settings=("history=3",))), folder / "news")
    train(prepare(RunRequest("popularity", FILMS, seed=1, protocol="loo-full")), folder / "popularity")
    return {kind: folder / kind for kind in ("films", "news", "popularity")}


def asked(run: Path, *arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["recommend", str(run), *arguments, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def shown(run: Path, *arguments: str) -> str:
    done = CliRunner().invoke(app, ["recommend", str(run), *arguments])
    assert done.exit_code == 0, done.output
    return " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("kind", "count", "uses", "items", "words"),
    [
        ("films", 0, ["popularity", "content"], 0, "by how popular items are and by their content"),
        ("films", 1, ["history", "content", "popularity"], 1, "Ranked here by 1 item, with the weights of everybody."),
        ("films", 9, ["history", "order", "own weights", "content", "popularity"], 9, "fitted to the latest 5 of them"),
        ("news", 0, ["appeal"], 0, "by what everybody likes of news (appeal), the same for everybody"),
        ("news", 2, ["history", "content", "appeal"], 2, "to 2 clicks, and by what everybody likes"),
        ("news", 5, ["history", "order", "content", "appeal"], 3, "to the latest 3 of 5 clicks"),
    ],
)
def test_a_list_says_what_it_was_made_of(
    runs: dict[str, Path], kind: str, count: int, uses: list[str], items: int, words: str
) -> None:
    history = ",".join(list(open_model(runs[kind]).items)[:count])
    told = asked(runs[kind], "--history", history)["rests_on"]
    assert (told["uses"], told["items"]) == (uses, items)
    assert words in told["said"]
    assert told["said"] in shown(runs[kind], "--history", history)


@pytest.mark.parametrize("kind", ["films", "news"])
def test_so_does_that_of_a_user_of_the_training(runs: dict[str, Path], kind: str) -> None:
    devices = open_model(runs[kind]).devices
    lengths = devices.trained_on.lengths()
    user = int(lengths.argmax())
    told = asked(runs[kind], "--user", devices.users[user])["rests_on"]
    assert told["items"] == (min(3, lengths[user]) if kind == "news" else lengths[user])
    assert told["said"] in shown(runs[kind], "--user", devices.users[user])


@pytest.mark.parametrize("kind", ["films", "news"])
def test_only_what_is_named_changes_the_list(runs: dict[str, Path], kind: str) -> None:
    model = open_model(runs[kind])
    first = list(model.items)[:6]
    for history, other in ((first, first[::-1]), (first[:3], first[2::-1]), ([], ["nothing that it knows"])):
        before, after = ({best.item: best.score for best in model.recommend(own, 40)} for own in (history, other))
        told = model.rests_on(history)
        assert told is not None
        assert (before != pytest.approx(after, abs=1e-5)) == ("order" in told.uses)


def test_a_history_of_which_nothing_is_known_is_none(runs: dict[str, Path]) -> None:
    told = asked(runs["films"], "--history", "strange")
    assert told["rests_on"] == asked(runs["films"], "--history", "")["rests_on"]
    assert told["unknown_items"] == ["strange"]


def test_other_methods_say_what_they_said(runs: dict[str, Path]) -> None:
    assert "rests_on" not in asked(runs["popularity"], "--history", "")
    done = CliRunner().invoke(app, ["recommend", str(runs["popularity"]), "--history", ""])
    assert "without a history the list is what the method gives to somebody new" in done.output
